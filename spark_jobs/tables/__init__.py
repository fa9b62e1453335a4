"""Exactly-once append of offset ranges to Delta tables."""

from spark_jobs.tables.appender import Appender
from spark_jobs.tables.model import Appended, Source, Target, Transform, Transformed, Watermarks

__all__ = ["Appended", "Appender", "Source", "Target", "Transform", "Transformed", "Watermarks"]
