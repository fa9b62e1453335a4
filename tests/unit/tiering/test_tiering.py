"""Tiering by itself: threads, timers, flush, outages, and the RemoteLog port.

The file is not split: its tests share one rig.
"""

from __future__ import annotations

import threading
from collections.abc import Callable, Iterator, Mapping
from pathlib import Path

import pyarrow as pa
import pytest

from broker.codec.schema import ROW_SCHEMA
from broker.errors import (
    BatchCorruptError,
    CorruptDataError,
    ForeignHistoryError,
    HistoryClaimedError,
    OffsetOutOfRangeError,
    RemoteTierUnavailableError,
    TableMismatchError,
    TableRolledBackError,
    UnknownStreamError,
)
from broker.model.ids import PartitionId
from broker.model.lineage import Lineage
from broker.model.offsets import Offset, OffsetRange
from broker.model.stream import Stream
from simkit.tier import source as simulated
from simkit.tier.faulty_store import FaultyStore
from simkit.tier.source import (
    TIMESTAMP_US_LAST,
    MemoryTierCatalog,
    MemoryTierSource,
    make_stream,
)
from simkit.wall_clock import WallClock
from tiering.config import TieringConfig
from tiering.read.lake import Lake
from tiering.store.location import StoreConfig
from tiering.store.opening import open_store
from tiering.tiering import Tiering

WAIT_S = 60.0
QUICK = TieringConfig(
    check_interval_ms=20, object_bytes_max=1, backoff_ms_min=5, backoff_ms_max=20, workers_count=2
)


class Rig:
    """A running Tiering over in-memory logs and a local lake that can be switched off."""

    def __init__(self, root: Path, config: TieringConfig = QUICK) -> None:
        self.store = FaultyStore(open_store(StoreConfig.from_env(str(root))))
        self.lake = Lake(self.store, cluster="rig")
        self.catalog = MemoryTierCatalog()
        self.events: list[tuple[str, Mapping[str, object]]] = []
        self.happened = threading.Condition()
        self.tiering = Tiering(self.lake, self.catalog, WallClock(), config, observer=self._observe)

    def _observe(self, event: str, facts: Mapping[str, object]) -> None:
        with self.happened:
            self.events.append((event, facts))
            self.happened.notify_all()

    def until(self, holds: Callable[[], bool]) -> None:
        """Wait for something that an event of tiering announces."""
        with self.happened:
            assert self.happened.wait_for(holds, WAIT_S), self.events[-3:]

    def rows(self, stream: Stream, source: MemoryTierSource) -> pa.Table:
        """Read everything cold of a partition through the port."""
        batches = self.tiering.read(
            stream, source.partition_id.number, Offset(0), source.cold_end, ROW_SCHEMA
        )
        return pa.Table.from_batches(batches.rows, ROW_SCHEMA)


@pytest.fixture
def rig(tmp_path: Path) -> Iterator[Rig]:
    """A rig that is stopped at the end."""
    rig = Rig(tmp_path / "lake")
    yield rig
    rig.tiering.stop()


def test_sealed_segments_ship_by_themselves(rig: Rig) -> None:
    """Without a flush the sealed segments of all partitions arrive in the table."""
    stream = make_stream(partitions=3)
    sources = rig.catalog.add(stream)
    for source in sources:
        source.fill(2, 30)
    rig.tiering.start()
    rig.until(lambda: all(source.cold_end == 60 for source in sources))
    for source in sources:
        assert rig.rows(stream, source).equals(source.truth())
    shipped = {one.partition: one.shipped_segments_total for one in rig.tiering.stats()}
    assert shipped == {0: 2, 1: 2, 2: 2}
    assert all(one.last_shipped_us > 0 for one in rig.tiering.stats())


def test_a_time_is_looked_up_without_reading_older_objects(rig: Rig) -> None:
    """The answer is the first record that reaches the time; statistics rule out the other files."""
    stream = make_stream()
    source = rig.catalog.add(stream)[0]
    source.fill(4, 30)
    rig.tiering.start()
    rig.until(lambda: source.cold_end == 120)
    stamps = source.truth().column("timestamp").cast(pa.int64()).to_pylist()
    whole = (Offset(0), source.cold_end)
    rig.tiering.offset_at(stream, 0, *whole, stamps[0])  # proves the objects, once
    for wanted in (stamps[0], stamps[45] + 1, stamps[100], stamps[119] + 1):
        expected = next((at for at, stamp in enumerate(stamps) if stamp >= wanted), None)
        before = rig.store.calls["get"]
        assert rig.tiering.offset_at(stream, 0, *whole, wanted) == expected
        read = rig.store.calls["get"] - before
        assert read <= 4, f"{read} requests: one object of four was to be read"


