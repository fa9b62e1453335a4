"""Reading ranges from both tiers of a broker in memory, without a network."""

from __future__ import annotations

import threading
from collections.abc import Callable, Iterator
from typing import Any

import pyarrow as pa
import pytest

from broker.adapters.reading.rows import _DECODING, read_rows, resolve
from broker.codec.flight.protocol import AtTime, ReadRequest, RowsMark
from broker.codec.record_batch import prepare
from broker.errors import (
    GapError,
    NotLeaderError,
    OffsetOutOfRangeError,
    ShuttingDownError,
    StreamRecreatedError,
    TruncatedError,
    UnknownPartitionError,
    UnknownStreamError,
)
from broker.model.epochs import LeaderEpoch
from broker.model.ids import StreamUuid
from broker.model.offsets import Offset, OffsetRange
from broker.model.stream import StreamConfig
from broker.ports.tiering import ColdRows
from simkit.brokers.memory_broker import MemoryBroker, numbered, records
from simkit.brokers.memory_partition import MemoryPartition
from simkit.waiting import wait_until

BATCH = 10  # records per stored batch
COUNT = 100  # records in the stream


@pytest.fixture
def broker() -> Iterator[MemoryBroker]:
    """Give a broker with one stream of 100 records in ten batches."""
    broker = MemoryBroker()
    broker.streams.create("s", StreamConfig(subject="s"))
    for start in range(0, COUNT, BATCH):
        put(broker, numbered(start, BATCH))
    yield broker
    broker.close()


def put(broker: MemoryBroker, batch: pa.RecordBatch) -> None:
    """Store a batch and wait until it is."""
    stored = threading.Event()
    prepared = prepare(batch, now_us=broker.clock.now_us())
    broker.partitions.handle("s", 0).submit([prepared], lambda _: stored.set())
    assert stored.wait(60)


def read(broker: MemoryBroker, **request: Any) -> list[tuple[pa.RecordBatch, RowsMark]]:
    """Return everything that a request gives."""
    wanted = resolve(broker, ReadRequest(**{"stream": "s", "partition": 0, **request}))
    return list(read_rows(broker, wanted, idle_check_ms=10, check_stop=lambda: False))


def offsets(found: list[tuple[pa.RecordBatch, RowsMark]]) -> list[int]:
    """Return the offsets of all rows, and check them against the marks."""
    for rows, mark in found:
        got = rows.column("offset").to_pylist()
        assert got == list(range(mark.base_offset, mark.end_offset))
    return [offset for rows, _ in found for offset in rows.column("offset").to_pylist()]


@pytest.mark.parametrize(("start", "end"), [(0, 100), (0, 1), (99, 100), (5, 15), (50, 50)])
@pytest.mark.parametrize("log_start", [0, 50, 100])
def test_a_range_is_exact_wherever_it_lies(
    broker: MemoryBroker, start: int, end: int, log_start: int
) -> None:
    """Rows come from the table, from the log, or from both, with the same result."""
    if log_start:
        broker.partitions.handle("s", 0).make_cold(Offset(log_start))
    found = read(broker, start=start, end=Offset(end))
    assert offsets(found) == list(range(start, end))
    cold = OffsetRange(Offset(start), Offset(min(end, log_start))) if start < log_start else None
    assert broker.cold_reads == ([cold] if cold is not None and len(cold) else [])


@pytest.mark.parametrize("columns", [("value",), ("value", "offset"), ("partition", "subject")])
def test_cold_rows_have_the_columns_asked(broker: MemoryBroker, columns: tuple[str, ...]) -> None:
    """Offsets are checked also where the client did not ask for them, and not sent then."""
    broker.partitions.handle("s", 0).make_cold(Offset(50))
    found = read(broker, columns=columns)
    assert {tuple(rows.schema.names) for rows, _ in found} == {columns}
    assert sum(rows.num_rows for rows, _ in found) == COUNT
    assert next(mark.base_offset for _, mark in found) == 0


