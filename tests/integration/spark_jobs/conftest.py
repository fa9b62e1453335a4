"""A broker with a lake for each Spark test; the session is that of tests/integration."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from itertools import count
from pathlib import Path
from typing import TYPE_CHECKING

import pytest

from simkit.tier.lake_broker import Served, serving
from spark_jobs import jvm
from spark_jobs.read.held_reads import release_all

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

_NUMBERS = count()


@pytest.fixture
def served(tmp_path: Path) -> Iterator[Served]:
    """A broker with a lake in a local directory."""
    with serving(str(tmp_path / "lake")) as found:
        yield found
    release_all()


@pytest.fixture
def catalog_of(spark: SparkSession, served: Served) -> Iterator[Callable[[str], str]]:
    """A new catalog of the broker's streams, whose files the JVM or Python reads.

    Each has a name of its own, because Spark keeps a catalog with the settings of its first use.
    """
    made: list[str] = []

    def make(reader: str) -> str:
        name = f"streams{next(_NUMBERS)}"
        settings = {"": jvm.CATALOG_CLASS, ".server": served.server, ".coldFiles": reader}
        for option, value in settings.items():
            made.append(f"spark.sql.catalog.{name}{option}")
            spark.conf.set(made[-1], value)
        return name

    yield make
    for setting in made:
        spark.conf.unset(setting)
