"""A broker that is forked for a test imports nothing: its modules were loaded before the fork."""

from __future__ import annotations

from pathlib import Path

import pytest

from crashkit.processes import BrokerProcess
from headwater.local.embedded import start_nats

pytestmark = [pytest.mark.integration]

# pyarrow looks for pandas as it converts its first list; a broker has no pandas.
_LOOKED_FOR_IN_VAIN = {"pandas"}


def test_a_forked_broker_imports_nothing(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Nothing is imported until it serves: that would be 0.5 s of CPU for each start of a test."""
    monkeypatch.setenv("PYTHONPROFILEIMPORTTIME", "1")  # this test starts a fork server of its own
    with start_nats(tmp_path / "nats") as nats:
        broker = BrokerProcess(
            tmp_path / "broker", nats_url=nats.address, lake=str(tmp_path / "lake")
        )
        broker.start()
        try:
            broker.wait_ready()
        finally:
            broker.kill()
    lines = broker.log_path.read_text(encoding="utf-8").splitlines()
    told = [one for one in lines if one.startswith("import time:")]
    assert told, "Python named no import at all"
    imported = {one.rpartition("|")[2].strip() for one in told}
    assert imported <= _LOOKED_FOR_IN_VAIN, imported