def test_reads_of_many_batches_decode_in_turn_and_those_of_few_do_not_wait(
    broker: MemoryBroker,
) -> None:
    """A crowd of readers far behind does not hold up those who follow."""
    for number in range(7):
        put(broker, numbered(COUNT + number, 1))
    few, many = COUNT - 9 * BATCH, 0
    found: list[tuple[pa.RecordBatch, RowsMark]] = []
    waits = threading.Thread(target=lambda: found.extend(read(broker, start=many)))
    with _DECODING.take():
        assert offsets(read(broker, start=few)) == list(range(few, COUNT + 7))
        waits.start()
        wait_until(lambda: len(_DECODING._waiting) == 1, "the read of 17 batches waits")
        assert not found
    waits.join(60)
    assert offsets(found) == list(range(COUNT + 7))


def test_without_an_end_a_read_stops_at_the_high_watermark_of_its_beginning(
    broker: MemoryBroker,
) -> None:
    """Records that come while a read runs do not make it longer."""
    wanted = resolve(broker, ReadRequest(stream="s", partition=0))
    put(broker, numbered(100, 10))
    found = list(read_rows(broker, wanted, idle_check_ms=10, check_stop=lambda: False))
    assert offsets(found) == list(range(100))


def test_latest_is_the_high_watermark(broker: MemoryBroker) -> None:
    """A read from the latest offset without following is empty."""
    assert read(broker, start="latest") == []


@pytest.mark.parametrize(
    ("request_", "bad"),
    [
        ({"start": 101}, 101),
        ({"start": 0, "end": 101}, 101),
        ({"start": 101, "follow": True}, 101),
    ],
)
def test_offsets_out_of_range_are_refused_with_the_facts(
    broker: MemoryBroker, request_: dict[str, Any], bad: int
) -> None:
    """The error says which offset was wrong and what there is."""
    with pytest.raises(OffsetOutOfRangeError) as caught:
        read(broker, **request_)
    facts = caught.value.facts
    assert (facts["offset"], facts["start"], facts["end"]) == (bad, 0, 100)


def test_another_incarnation_is_refused(broker: MemoryBroker) -> None:
    """A saved position does not apply to a stream that was deleted and made again."""
    other = StreamUuid("0f8fad5b-d9cb-469f-a165-70867728950e")
    with pytest.raises(StreamRecreatedError):
        read(broker, stream_uuid=other)


def test_what_does_not_exist_is_refused(broker: MemoryBroker) -> None:
    """Streams and partitions are looked up before anything is read."""
    with pytest.raises(UnknownStreamError):
        read(broker, stream="t")
    with pytest.raises(UnknownPartitionError):
        read(broker, partition=1)


@pytest.mark.parametrize("log_start", [0, 10, 20])
@pytest.mark.parametrize(
    ("stamp_us", "expected"),
    [(0, 0), (1_000, 0), (1_001, 1), (2_004, 14), (2_005, 20), (9_999, 20)],
)
def test_a_start_by_time_is_the_first_record_that_reaches_it(
    stamp_us: int, expected: int, log_start: int
) -> None:
    """The exact record is found inside its batch, in either tier; later than all is the end."""
    broker = MemoryBroker()
    broker.streams.create("s", StreamConfig(subject="s"))
    for first in (1_000, 2_000):
        stamps = [first + min(n, 4) for n in range(10)]
        put(broker, records([b"x"] * 10, timestamp=pa.array(stamps)))
    if log_start:
        broker.partitions.handle("s", 0).make_cold(Offset(log_start))
    wanted = resolve(broker, ReadRequest(stream="s", partition=0, start=AtTime(stamp_us)))
    assert wanted.start == expected
    broker.close()


@pytest.mark.parametrize("already_cold", [0, 10])
@pytest.mark.parametrize("stamp_us", [1_000, 2_002, 3_001])
@pytest.mark.parametrize("moment", ["before", "after"])
def test_a_time_is_found_in_what_is_freed_during_the_look(
    monkeypatch: pytest.MonkeyPatch, moment: str, stamp_us: int, already_cold: int
) -> None:
    """The cleaner frees segments before or after the look into the local log."""
    broker = MemoryBroker()
    broker.streams.create("s", StreamConfig(subject="s"))
    for first in (1_000, 2_000, 3_000, 4_000):
        put(broker, records([b"x"] * 10, timestamp=pa.array(range(first, first + 10))))
    request = ReadRequest(stream="s", partition=0, start=AtTime(stamp_us))
    partition = broker.partitions.handle("s", 0)
    expected = resolve(broker, request).start
    if already_cold:
        partition.make_cold(Offset(already_cold))
    look = partition.offset_at

    def freeing(stamp_us: int) -> Offset:
        found = look(stamp_us) if moment == "after" else None
        partition.make_cold(Offset(30))
        return look(stamp_us) if found is None else found

    monkeypatch.setattr(partition, "offset_at", freeing)
    assert resolve(broker, request).start == expected
    broker.close()


