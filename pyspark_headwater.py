"""Lets every Spark on this Python path know the format ``headwater``, without any registration.

Spark imports each top-level module whose name begins with ``pyspark_`` and takes its
``DefaultSource``; it does so once per driver, at the first format that it does not know by itself.
"""

from spark_jobs.source.source import HeadwaterDataSource as DefaultSource

__all__ = ["DefaultSource"]
