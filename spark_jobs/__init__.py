"""Spark's side of Headwater: the Python data source, table schemas and thin job entry points.

Nothing is re-exported and no Spark module is imported here, because the worker processes that
unpickle our classes import this package first.
"""
