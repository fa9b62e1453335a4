"""A broker with a lake for each Spark test; the session is that of tests/integration."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest

from simkit.tier.lake_broker import Served, serving
from spark_jobs.read.held_reads import release_all


@pytest.fixture
def served(tmp_path: Path) -> Iterator[Served]:
    """A broker with a lake in a local directory."""
    with serving(str(tmp_path / "lake")) as found:
        yield found
    release_all()
