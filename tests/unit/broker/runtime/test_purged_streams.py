"""Records are purged from a real log: at once for readers, later on the disk, for good."""

from __future__ import annotations

from pathlib import Path
from queue import SimpleQueue
from typing import Any

import pyarrow as pa
import pytest

from broker.codec.schema import ROW_SCHEMA
from broker.errors import (
    HeldByLeaseError,
    InvalidRequestError,
    NotShippedError,
    OffsetOutOfRangeError,
    PurgedError,
    UnknownPartitionError,
)
from broker.model.offsets import OFFSET_MAX, Offset
from broker.model.stream import StreamConfig
from simkit.brokers.lone_broker import STREAM, Running, image, running
from simkit.brokers.memory_broker import records
from simkit.disk.syscalls import Syscalls, listening

CONFIG = StreamConfig(subject="s", tiering=False, segment_bytes_max=4096, dedup_window_ms=0)
VALUES = [b"%03d" % number * 200 for number in range(40)]


def _filled(live: Running, config: StreamConfig = CONFIG) -> None:
    live.broker.streams.create(STREAM, config)
    for number, value in enumerate(VALUES):
        live.put(value, now_us=1_000 * (number + 1))


def _purge(live: Running, before: int) -> None:
    live.broker.streams.purge(STREAM, 0, before=Offset(before), operator="me")


def _free(live: Running) -> int:
    """Free segments as the ticker does."""
    live.partition.maintenance.tick()
    return live.partition.frees.now(lambda: Offset(OFFSET_MAX))


def _files(live: Running) -> int:
    return len(list(live.log_folder.glob("*.log")))


def test_purged_records_are_not_read_from_that_moment_on(tmp_path: Path) -> None:
    """Also from the middle of a segment; later records keep their offsets."""
    with running(tmp_path) as live:
        _filled(live)
        told = live.broker.streams.purge(STREAM, 0, before=Offset(7), operator="me")
        assert (told.start, told.end, told.records_count, told.in_table) == (0, 7, 7, False)
        assert (live.partition.reads.log_start, live.partition.reads.high_watermark) == (7, 40)
        assert live.rows() == VALUES[7:]
        with pytest.raises(PurgedError) as caught:
            live.partition.reads.read(Offset(6), Offset(7), bytes_max=1)
        assert (caught.value.offset, caught.value.start, caught.value.end) == (6, 7, 40)
        assert "on purpose" in caught.value.message
        assert live.partition.reads.offset_at(0) == 7
        assert told.purged_end == 7
        again = live.broker.streams.purge(STREAM, 0, before=Offset(3), operator="me")
        assert (again.records_count, live.partition.reads.log_start) == (0, 7)
        assert (again.end, again.purged_end) == (7, 7), "also if the first answer was lost"
        assert live.put(b"next").base_offset == 40


def test_the_disk_is_given_back_and_a_restart_brings_nothing_back(tmp_path: Path) -> None:
    """The active segment is freed, too, once it has only purged records."""
    with running(tmp_path) as live:
        _filled(live)
        before = _files(live)
        _purge(live, 25)
        _free(live)  # unless the broker's own ticker has done it since the purge
        assert 1 < _files(live) < before
        assert live.rows() == VALUES[25:]
    with running(tmp_path) as live:
        assert live.partition.reads.log_start == 25
        assert live.rows() == VALUES[25:]
        _purge(live, 40)
        live.partition.maintenance.tick()
        live.partition.tier.seal_active()  # in its turn, after the tick's turn
        _free(live)
        assert (_files(live), live.rows()) == (1, [])
        assert live.put(b"next").base_offset == 40
        assert live.rows() == [b"next"]
    with running(tmp_path) as live:
        assert live.rows() == [b"next"]


def test_what_is_purged_is_on_the_disk_before_it_is_purged(tmp_path: Path) -> None:
    """A stream that syncs by interval is synced first, or a power cut could end its log below."""
    owed: list[list[str]] = []  # unsynced files of the log, at each write of the metadata

    class Watch(Syscalls):
        def wrote(self, descriptor: int) -> None:
            super().wrote(descriptor)
            if "/raft/" in self._path(descriptor):
                owed.append(self.owed(".log"))

    config = StreamConfig(
        subject="s", tiering=False, segment_bytes_max=4096, dedup_window_ms=0, flush="interval"
    )
    with running(tmp_path) as live:
        live.broker.streams.create(STREAM, config)
        with listening(tmp_path, Watch(tmp_path)) as calls:
            for value in VALUES:
                live.put(value)
            assert calls.owed(".log"), "nothing waits for the interval"
            owed.clear()
            _purge(live, 40)
            calls.require(".log")
            # Later writes find the segment that begins behind the purge, which is being made.
            assert owed[0] == [], "the metadata has a purge of records that a power cut takes"
            assert live.put(b"next").base_offset == 40