def test_a_record_of_the_last_time_that_a_log_takes_is_shipped(
    rig: Rig, monkeypatch: pytest.MonkeyPatch
) -> None:
    """So are the records behind it; reads and lookups of a time find all of them."""
    stream = make_stream()
    source = rig.catalog.add(stream)[0]
    with monkeypatch.context() as patched:
        patched.setattr(simulated, "FIRST_US", TIMESTAMP_US_LAST - 1_499)
        patched.setattr(source._random, "randrange", lambda end: end - 1)
        source.fill(1, 1)
    source.fill(2, 30)
    rig.tiering.start()
    rig.until(lambda: source.cold_end == 61)
    found = rig.rows(stream, source)
    assert found.equals(source.truth())
    assert found.column("timestamp").cast(pa.int64())[0].as_py() == TIMESTAMP_US_LAST
    whole = (Offset(0), source.cold_end)
    assert rig.tiering.offset_at(stream, 0, *whole, TIMESTAMP_US_LAST) == 0
    assert rig.tiering.stats()[0].failures_total == 0


def test_a_sealed_segment_wakes_the_uploader(tmp_path: Path) -> None:
    """With a timer of an hour, sealing alone makes it ship."""
    rig = Rig(tmp_path, TieringConfig(check_interval_ms=3_600_000, object_bytes_max=1))
    stream = make_stream()
    source = rig.catalog.add(stream)[0]
    rig.tiering.start()
    source.append(10)
    rig.catalog.seal(stream)
    rig.until(lambda: source.cold_end == 10)
    source.append(10)
    rig.catalog.seal(stream)
    rig.until(lambda: source.cold_end == 20)
    rig.tiering.stop()


def test_flush_seals_ships_and_waits(rig: Rig) -> None:
    """Unsealed records, too, are in the table when flush returns."""
    stream = make_stream(partitions=2)
    sources = rig.catalog.add(stream)
    rig.tiering.start()
    for source in sources:
        source.append(25)
    statuses = rig.tiering.flush(stream, timeout_ms=60_000)
    assert [(one.partition, one.cold, one.unshipped_bytes) for one in statuses] == [
        (0, OffsetRange(Offset(0), Offset(25)), 0),
        (1, OffsetRange(Offset(0), Offset(25)), 0),
    ]
    state = rig.tiering.table_state(stream)
    assert state.files_bytes == sum(one.table_bytes or 0 for one in statuses) > 0
    assert all(one.table_bytes for one in statuses)
    assert state.files_count == 2
    assert state.ranges[1] == OffsetRange(Offset(0), Offset(25))
    assert state.version is not None


def test_flush_of_nothing_returns_at_once(rig: Rig) -> None:
    """An empty stream, and one that is cold already."""
    stream = make_stream()
    source = rig.catalog.add(stream)[0]
    rig.tiering.start()
    (empty,) = rig.tiering.flush(stream, timeout_ms=60_000)
    assert (empty.cold, empty.table_bytes) == (OffsetRange(Offset(0), Offset(0)), 0)
    assert rig.tiering.table_state(stream).version is None
    source.append(5)
    for _ in range(2):
        assert rig.tiering.flush(stream, timeout_ms=60_000)[0].cold.end == 5


def test_an_outage_is_waited_out_without_anybody(rig: Rig) -> None:
    """The store is down while segments are sealed; once it is back they ship."""
    stream = make_stream()
    source = rig.catalog.add(stream)[0]
    rig.store.down = True
    rig.tiering.start()
    source.fill(3, 20)
    rig.catalog.seal(stream)
    rig.until(lambda: sum(name == "tier_failed" for name, _ in rig.events) >= 3)
    status = rig.tiering.status(stream)[0]
    assert status.last_error is not None
    assert "RemoteTierUnavailableError" in status.last_error
    assert status.unshipped_bytes > 0
    assert status.last_shipped_us is None
    with pytest.raises(RemoteTierUnavailableError):
        rig.tiering.flush(stream, timeout_ms=50)
    rig.store.down = False
    rig.until(lambda: source.cold_end == 60)
    assert rig.rows(stream, source).equals(source.truth())
    assert rig.tiering.flush(stream, timeout_ms=60_000)[0].last_error is None
    assert rig.tiering.stats()[0].failures_total >= 3


