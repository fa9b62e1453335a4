"""Spark's types for annotations in the package ``headwater``, which does not import pyspark."""

from __future__ import annotations

from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from pyspark.sql import DataFrame, SparkSession

__all__ = ["DataFrame", "SparkSession"]
