"""Spark's types, for annotations of the public face, which does not import pyspark itself."""

from __future__ import annotations

from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from pyspark.sql import DataFrame, SparkSession

__all__ = ["DataFrame", "SparkSession"]