def follow(
    broker: MemoryBroker, check_stop: Callable[[], bool], **request: Any
) -> Iterator[tuple[pa.RecordBatch, RowsMark]]:
    """Begin to follow the stream."""
    wanted = resolve(broker, ReadRequest(stream="s", partition=0, follow=True, **request))
    return read_rows(broker, wanted, idle_check_ms=5, check_stop=check_stop)


def test_a_follower_sees_what_comes_next(broker: MemoryBroker) -> None:
    """New records arrive on the same iterator, in order."""
    rows = follow(broker, lambda: False, start=95)
    assert next(rows)[1].end_offset == 100
    put(broker, numbered(100, 3))
    mark = next(rows)[1]
    assert (mark.base_offset, mark.end_offset) == (100, 103)


def test_a_follower_ends_at_its_end(broker: MemoryBroker) -> None:
    """A range that lies in the future is waited for, and not exceeded."""
    rows = follow(broker, lambda: False, start=90, end=Offset(103))
    assert next(rows)[1].end_offset == 100
    put(broker, numbered(100, 10))
    assert next(rows)[1].end_offset == 103
    assert next(rows, None) is None


def test_an_idle_follower_notices_that_it_should_stop(broker: MemoryBroker) -> None:
    """The wait for records is bounded; the question is asked again after it."""
    asked = iter([False, False, False, True])
    assert list(follow(broker, lambda: next(asked), start="latest")) == []


def test_a_follower_of_a_deleted_stream_hears_of_it(broker: MemoryBroker) -> None:
    """Nobody waits for records that cannot come."""
    rows = follow(broker, lambda: False, start="latest")
    broker.streams.delete("s")
    with pytest.raises(UnknownStreamError):
        next(rows)


