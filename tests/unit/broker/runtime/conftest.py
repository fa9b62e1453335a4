"""The data folder of a killed single broker, for tests that damage it."""

from __future__ import annotations

from pathlib import Path

import pytest

from simkit.brokers.lone_broker import Killed, copied, killed


@pytest.fixture(scope="module")
def origin(tmp_path_factory: pytest.TempPathFactory) -> Killed:
    """Return the folder of a killed broker with 40 records, and an older copy with 25."""
    return killed(tmp_path_factory.mktemp("origin"))


@pytest.fixture
def at(origin: Killed, tmp_path: Path) -> Killed:
    """Return a copy of that folder to damage."""
    return copied(origin, tmp_path)
