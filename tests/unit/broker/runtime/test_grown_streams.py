"""Partitions are added to a stream in use: its broker opens, serves and keeps them."""

from __future__ import annotations

import shutil
from dataclasses import replace
from pathlib import Path
from queue import SimpleQueue
from typing import Any

import pyarrow as pa
import pytest

from broker.codec.record_batch import prepare
from broker.core.metadata.commands import DropLease
from broker.core.metadata.state import FEATURE_LEVEL_STREAMS
from broker.errors import (
    FixedSettingError,
    HeadwaterError,
    InvalidCutError,
    InvalidStreamError,
    MetadataCorruptError,
    UnknownPartitionError,
)
from broker.model.ids import LeaseId
from broker.model.stream import StreamConfig
from broker.runtime.broker import Broker
from broker.runtime.led import LedPartitions
from broker.runtime.metadata import lone
from simkit.brokers.brokers import disk_broker
from simkit.brokers.lone_broker import OWNER, STREAM, image, running

CONFIG = StreamConfig(subject="s", tiering=False)


def put(broker: Broker, partition: int, *values: bytes) -> Any:
    """Publish one batch to a partition; return its result."""
    outcome: SimpleQueue[Any] = SimpleQueue()
    rows = pa.RecordBatch.from_pydict({"value": pa.array(values, pa.binary())})
    broker.partitions.handle(STREAM, partition).writes.submit(
        [prepare(rows, now_us=1)], outcome.put
    )
    return outcome.get(timeout=30)[0]


def ends(broker: Broker) -> list[int]:
    """Return the high watermark of each partition."""
    count = broker.streams.get(STREAM).config.partitions
    return [int(broker.partitions.standing(STREAM, n).high_watermark) for n in range(count)]


def test_new_partitions_take_records_when_the_call_returns(tmp_path: Path) -> None:
    """The old one goes on; what is acknowledged outlives a kill before and after the growth."""
    with running(tmp_path / "data") as live:
        broker = live.broker
        broker.streams.create(STREAM, CONFIG)
        assert put(broker, 0, b"before").base_offset == 0
        image(live.folder, tmp_path / "before")
        altered = broker.streams.alter(STREAM, {"partitions": 3})
        assert altered.changes == {"partitions": (1, 3)}
        assert [put(broker, n, b"after").base_offset for n in range(3)] == [1, 0, 0]
        assert ends(broker) == [2, 1, 1]
        image(live.folder, tmp_path / "after")
    for folder, found in (("before", [1]), ("after", [2, 1, 1]), ("data", [2, 1, 1])):
        with disk_broker(tmp_path / folder, owner=OWNER) as broker:
            assert ends(broker) == found
            broker.streams.alter(STREAM, {"partitions": 6 if len(found) == 3 else 2})
            assert put(broker, 1, b"again").leader_epoch >= 1


@pytest.mark.parametrize("has_snapshot", [False, True])
def test_metadata_from_before_the_growth_are_refused_by_name(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, *, has_snapshot: bool
) -> None:
    """The logs of the added partitions have acknowledged records: they stay where they are."""
    if has_snapshot:
        monkeypatch.setattr(lone, "_JOURNAL_BYTES_MAX", 40_000)
    with running(tmp_path / "data") as live:
        broker = live.broker
        broker.streams.create("other", StreamConfig(subject="o", partitions=4, tiering=False))
        uuid = broker.streams.create(STREAM, replace(CONFIG, partitions=2)).uuid
        for _ in range(1_500 * has_snapshot):
            broker._metadata.propose(DropLease(lease_id=LeaseId("none")))
        older = image(live.folder, tmp_path / "older")
        assert (older / "raft" / "snapshot").exists() == has_snapshot
        broker.streams.alter(STREAM, {"partitions": 4})
        for number in (2, 3):
            put(broker, number, b"acknowledged")
        folder = image(live.folder, tmp_path / "killed")
    newest = image(folder / "raft", tmp_path / "newest")
    shutil.rmtree(folder / "raft")
    shutil.copytree(older / "raft", folder / "raft")
    shutil.copy(older / "promises", folder / "promises")
    for _ in range(2):  # a refused start changes nothing, so the next one is refused as well
        named = f"has 2 of its partitions.*streams/{uuid}/2, streams/{uuid}/3"
        with pytest.raises(MetadataCorruptError, match=named), running(folder):
            pass
        assert not (folder / "unknown").exists()
        for one in ("journal", "meta"):
            assert (folder / "raft" / one).read_bytes() == (older / "raft" / one).read_bytes()
    shutil.rmtree(folder / "raft")
    newest.rename(folder / "raft")
    with disk_broker(folder, owner=OWNER) as broker:
        assert ends(broker) == [0, 0, 1, 1]


def test_who_serves_the_stream_is_told_of_the_new_partitions(tmp_path: Path) -> None:
    """So the subscriptions of their subjects begin; a dry run tells nobody."""
    told: list[LedPartitions] = []

    class Listener:
        def led_changed(self, led: LedPartitions) -> None:
            """Remember."""
            told.append(led)

    with disk_broker(tmp_path) as broker:
        created = broker.streams.create(STREAM, CONFIG)
        broker.add_listener(Listener())
        told.clear()
        dry = broker.streams.alter(STREAM, {"partitions": 2}, dry_run=True)
        assert (dry.after.config.partitions, broker.streams.get(STREAM)) == (2, created)
        altered = broker.streams.alter(STREAM, {"partitions": 2})
        broker.streams.alter(STREAM, {"partitions": 2})
        assert told == [LedPartitions(altered.after, frozenset({0, 1}))]


@pytest.mark.parametrize(
    ("changes", "kind"),
    [
        ({"partitions": 1}, FixedSettingError),
        ({"partitions": 3}, InvalidStreamError),
        ({"partitions": "4"}, InvalidStreamError),
        ({"partitions": 4, "subject": "t"}, FixedSettingError),
        ({"partitions": 5000}, InvalidStreamError),
    ],
)
def test_what_is_refused_changes_nothing(
    tmp_path: Path, changes: dict[str, Any], kind: type[HeadwaterError]
) -> None:
    """With a dry run, too."""
    with disk_broker(tmp_path) as broker:
        before = broker.streams.create(STREAM, StreamConfig(subject="s", partitions=2))
        for dry_run in (True, False):
            with pytest.raises(kind):
                broker.streams.alter(STREAM, changes, dry_run=dry_run)
        assert broker.streams.get(STREAM) == before
        with pytest.raises(UnknownPartitionError):
            broker.partitions.handle(STREAM, 2)


def test_a_saved_cut_from_before_is_of_the_present_history(tmp_path: Path) -> None:
    """It names the partitions that there were. A new cut names all, and says where keys began."""
    with disk_broker(tmp_path) as broker:
        broker.streams.create(STREAM, CONFIG)
        put(broker, 0, b"before")
        before = broker.cuts.take(STREAM, owner="me", ttl_ms=60_000)
        broker.streams.alter(STREAM, {"partitions": 2})
        put(broker, 1, b"after")
        broker.cuts.check(STREAM, stream_uuid=before.stream_uuid, positions=before.positions)
        after = broker.cuts.take(STREAM, owner="me", ttl_ms=60_000)
        assert [part.hot_end for part in after.partitions] == [1, 1]
        assert (before.keys_from, after.keys_from) == (None, 1)
        with pytest.raises(InvalidCutError):
            broker.cuts.check(STREAM, stream_uuid=before.stream_uuid, positions=())
        assert broker._metadata.state.feature_level >= FEATURE_LEVEL_STREAMS
