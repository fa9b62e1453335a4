"""Listeners hear of a broker's leaderships even if another replica cannot be opened."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from broker.core.metadata.commands import CreateStream
from broker.errors import DiskFullError
from broker.model.ids import BrokerId, StreamUuid
from broker.model.stream import Stream, StreamConfig
from broker.runtime.led import LedPartitions
from broker.runtime.metadata.raft_metadata_log import RaftMetadataLog
from broker.storage.log.partition_log import PartitionLog
from simkit.brokers.brokers import disk_broker

FULL = "00000000-0000-4000-8000-00000000000f"


class Listener:
    """Keeps its notifications."""

    def __init__(self) -> None:
        self.told: list[tuple[str, set[int]]] = []

    def led_changed(self, led: LedPartitions) -> None:
        """See ``LeadListener``."""
        self.told.append((led.stream.name, set(led.numbers)))


def test_a_replica_without_room_hides_no_other_stream(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Otherwise NATS ingest would not subscribe (found by the simulator, seed 98)."""
    original = PartitionLog.open
    full = [True]

    def open_log(files: Any, folder: str, *args: Any, **settings: Any) -> PartitionLog:
        if FULL in folder and full[0]:
            raise DiskFullError("no room")
        return original(files, folder, *args, **settings)

    monkeypatch.setattr(PartitionLog, "open", open_log)
    logs: list[RaftMetadataLog] = []

    def watched(log: RaftMetadataLog) -> RaftMetadataLog:
        logs.append(log)
        return log

    with disk_broker(tmp_path, watched=watched) as broker:
        listener = Listener()
        broker.add_listener(listener)
        for name, uuid in (("full", FULL), ("other", FULL[:-1] + "0")):
            stream = Stream(
                name=name,
                uuid=StreamUuid(uuid),
                config=StreamConfig(subject=name),
                created_us=1,
                table_name=name,
            )
            logs[0].propose(CreateStream(stream=stream, leader=BrokerId("b1"), assignment=()))
        with pytest.raises(DiskFullError):
            broker.reconcile()
        assert listener.told == [("other", {0})]
        full[0] = False
        broker.reconcile()
        assert listener.told == [("other", {0}), ("full", {0})]
