"""python-liftbridge 0.0.7, unmodified, in its own environment: all of tests/peers/python."""

from __future__ import annotations

import os
from pathlib import Path
from typing import Final

import pytest

from clusterkit.foreign_program import play
from clusterkit.lift_brokers import LiftCluster, LiftServer
from projectfiles import ROOT

pytestmark = [
    pytest.mark.integration,
    pytest.mark.slow,
]

PROGRAM: Final = str(ROOT / "tests/peers/python/scenarios.py")
SINGLE: Final = ("create", "publish-subscribe", "to-subject", "metadata", "unknown", "many")


@pytest.fixture(autouse=True)
def pure_python(monkeypatch: pytest.MonkeyPatch) -> None:
    """Let its protobuf run without its C extension, which has no wheel for this Python."""
    monkeypatch.setenv("PROTOCOL_BUFFERS_PYTHON_IMPLEMENTATION", "python")
    assert "PYTHONPATH" not in os.environ, "its environment is its own"


@pytest.mark.parametrize("scenario", SINGLE)
def test_one_broker(scenario: str, old_python: Path, server: LiftServer) -> None:
    """A scenario on `headwater up`."""
    play([str(old_python), PROGRAM, server.address, scenario])


def test_three_brokers_and_a_killed_leader(old_python: Path, cluster: LiftCluster) -> None:
    """What was acknowledged is there after kill -9 of the leader."""
    play([str(old_python), PROGRAM, cluster.addresses, "leader-kill"], cluster.do)
    cluster.cluster.heal()
