"""Builds the programs of tests/peers; starts the servers that they talk to."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest

from clusterkit.foreign_program import build_go
from clusterkit.lift_brokers import LiftCluster, LiftServer, lift_cluster, lift_up
from projectfiles import ROOT

PYTHON = ROOT / ".liftbridge-venv/bin/python"  # made by `make test-liftbridge`


@pytest.fixture(scope="session")
def go_program(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Build the Go program."""
    return build_go(tmp_path_factory.mktemp("liftpeer") / "liftpeer")


@pytest.fixture(scope="session")
def old_python() -> Path:
    """Return the interpreter of python-liftbridge's own environment; skip where it is not made."""
    if not PYTHON.exists():
        pytest.skip("python-liftbridge has no environment yet: `make liftbridge-python` makes it")
    return PYTHON


@pytest.fixture(scope="module")
def server(tmp_path_factory: pytest.TempPathFactory) -> Iterator[LiftServer]:
    """Run `headwater up` with the API on."""
    with lift_up(tmp_path_factory.mktemp("up") / "data") as running:
        yield running


@pytest.fixture(scope="module")
def cluster(tmp_path_factory: pytest.TempPathFactory) -> Iterator[LiftCluster]:
    """Run three brokers."""
    with lift_cluster(tmp_path_factory.mktemp("cluster")) as running:
        yield running