def test_a_log_that_was_put_back_is_not_believed(tmp_path: Path) -> None:
    """The copy ends below the purged end, so it would give offsets to new records a second time."""
    with running(tmp_path / "live") as live:
        live.broker.streams.create(STREAM, CONFIG)
        for value in VALUES[:5]:
            live.put(value)
        log = live.log_folder.relative_to(live.folder)
        older = image(live.folder, tmp_path / "older")
        for value in VALUES[5:]:
            live.put(value)
        _purge(live, 30)
    for path in (tmp_path / "live" / log).iterdir():
        path.unlink()
    for path in (older / log).iterdir():
        path.replace(tmp_path / "live" / log / path.name)
    with running(tmp_path / "live") as live:
        assert live.partition.refusal is not None
        assert isinstance(live.put(b"in the place of another record"), type(live.partition.refusal))


def test_ids_of_purged_records_are_recognised_in_their_window(tmp_path: Path) -> None:
    """A retry of a purged record is no new record; its segment waits on the disk for that long."""
    config = StreamConfig(subject="s", tiering=False, segment_bytes_max=4096)

    def stored(live: Running) -> tuple[int, bool]:
        outcomes: SimpleQueue[Any] = SimpleQueue()
        headers = pa.array(
            [[{"key": "Nats-Msg-Id", "value": b"one"}]], ROW_SCHEMA.field("headers").type
        )
        rows = records([b"x"], headers=headers)
        live.partition.writes.submit_records(rows, ["one"], outcomes.put)
        found = outcomes.get(timeout=30)
        return found.offsets[0], bool(found.duplicates)

    with running(tmp_path) as live:
        live.broker.streams.create(STREAM, config)
        assert stored(live) == (0, False)
        for value in VALUES:
            live.put(value)
        _purge(live, 41)
        assert _free(live) == 0
        assert stored(live) == (0, True)
    with running(tmp_path) as live:
        assert stored(live) == (0, True)
        assert live.rows() == []


def test_a_time_keeps_the_batch_that_reaches_it(tmp_path: Path) -> None:
    """Every record at or after it stays."""
    with running(tmp_path) as live:
        _filled(live)
        live.broker.streams.purge(STREAM, 0, before_us=11_000, operator="me")
        assert live.rows() == VALUES[10:]
        live.broker.streams.purge(STREAM, 0, before_us=1 << 60, operator="me")
        assert live.rows() == []


def test_what_cannot_be_purged_says_why(tmp_path: Path) -> None:
    """Above the high watermark, without a place, held by a reader, not in the table yet."""
    with running(tmp_path) as live:
        _filled(live)
        with pytest.raises(OffsetOutOfRangeError):
            _purge(live, 41)
        with pytest.raises(InvalidRequestError):
            live.broker.streams.purge(STREAM, 0, operator="me")
        with pytest.raises(UnknownPartitionError):
            live.broker.streams.purge(STREAM, 1, before=Offset(1), operator="me")
        cut = live.broker.cuts.take(STREAM, owner="a reader", ttl_ms=60_000)
        with pytest.raises(HeldByLeaseError) as caught:
            _purge(live, 1)
        assert caught.value.owners == ["a reader"]
        live.broker.cuts.drop_lease(cut.lease.lease_id)
        _purge(live, 1)
        live.broker.streams.create("tiered", StreamConfig(subject="t"))
        partition = live.broker.partitions.handle("tiered", 0)
        outcomes: SimpleQueue[Any] = SimpleQueue()
        partition.writes.submit_records(records([b"x"]), None, outcomes.put)
        outcomes.get(timeout=30)
        with pytest.raises(NotShippedError):
            live.broker.streams.purge("tiered", 0, before=Offset(1), operator="me")


def test_a_cut_begins_where_the_purge_ended_and_says_so(tmp_path: Path) -> None:
    """The lease of the cut begins there, too."""
    with running(tmp_path) as live:
        _filled(live)
        _purge(live, 12)
        (part,) = live.broker.cuts.take(STREAM, owner="me", ttl_ms=60_000).partitions
        assert (part.start, part.cold_end, part.hot_end, part.purged_end) == (12, 12, 40, 12)
        (hole,) = part.holes
        assert (hole.start, hole.end, hole.reason) == (0, 12, "purge")
        with pytest.raises(HeldByLeaseError):
            _purge(live, 13)