def test_a_failing_partition_keeps_its_distance(tmp_path: Path) -> None:
    """Segments that are sealed meanwhile do not bring it forward; a flush does."""
    hour_ms = 3_600_000
    config = TieringConfig(
        check_interval_ms=hour_ms, object_bytes_max=1, backoff_ms_min=hour_ms,
        backoff_ms_max=hour_ms, workers_count=1,
    )  # fmt: skip
    rig = Rig(tmp_path, config)
    broken = make_stream(name="broken")
    whole = make_stream(name="whole", uuid="0b5e0f3e-5a0c-4c7c-9a54-1f1f5a6b7c8e")
    (bad,), (good,) = rig.catalog.add(broken), rig.catalog.add(whole)
    bad.fill(1, 20)
    bad.damage(5)

    def failures() -> int:
        return sum(name == "tier_failed" for name, _ in rig.events)

    rig.tiering.start()
    rig.until(lambda: failures() == 1)
    bad.append(10)
    rig.catalog.seal(broken)
    for end in (10, 20):  # the one worker takes the partition that is due longest
        good.append(10)
        rig.catalog.seal(whole)
        rig.until(lambda due=end: good.cold_end == due)  # type: ignore[misc]
    assert failures() == 1
    with pytest.raises(BatchCorruptError):
        rig.tiering.flush(broken, timeout_ms=60_000)
    assert failures() == 2
    rig.tiering.stop()


def test_flush_reports_damage_at_once(rig: Rig) -> None:
    """A damaged local batch: flush raises what is wrong and does not wait for its timeout."""
    stream = make_stream()
    source = rig.catalog.add(stream)[0]
    source.append(20)
    source.damage(5)
    rig.tiering.start()
    with pytest.raises(BatchCorruptError):
        rig.tiering.flush(stream, timeout_ms=60_000)


def test_one_broken_partition_does_not_stop_the_others(rig: Rig) -> None:
    """Partition 0 is damaged, partition 1 ships."""
    stream = make_stream(partitions=2)
    bad, good = rig.catalog.add(stream)
    bad.fill(1, 20)
    bad.damage(5)
    good.fill(2, 20)
    rig.tiering.start()
    rig.until(lambda: good.cold_end == 40)
    rig.until(lambda: any(name == "tier_failed" for name, _ in rig.events))
    assert bad.cold_end == 0
    assert [one.last_error is None for one in rig.tiering.status(stream)] == [False, True]


def test_a_bug_in_one_partition_does_not_stop_the_others(
    rig: Rig, monkeypatch: pytest.MonkeyPatch
) -> None:
    """An unexpected exception is reported, and the partition is tried again later."""
    stream = make_stream(partitions=2)
    bad, good = rig.catalog.add(stream)
    bad.fill(1, 20)
    good.fill(1, 20)

    def broken() -> list[object]:
        raise ZeroDivisionError

    monkeypatch.setattr(bad, "segments", broken)
    rig.tiering.start()
    rig.until(lambda: good.cold_end == 20)
    rig.until(lambda: any(name == "tier_crashed" for name, _ in rig.events))
    rig.until(lambda: rig.tiering.stats()[0].failures_total > 0)
    monkeypatch.undo()
    rig.until(lambda: bad.cold_end == 20)


def test_a_removed_stream_is_left_alone(rig: Rig) -> None:
    """After a deletion nothing of it is shipped, and a flush says so."""
    stream = make_stream()
    source = rig.catalog.add(stream)[0]
    source.fill(1, 10)
    rig.tiering.start()
    rig.until(lambda: source.cold_end == 10)
    rig.catalog.remove(stream)
    other = make_stream(name="other", uuid="11111111-2222-3333-4444-555555555555")
    rig.catalog.add(other)[0].fill(1, 10)
    rig.tiering.flush(other, timeout_ms=60_000)
    rig.until(lambda: [one.stream for one in rig.tiering.stats()] == ["other"])


def test_stop_and_start_again_continues(tmp_path: Path) -> None:
    """What a stopped tiering left is shipped by the next, with what came in between."""
    first = Rig(tmp_path / "lake")
    stream = make_stream()
    source = first.catalog.add(stream)[0]
    source.fill(2, 20)
    first.tiering.start()
    first.until(lambda: source.cold_end >= 20)
    first.tiering.stop()
    source.fill(2, 20)
    source.free_local()
    second = Rig(tmp_path / "lake")
    second.catalog = first.catalog
    again = Tiering(second.lake, first.catalog, WallClock(), QUICK)
    again.start()
    again.flush(stream, timeout_ms=60_000)
    again.stop()
    assert source.cold_end == 80
    batches = again.read(stream, 0, Offset(0), Offset(80), ROW_SCHEMA).rows
    assert pa.Table.from_batches(batches, ROW_SCHEMA).equals(source.truth())


