"""What differs between a classic session and one of Spark Connect: three small answers.

A Connect session has no JVM in this process, so nothing here touches ``sparkContext`` or ``_jsc``
of one. Everything else of a read is the same DataFrame calls for both.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Final

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

# A Connect client cannot ask how many cores the cluster has; too many tasks cost little.
_PARALLELISM_UNKNOWN: Final = 32


def is_connect(spark: SparkSession) -> bool:
    """Tell whether this is a session of Spark Connect."""
    return type(spark).__module__.startswith("pyspark.sql.connect.")


def is_running(spark: SparkSession) -> bool:
    """Tell whether the session can still be used; makes no request."""
    if is_connect(spark):
        return not spark.is_stopped  # type: ignore[attr-defined]  # only Connect has the word
    return spark.sparkContext._jsc is not None  # noqa: SLF001  (no public word for it)


def parallelism(spark: SparkSession) -> int:
    """Return about how many tasks run at once."""
    if is_connect(spark):
        return _PARALLELISM_UNKNOWN
    return int(spark.sparkContext.defaultParallelism)