def test_records_that_become_cold_while_they_are_read_come_from_the_table(
    broker: MemoryBroker, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A segment freed between two looks at the log is no gap and no error."""
    read_log = MemoryPartition.read

    def freed_first(
        self: MemoryPartition, start: Offset, end: Offset, *, bytes_max: int
    ) -> list[Any]:
        self.make_cold(Offset(50))
        return read_log(self, start, end, bytes_max=bytes_max)

    monkeypatch.setattr(MemoryPartition, "read", freed_first)
    assert offsets(read(broker)) == list(range(100))


@pytest.mark.parametrize("damage", ["head", "middle", "tail", "twice", "beyond"])
def test_a_table_that_does_not_hold_the_range_is_an_error(
    broker: MemoryBroker, monkeypatch: pytest.MonkeyPatch, damage: str
) -> None:
    """Whatever is missing, doubled or too much on the cold side, no row of it passes for whole."""
    broker.partitions.handle("s", 0).make_cold(Offset(50))
    real = MemoryBroker.read

    def damaged(self: MemoryBroker, *args: Any) -> ColdRows:
        batches = list(real(self, *args).rows)
        match damage:
            case "head":
                batches[0] = batches[0].slice(1)
            case "middle":
                batches[1] = pa.concat_batches([batches[1].slice(0, 4), batches[1].slice(5)])
            case "tail":
                batches.pop()
            case "twice":
                batches.insert(1, batches[1])
            case _:
                batches[-1] = pa.concat_batches([batches[-1], numbered_rows(50)])
        return ColdRows(iter(batches))

    def numbered_rows(offset: int) -> pa.RecordBatch:
        rows = next(real(broker, "s", 0, Offset(0), Offset(1), first_schema).rows)
        place = rows.schema.get_field_index("offset")
        return rows.set_column(place, rows.schema.field(place), pa.array([offset]))

    first_schema = resolve(broker, ReadRequest(stream="s", partition=0)).schema
    monkeypatch.setattr(MemoryBroker, "read", damaged)
    with pytest.raises(GapError):
        read(broker)


def test_who_goes_on_is_told_if_its_record_is_gone(broker: MemoryBroker) -> None:
    """The record before the start must have the leader epoch that the reader names."""
    mine = read(broker, start=50, end=Offset(55), leader_epoch=LeaderEpoch(1))
    assert offsets(mine) == list(range(50, 55))
    with pytest.raises(TruncatedError) as caught:
        read(broker, start=50, leader_epoch=LeaderEpoch(2))
    assert (caught.value.offset, caught.value.leader_epoch) == (50, 2)


@pytest.mark.parametrize("request_", [{}, {"follow": True}])
def test_a_position_above_the_end_is_a_truncation(
    broker: MemoryBroker, request_: dict[str, Any]
) -> None:
    """A read returns at once, without waiting for more records to fill it."""
    with pytest.raises(TruncatedError) as caught:
        read(broker, start=101, leader_epoch=LeaderEpoch(1), **request_)
    assert (caught.value.offset, caught.value.end) == (101, 100)


def test_what_is_in_the_table_is_not_doubted(broker: MemoryBroker) -> None:
    """Records below the local log were committed, whatever epochs the log still knows."""
    broker.partitions.handle("s", 0).make_cold(Offset(60))
    found = read(broker, start=50, end=Offset(70), leader_epoch=LeaderEpoch(1))
    assert offsets(found) == list(range(50, 70))


def test_a_follower_looks_again_when_the_leadership_changes(broker: MemoryBroker) -> None:
    """The next leader may have put another record where the last one was read."""
    rows = follow(broker, lambda: False, start=95)
    assert next(rows)[1].end_offset == 100
    partition = broker.partitions.handle("s", 0)
    partition.rewrite_last(LeaderEpoch(2))
    put(broker, numbered(100, 3))
    with pytest.raises(TruncatedError) as caught:
        next(rows)
    assert (caught.value.offset, caught.value.leader_epoch) == (100, 1)


def test_what_was_read_before_a_change_of_leaders_is_read_again(
    broker: MemoryBroker, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The log may have been cut between the read and the answer, so these rows are not sent."""
    partition, real, reads = broker.partitions.handle("s", 0), MemoryPartition.read, []

    def read_and_change(self: MemoryPartition, *args: Any, **options: Any) -> Any:
        found = real(self, *args, **options)
        reads.append(found[0].header.base_offset)
        if len(reads) == 1:
            self.rewrite_last(LeaderEpoch(2))
        return found

    monkeypatch.setattr(MemoryPartition, "read", read_and_change)
    found = read(broker, start=90, end=Offset(100))
    assert offsets(found) == list(range(90, 100))
    assert [mark.leader_epoch for _, mark in found] == [2]
    assert (reads, partition.leader_epoch) == ([90, 90], 2)


def test_only_a_leader_serves_what_is_not_committed(broker: MemoryBroker) -> None:
    """A replica that follows cannot know what its leader will truncate."""
    rows = follow(broker, lambda: False, start=95, uncommitted=True)
    assert next(rows)[1].end_offset == 100
    broker.partitions.handle("s", 0).leads = False
    with pytest.raises(NotLeaderError):
        next(rows)
    with pytest.raises(NotLeaderError):
        read(broker, uncommitted=True)


def test_a_follower_of_a_replica_that_closes_is_told_so(broker: MemoryBroker) -> None:
    """No record comes here any more: to look for one again and again would never end."""
    looks = iter(range(50))
    rows = follow(broker, lambda: next(looks, None) is None, start=100)
    broker.partitions.handle("s", 0).close()
    with pytest.raises(ShuttingDownError):
        next(rows, None)


def test_a_time_is_not_looked_for_below_a_stale_high_watermark_only(broker: MemoryBroker) -> None:
    """A new leader knows late what is committed; a read by time must not begin too early."""
    partition = broker.partitions.handle("s", 0)
    later_us = broker.clock.now_us() + 1
    partition.know(Offset(50))
    partition.told_end = NotLeaderError("not known yet")
    wanted = ReadRequest(stream="s", partition=0, start=AtTime(later_us), follow=True)
    with pytest.raises(NotLeaderError):
        resolve(broker, wanted)
    early = ReadRequest(stream="s", partition=0, start=AtTime(0), follow=True)
    assert resolve(broker, early).start == 0, "no leader is needed for what is known here"
    partition.know(None)
    partition.told_end = Offset(COUNT)
    assert resolve(broker, wanted).start == COUNT