def test_two_tierings_of_one_log_end_exact(tmp_path: Path) -> None:
    """A restarted twin while the old process still ships: for each range, one of them wins."""
    rig = Rig(tmp_path / "lake")
    stream = make_stream(partitions=2)
    sources = rig.catalog.add(stream)
    for source in sources:
        source.fill(6, 15)
    twin = Tiering(Lake(rig.store, cluster="rig"), rig.catalog, WallClock(), QUICK)
    rig.tiering.start()
    twin.start()
    try:
        for tiering in (rig.tiering, twin):
            tiering.flush(stream, timeout_ms=60_000)
    finally:
        twin.stop()
    for source in sources:
        assert source.cold_end == 90
        assert rig.rows(stream, source).equals(source.truth())


def test_reads_are_exact_or_refused(rig: Rig) -> None:
    """A projection in any order; ranges beyond the table are refused."""
    stream = make_stream()
    source = rig.catalog.add(stream)[0]
    with pytest.raises(OffsetOutOfRangeError):
        rig.tiering.read(stream, 0, Offset(0), Offset(1), ROW_SCHEMA)
    source.append(30)
    rig.tiering.start()
    rig.tiering.flush(stream, timeout_ms=60_000)
    schema = pa.schema([ROW_SCHEMA.field(name) for name in ("value", "partition", "offset")])
    rows = pa.Table.from_batches(rig.tiering.read(stream, 0, Offset(3), Offset(9), schema).rows)
    assert rows.equals(source.truth(3, 9).select(schema.names))
    with pytest.raises(OffsetOutOfRangeError):
        list(rig.tiering.read(stream, 0, Offset(3), Offset(31), schema).rows)


def test_no_partition_ships_over_the_lost_commit_of_another_one(rig: Rig, tmp_path: Path) -> None:
    """A restarted broker knows by the metadata how far every partition reached."""
    stream = make_stream(partitions=2)
    sources = rig.catalog.add(stream)
    rig.tiering.start()
    for source in sources:
        source.fill(1, 10)
        rig.tiering.flush(stream, timeout_ms=60_000)
    rig.tiering.stop()
    log = rig.lake.table(stream).store.config.root / "_delta_log"
    max(log.glob("*.json")).unlink()  # a commit of partition 1
    left = sorted(log.glob("*.json"))
    again = Rig(tmp_path / "lake")
    again.catalog = rig.catalog
    again.tiering = Tiering(again.lake, rig.catalog, WallClock(), QUICK, observer=again._observe)
    for source in sources:
        source.fill(1, 10)
    again.tiering.start()
    again.until(lambda: sum(one.failures_total > 0 for one in again.tiering.stats()) == 2)
    again.tiering.stop()
    assert sorted(log.glob("*.json")) == left
    assert [source.cold_end for source in sources] == [10, 10]


def test_the_table_state_refuses_a_rolled_back_table(rig: Rig) -> None:
    """The metadata knows what was committed; an older table is not served."""
    stream = make_stream()
    source = rig.catalog.add(stream)[0]
    source.append(10)
    rig.tiering.start()
    rig.tiering.flush(stream, timeout_ms=60_000)
    rig.tiering.stop()
    folder = rig.lake.table(stream).store.config.root / "_delta_log"
    max(folder.glob("*.json")).unlink()
    with pytest.raises(TableRolledBackError):
        rig.tiering.table_state(stream)


def test_a_table_of_another_history_is_refused_by_everybody(rig: Rig) -> None:
    """A copy ships first: state, reads and flushes of the other are refused, its own are not."""
    stream = make_stream(partitions=2)
    for source in rig.catalog.add(stream):
        source.append(20)
    rig.tiering.start()
    rig.tiering.flush(stream, timeout_ms=60_000)
    catalog = rig.catalog.copied()
    for source in catalog.of(stream):
        source.lead_again()
    twin = Tiering(Lake(rig.store, cluster="rig"), catalog, WallClock(), QUICK)
    twin.start()
    try:
        mine, other = rig.catalog.of(stream)[1], catalog.of(stream)[1]
        other.append(10)
        twin.flush(stream, timeout_ms=60_000)
        mine.append(10)
        with pytest.raises(ForeignHistoryError):
            rig.tiering.table_state(stream)
        with pytest.raises(ForeignHistoryError):
            rig.tiering.read(stream, 1, Offset(0), Offset(20), ROW_SCHEMA)
        with pytest.raises((ForeignHistoryError, HistoryClaimedError)):
            rig.tiering.flush(stream, timeout_ms=60_000)
        rig.until(lambda: mine.refused is not None)
        why = str(rig.tiering.status(stream)[1].last_error)  # of whoever noticed first
        assert why.partition(":")[0] in ("ForeignHistoryError", "HistoryClaimedError"), why
        assert mine.cold_end == 20
        assert twin.table_state(stream).ranges[1].end == 30
        rows = twin.read(stream, 1, Offset(0), Offset(30), ROW_SCHEMA).rows
        assert pa.Table.from_batches(rows, ROW_SCHEMA).equals(other.truth())
    finally:
        twin.stop()


