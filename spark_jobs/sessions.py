"""The differences between a classic session and a session of Spark Connect: three functions.

A Connect session has no JVM in this process, so ``sparkContext`` and ``_jsc`` are not used on it.
All other code of a read uses the same DataFrame calls for both.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Final

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

# A Connect client cannot ask for the number of the cluster's cores; too many tasks cost little.
_PARALLELISM_UNKNOWN: Final = 32


def is_connect(spark: SparkSession) -> bool:
    """Tell whether this is a session of Spark Connect."""
    return type(spark).__module__.startswith("pyspark.sql.connect.")


def is_running(spark: SparkSession) -> bool:
    """Tell whether the session can still be used; makes no request."""
    if is_connect(spark):
        return not spark.is_stopped  # type: ignore[attr-defined]  # only Connect has it
    return spark.sparkContext._jsc is not None  # noqa: SLF001  (no public attribute for it)


def parallelism(spark: SparkSession) -> int:
    """Return roughly how many tasks run at the same time."""
    if is_connect(spark):
        return _PARALLELISM_UNKNOWN
    return int(spark.sparkContext.defaultParallelism)
