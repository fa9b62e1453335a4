"""Spark's side of Headwater: the Python data source, table schemas and thin job entry points.

Nothing is re-exported and no Spark module is imported here, because Spark's worker processes import
this package first when they unpickle our classes.
"""