def test_a_leader_that_is_not_known_yet_is_asked_for(rig: Rig) -> None:
    """A new leader's commit may be seen before its leadership is: the metadata is asked again."""
    stream = make_stream()
    source = rig.catalog.add(stream)[0]
    source.lead_again()
    source.append(20)
    rig.tiering.start()
    rig.tiering.flush(stream, timeout_ms=60_000)
    late = LateCatalog(rig.catalog)
    reader = Tiering(Lake(rig.store, cluster="rig"), late, WallClock(), QUICK)
    assert reader.table_state(stream).ranges[0].end == 20
    assert late.asked == [False, True]
    assert reader.table_state(stream).ranges[0].end == 20
    assert late.asked == [False, True]


class LateCatalog(MemoryTierCatalog):
    """Knows the first leadership only, until it is asked to look again; leads nothing."""

    def __init__(self, behind: MemoryTierCatalog) -> None:
        super().__init__()
        self._behind = behind
        self.asked: list[bool] = []

    def history(self, partition: PartitionId, *, refreshed: bool) -> tuple[Lineage, Offset]:
        """Return the known leaderships."""
        self.asked.append(refreshed)
        lineage, _ = self._behind.history(partition, refreshed=refreshed)
        return (lineage if refreshed else lineage[:1]), Offset(0)


def test_a_recreated_stream_gets_a_table_of_its_own(rig: Rig) -> None:
    """A folder with the stream's name that is not empty is not used again."""
    name_for = rig.tiering.table_name_for
    first = make_stream()
    assert name_for("orders", first.uuid, "default") == "orders"
    source = rig.catalog.add(first)[0]
    source.append(3)
    rig.tiering.start()
    rig.tiering.flush(first, timeout_ms=60_000)
    uuid = "11111111-2222-3333-4444-555555555555"
    assert name_for("orders", uuid, "default") == "orders-11111111"
    second = make_stream(uuid=uuid, table_name="orders-11111111")
    other = rig.catalog.add(second)[0]
    other.append(4)
    rig.tiering.flush(second, timeout_ms=60_000)
    assert rig.tiering.table_state(first).ranges[0].end == 3
    assert rig.tiering.table_state(second).ranges[0].end == 4


def test_a_folder_is_a_streams_before_anything_is_in_it(rig: Rig) -> None:
    """The claim of a stream that was deleted meanwhile is on its way: the next one has another.

    Once the folder looked free, and the claim that came late was taken for that of a copy: the new
    stream took no writes for ever.
    """
    name_for = rig.tiering.table_name_for
    first, uuid = make_stream(), "11111111-2222-3333-4444-555555555555"
    assert name_for("orders", first.uuid, "default") == "orders"
    assert name_for("orders", uuid, "default") == "orders-11111111"
    for _ in range(2):
        assert name_for("orders", first.uuid, "default") == "orders", "a repeated call"
        assert name_for("orders", uuid, "default") == "orders-11111111"
    assert name_for("orders-11111111", first.uuid, "default") == f"orders-11111111-{first.uuid[:8]}"
    lost = "11111111-9999-3333-4444-555555555555"
    with pytest.raises(TableMismatchError, match="orders-11111111"):
        name_for("orders", lost, "default")


def test_flush_of_a_stream_that_is_not_ours_is_refused(rig: Rig) -> None:
    """A stream whose partitions another broker leads has no sources here."""
    rig.tiering.start()
    assert rig.tiering.flush(make_stream(), timeout_ms=1_000) == []


def test_errors_of_tiering_are_of_our_tree() -> None:
    """The errors of a flush are typed, so that a caller can tell what to do."""
    assert not issubclass(CorruptDataError, RemoteTierUnavailableError)
    assert not issubclass(UnknownStreamError, CorruptDataError)
