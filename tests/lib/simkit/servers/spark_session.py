"""The settings of a Spark session, and the active session of this thread.

Spark reads a schema in words by the settings of the active session. PySpark makes a session the
active one when it makes rows from Python's, and leaves it so. A test with a session of its own
calls :func:`activate` with the shared one at its end.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from typing import TYPE_CHECKING, Any, Final

import pytest

from spark_jobs.source.source import HeadwaterDataSource

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

_CLASS: Final = "org.apache.spark.sql.classic.SparkSession"
# Delta sets these itself, when it first reads a table and after each commit.
_OF_USER: Final = ("HEADWATER_", "AWS_")
_OF_DELTA: Final = ("spark.sql.parquet.fieldId.", "spark.databricks.delta.lastCommitVersion")


def settings_of(spark: SparkSession) -> list[str]:
    """Return the runtime settings of a session: ``name=value``, by name.

    The JVM makes one text of them, because Python asks for each entry of a map by itself.
    """
    jvm: Any = spark._jvm
    text: str = jvm.java.util.TreeMap(spark._jsparkSession.conf().getAllAsJava()).toString()
    return [one for one in text[1:-1].split(", ") if not one.startswith(_OF_DELTA)]


def is_other_active(spark: SparkSession) -> bool:
    """Tell whether the active session of this thread is another one than this."""
    active = getattr(spark._jvm, _CLASS).getActiveSession()
    return bool(active.isDefined()) and not active.get().equals(spark._jsparkSession)


def activate(spark: SparkSession) -> None:
    """Make a session the active one of this thread, for PySpark and for Spark."""
    type(spark)._activeSession = spark
    getattr(spark._jvm, _CLASS).setActiveSession(spark._jsparkSession)


@contextmanager
def as_user(spark: SparkSession, variables: Mapping[str, str]) -> Iterator[None]:
    """Give driver and workers the variables of a user, as ``spark.executorEnv`` does.

    An empty AWS variable hides that of the JVM from its Python workers.
    """
    own = {name: value for name, value in variables.items() if name.startswith(_OF_USER)}
    before = dict(spark.sparkContext.environment)
    with pytest.MonkeyPatch.context() as driver:
        for name, value in own.items():
            driver.setenv(name, value)
        spark.sparkContext.environment.update(own)
        spark.dataSource.register(HeadwaterDataSource)
        yield
    spark.sparkContext.environment.clear()
    spark.sparkContext.environment.update(before)
    spark.dataSource.register(HeadwaterDataSource)
