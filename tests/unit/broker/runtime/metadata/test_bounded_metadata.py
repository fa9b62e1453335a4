"""A stream's share of the metadata is bounded at every door of a broker."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import pytest

from broker.core.metadata import shares
from broker.errors import MetadataFullError
from broker.model.groups import PositionReset
from broker.model.stream import StreamConfig
from simkit.brokers.brokers import disk_broker


def test_a_stream_takes_no_more_than_its_share(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Cursors and positions that are there move on, and what is deleted makes room."""
    monkeypatch.setattr(shares, "PLACES_OF_PARTITION_MAX", 3)
    with disk_broker(tmp_path) as broker:
        stream = broker.streams.create("s", StreamConfig(subject="s"))
        write = PositionReset(stream_uuid=stream.uuid, partition=0, offset=0)
        for number in range(3):
            broker.cursors.set(f"c{number}", "s", 0, 1)
            broker.members.reset(f"g{number}", [write])
        with pytest.raises(MetadataFullError, match="cursors"):
            broker.cursors.set("more", "s", 0, 1)
        with pytest.raises(MetadataFullError, match="group delete"):
            broker.members.reset("more", [write])
        broker.cursors.set("c0", "s", 0, 2)
        broker.members.reset("g0", [replace(write, offset=0)])
        broker.members.delete("g1")
        broker.members.reset("more", [write])
        broker.streams.delete("s")
        broker.cursors.set("more", "s", 0, 1)
