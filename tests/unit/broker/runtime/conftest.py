"""What a broker alone left when it was killed, for the tests that break something of it."""

from __future__ import annotations

from pathlib import Path

import pytest

from simkit.brokers.lone_broker import Killed, copied, killed


@pytest.fixture(scope="module")
def origin(tmp_path_factory: pytest.TempPathFactory) -> Killed:
    """What a killed broker of 40 records left, and an older copy of it with 25."""
    return killed(tmp_path_factory.mktemp("origin"))


@pytest.fixture
def at(origin: Killed, tmp_path: Path) -> Killed:
    """The same, to be damaged."""
    return copied(origin, tmp_path)
