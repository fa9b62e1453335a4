"""What BrokerApi and its partitions promise; the broker in memory and the real one both keep it."""

from __future__ import annotations

import sys
import threading
from collections.abc import Iterator, Sequence
from pathlib import Path
from queue import SimpleQueue
from typing import Any

import pyarrow as pa
import pytest

from broker.codec.record_batch import PreparedBatch, decode_body, prepare
from broker.errors import (
    ConditionFailedError,
    FencedError,
    FixedSettingError,
    HeadwaterError,
    InvalidRequestError,
    InvalidStreamError,
    NotShippedError,
    OffsetOutOfRangeError,
    PartitionPausedError,
    PartitionReadonlyError,
    PurgedError,
    SequenceGapError,
    StreamExistsError,
    UnknownPartitionError,
    UnknownStreamError,
)
from broker.model.ids import LeaseId, ProducerId
from broker.model.offsets import Offset
from broker.model.records import AppendResult
from broker.model.stream import StreamConfig
from broker.ports.api import BrokerApi
from broker.ports.partition import PartitionHandle, RecordsOutcome
from simkit.brokers.brokers import disk_broker
from simkit.brokers.memory_broker import MemoryBroker, numbered, records

WAIT_S = 60
CONFIG = StreamConfig(subject="s", partitions=2)


@pytest.fixture(params=["memory", "disk"])
def broker(request: pytest.FixtureRequest, tmp_path: Path) -> Iterator[BrokerApi]:
    """Give each implementation in turn, with one stream of two partitions."""
    if request.param == "memory":
        memory = MemoryBroker()
        memory.streams.create("s", CONFIG)
        yield memory
        memory.close()
    else:
        with disk_broker(tmp_path / "data") as real:
            real.streams.create("s", CONFIG)
            yield real


def batch(start: int, count: int, *, producer: int = -1, sequence: int = -1) -> PreparedBatch:
    """Return prepared numbered records."""
    return prepare(
        numbered(start, count),
        now_us=1_000_000 + start,
        producer_id=ProducerId(producer),
        base_sequence=sequence,
    )


def submit(handle: PartitionHandle, *batches: PreparedBatch) -> list[Any]:
    """Submit batches in one call and return their outcomes."""
    answers: SimpleQueue[Sequence[AppendResult | HeadwaterError]] = SimpleQueue()
    handle.writes.submit(batches, answers.put)
    return list(answers.get(timeout=WAIT_S))


def submit_records(
    handle: PartitionHandle, rows: pa.RecordBatch, ids: Sequence[str | None] | None
) -> RecordsOutcome:
    """Submit rows and return where they stand."""
    answers: SimpleQueue[RecordsOutcome | HeadwaterError] = SimpleQueue()
    handle.writes.submit_records(rows, ids, answers.put)
    outcome = answers.get(timeout=WAIT_S)
    assert isinstance(outcome, RecordsOutcome)
    return outcome


def values(handle: PartitionHandle, start: int, end: int) -> list[int]:
    """Return the numbers in the batches that overlap a range."""
    stored = handle.reads.read(Offset(start), Offset(end), bytes_max=1 << 30)
    bodies = [decode_body(item.header, item.body) for item in stored]
    return [int(value) for body in bodies for value in body.column("value").to_pylist()]


def test_streams_live_by_name(broker: BrokerApi) -> None:
    """Created once, found, listed, deleted, gone."""
    stream = broker.streams.get("s")
    assert broker.streams.create("s", CONFIG) == stream
    assert broker.streams.all() == [stream]
    with pytest.raises(StreamExistsError):
        broker.streams.create("s", StreamConfig(subject="s", partitions=3))
    assert broker.streams.delete("s") == stream
    assert broker.streams.all() == []
    with pytest.raises(UnknownStreamError):
        broker.streams.get("s")
    assert broker.streams.create("s", CONFIG).uuid != stream.uuid


def test_what_does_not_exist_is_named(broker: BrokerApi) -> None:
    """Unknown streams and partitions are typed errors."""
    for partition in (-1, 2):
        with pytest.raises(UnknownPartitionError):
            broker.partitions.handle("s", partition)
    with pytest.raises(UnknownStreamError):
        broker.partitions.handle("t", 0)
    with pytest.raises(UnknownStreamError):
        broker.streams.delete("t")
    with pytest.raises(UnknownStreamError):
        broker.cuts.take("t", owner="me", ttl_ms=60_000)


def test_offsets_begin_at_nought_and_follow_each_other(broker: BrokerApi) -> None:
    """Outcomes come one per batch, in order, across calls; partitions are independent."""
    handle = broker.partitions.handle("s", 0)
    first = submit(handle, batch(0, 3), batch(3, 4))
    second = submit(handle, batch(7, 1))
    assert [result.base_offset for result in first + second] == [0, 3, 7]
    assert [result.records_count for result in first + second] == [3, 4, 1]
    assert {result.leader_epoch for result in first + second} == {handle.reads.leader_epoch}
    assert (handle.reads.log_start, handle.reads.high_watermark, handle.reads.log_end) == (0, 8, 8)
    assert broker.partitions.handle("s", 1).reads.log_end == 0
    assert values(handle, 0, 8) == list(range(8))


def test_a_read_gives_whole_batches_that_overlap(broker: BrokerApi) -> None:
    """The first and last may reach beyond the range; one batch comes whatever its size."""
    handle = broker.partitions.handle("s", 0)
    submit(handle, batch(0, 3), batch(3, 3), batch(6, 3))
    assert values(handle, 4, 7) == list(range(3, 9))
    assert values(handle, 3, 6) == [3, 4, 5]
    (only,) = handle.reads.read(Offset(0), Offset(9), bytes_max=1)
    assert (only.header.base_offset, only.header.end_offset) == (0, 3)
    for start, end in ((0, 10), (10, 11)):
        with pytest.raises(OffsetOutOfRangeError):
            handle.reads.read(Offset(start), Offset(end), bytes_max=1)


def test_a_producer_is_recognised(broker: BrokerApi) -> None:
    """The same sequence again is a duplicate; a skipped one is a gap; neither stores anything."""
    handle = broker.partitions.handle("s", 0)
    one = batch(0, 2, producer=9, sequence=0)
    two = batch(2, 3, producer=9, sequence=2)
    assert [result.base_offset for result in submit(handle, one, two)] == [0, 2]
    again = submit(handle, one, two)
    assert [(result.base_offset, result.duplicate) for result in again] == [(0, True), (2, True)]
    (gap,) = submit(handle, batch(9, 1, producer=9, sequence=6))
    assert isinstance(gap, SequenceGapError)
    assert (gap.expected, gap.got) == (5, 6)
    assert handle.reads.log_end == 5


def test_rows_are_recognised_by_their_message_id(broker: BrokerApi) -> None:
    """Ids repeat within a batch and across batches; rows without one are always stored."""
    handle = broker.partitions.handle("s", 0)
    first = submit_records(handle, numbered(0, 4), ["a", None, "b", "a"])
    assert list(first.offsets) == [0, 1, 2, 0]
    assert first.duplicates == frozenset({3})
    second = submit_records(handle, numbered(4, 3), ["b", "c", None])
    assert list(second.offsets) == [2, 3, 4]
    assert second.duplicates == frozenset({0})
    third = submit_records(handle, numbered(9, 1), None)
    assert (list(third.offsets), third.duplicates) == ([5], frozenset())
    assert values(handle, 0, 6) == [0, 1, 2, 5, 6, 9]


def test_rows_with_a_condition_are_stored_at_their_log_end_only(broker: BrokerApi) -> None:
    """At another log end nothing is stored, also for a known id; the condition counts once met."""
    handle = broker.partitions.handle("s", 0)
    answers: SimpleQueue[RecordsOutcome | HeadwaterError] = SimpleQueue()

    def submitted(end: int, ids: Sequence[str | None] | None) -> RecordsOutcome | HeadwaterError:
        handle.writes.submit_records(numbered(7, 1), ids, answers.put, expected_end=Offset(end))
        return answers.get(timeout=WAIT_S)

    stored = submitted(0, ["a"])
    assert isinstance(stored, RecordsOutcome)
    assert list(stored.offsets) == [0]
    for end, ids in ((0, None), (0, ["a"]), (2, ["b"])):
        refused = submitted(end, list(ids) if ids else None)
        assert isinstance(refused, ConditionFailedError)
        assert refused.message == "wrong last sequence: 1"
    assert isinstance(submitted(1, ["b"]), RecordsOutcome)
    assert handle.reads.log_end == 2


def test_waiting_ends_with_the_commit_or_with_the_time(broker: BrokerApi) -> None:
    """The high watermark is returned in both cases."""
    handle = broker.partitions.handle("s", 0)
    assert handle.reads.wait_committed(Offset(0), 10) == 0
    submit(handle, batch(0, 2))
    assert handle.reads.wait_committed(Offset(0), 60_000) == 2
    assert handle.reads.wait_committed(Offset(1), 60_000) == 2
    assert handle.reads.wait_committed(Offset(2), 10) == 2


def test_an_offset_is_found_by_time(broker: BrokerApi) -> None:
    """The first batch that reaches the time holds it; later than all is the log's end."""
    handle = broker.partitions.handle("s", 0)
    for start in (0, 5):
        stamps = pa.array(range(1_000 + start, 1_005 + start))
        submit(handle, prepare(records([b"x"] * 5, timestamp=stamps), now_us=1))
    assert handle.reads.offset_at(1_000) == 0
    assert 0 <= handle.reads.offset_at(1_003) <= 3
    assert 5 <= handle.reads.offset_at(1_006) <= 6
    assert handle.reads.offset_at(1_010) == 10


def test_leases_are_taken_renewed_and_dropped(broker: BrokerApi) -> None:
    """A lease has an end in the future that renewing moves; dropping twice is fine."""
    lease = broker.cuts.take_lease("s", owner="me", ttl_ms=60_000)
    renewed = broker.cuts.renew_lease(lease.lease_id, ttl_ms=120_000)
    assert renewed.lease_id == lease.lease_id
    assert renewed.expires_us > lease.expires_us
    (held,) = broker.cuts.live_leases("s")
    assert (held.lease_id, held.expires_us) == (lease.lease_id, renewed.expires_us)
    assert held.owner.startswith("me")
    assert held.taken_us == lease.expires_us - 60_000_000, (
        "renewing does not move the end of the lease"
    )
    broker.cuts.drop_lease(lease.lease_id)
    assert broker.cuts.live_leases("s") == []
    broker.cuts.drop_lease(lease.lease_id)
    with pytest.raises(HeadwaterError):
        broker.cuts.renew_lease(lease.lease_id, ttl_ms=60_000)
    with pytest.raises(HeadwaterError):
        broker.cuts.renew_lease(LeaseId("never"), ttl_ms=60_000)


def test_a_cut_holds_every_partition(broker: BrokerApi) -> None:
    """Its hot ends are the high watermarks, and it comes with a lease."""
    submit(broker.partitions.handle("s", 1), batch(0, 4))
    cut = broker.cuts.take("s", owner="me", ttl_ms=60_000)
    assert [part.hot_end for part in cut.partitions] == [0, 4]
    assert (cut.stream_uuid, cut.cluster) == (broker.streams.get("s").uuid, broker.cluster)
    broker.cuts.renew_lease(cut.lease.lease_id, ttl_ms=60_000)


def test_a_stream_is_changed_for_whoever_holds_its_partition(broker: BrokerApi) -> None:
    """The handle has the new settings at once; a fixed setting is refused by its name."""
    handle, before = broker.partitions.handle("s", 1), broker.streams.get("s")
    submit(handle, batch(0, 3))
    assert broker.streams.alter("s", {"record_bytes_max": 9}, dry_run=True).before == before
    assert handle.config.record_bytes_max == CONFIG.record_bytes_max
    altered = broker.streams.alter("s", {"record_bytes_max": 9})
    assert altered.before == before
    assert altered.after == broker.streams.get("s")
    assert altered.changes == {"record_bytes_max": (CONFIG.record_bytes_max, 9)}
    assert handle.config == altered.after.config
    assert values(handle, 0, 3) == [0, 1, 2]
    with pytest.raises(FixedSettingError):
        broker.streams.alter("s", {"partitioner": "each_client"})
    with pytest.raises(InvalidStreamError):
        broker.streams.alter("s", {"colour": "red"})
    with pytest.raises(UnknownStreamError):
        broker.streams.alter("t", {"puback": True})


def test_partitions_are_added_to_a_stream_in_use(broker: BrokerApi) -> None:
    """The old ones keep their records, the new ones begin at 0; fewer are refused."""
    submit(broker.partitions.handle("s", 1), batch(0, 3))
    altered = broker.streams.alter("s", {"partitions": 4})
    assert (altered.after.grown_from, altered.after.config.partitions) == (2, 4)
    submit(broker.partitions.handle("s", 3), batch(0, 2))
    found = [broker.partitions.standing("s", n).high_watermark for n in range(4)]
    assert found == [0, 3, 0, 2]
    assert len(broker.partitions.places("s")) == 4
    with pytest.raises(FixedSettingError):
        broker.streams.alter("s", {"partitions": 2})
    with pytest.raises(InvalidStreamError):
        broker.streams.alter("s", {"partitions": 6})


def test_a_partition_that_a_stream_names_is_there_for_other_threads(broker: BrokerApi) -> None:
    """Whoever sees the grown stream finds its newest partition, or is told to try again."""
    unknown: list[HeadwaterError] = []
    grown = threading.Event()

    def look() -> None:
        while not grown.is_set():
            newest = broker.streams.get("s").config.partitions - 1
            try:
                broker.partitions.standing("s", newest)
            except FencedError:  # its leader is not elected yet
                pass
            except UnknownPartitionError as error:
                unknown.append(error)

    switch_s = sys.getswitchinterval()
    sys.setswitchinterval(1e-6)
    thread = threading.Thread(target=look)
    thread.start()
    try:
        for partitions in (4, 8, 16, 32):
            broker.streams.alter("s", {"partitions": partitions})
    finally:
        sys.setswitchinterval(switch_s)
        grown.set()
        thread.join()
    assert unknown == []


def test_purged_records_are_gone_for_readers(broker: BrokerApi) -> None:
    """The later records keep their offsets; a read of a purged offset is refused."""
    broker.streams.create("p", StreamConfig(subject="p", tiering=False))
    handle = broker.partitions.handle("p", 0)
    submit(handle, batch(0, 3), batch(3, 4))
    told = broker.streams.purge("p", 0, before=Offset(4), operator="me")
    assert (told.start, told.end, told.in_table) == (0, 4, False)
    assert (handle.reads.log_start, handle.reads.purged_end) == (4, 4)
    assert values(handle, 4, 7)[-3:] == [4, 5, 6]
    with pytest.raises(PurgedError):
        values(handle, 3, 7)
    with pytest.raises(OffsetOutOfRangeError):
        broker.streams.purge("p", 0, before=Offset(8), operator="me")
    with pytest.raises(InvalidRequestError):
        broker.streams.purge("p", 0, operator="me")
    submit(broker.partitions.handle("s", 0), batch(0, 1))
    with pytest.raises(NotShippedError):
        broker.streams.purge("s", 0, before=Offset(1), operator="me")


def test_a_read_only_partition_takes_nothing_and_is_read(broker: BrokerApi) -> None:
    """The others of its stream go on."""
    handle, other = broker.partitions.handle("s", 0), broker.partitions.handle("s", 1)
    submit(handle, batch(0, 3))
    broker.pauses.set_readonly("s", (0,))
    with pytest.raises(PartitionReadonlyError) as refused:
        submit(handle, batch(3, 1))
    assert (refused.value.stream, refused.value.partition) == ("s", 0)
    assert (handle.is_readonly, other.is_readonly) == (True, False)
    assert len(handle.reads.read(Offset(0), Offset(3), bytes_max=1 << 20)) == 1
    (answer,) = submit(other, batch(0, 1))
    assert answer.base_offset == 0
    broker.pauses.set_readonly("s", readonly=False)
    (answer,) = submit(handle, batch(3, 1))
    assert answer.base_offset == 3


def test_a_paused_partition_takes_nothing_until_it_is_woken(broker: BrokerApi) -> None:
    """A read-only one is not woken; of a stream that is paused as a whole, all are."""
    handle = broker.partitions.handle("s", 0)
    broker.pauses.wake("s", 0)
    broker.pauses.pause("s", (0,))
    with pytest.raises(PartitionPausedError):
        submit(handle, batch(0, 1))
    assert (handle.is_paused, broker.pauses.rests("s", 0)) == (True, True)
    assert not broker.pauses.rests("s", 1)
    broker.pauses.set_readonly("s", (0,))
    broker.pauses.wake("s", 0)
    assert broker.partitions.handle("s", 0).is_paused
    broker.pauses.set_readonly("s", (0,), readonly=False)
    broker.pauses.wake("s", 0)
    (answer,) = submit(handle, batch(0, 1))
    assert answer.base_offset == 0
    broker.pauses.pause("s", (0,), resume_all=True)
    assert broker.pauses.rests("s", 1)
    broker.pauses.wake("s", 1)
    assert not broker.partitions.handle("s", 0).is_paused
    assert not broker.pauses.rests("s", 1)


def test_pauses_of_what_does_not_exist_are_refused(broker: BrokerApi) -> None:
    """Streams and partitions, by name."""
    with pytest.raises(UnknownStreamError):
        broker.pauses.pause("no")
    for act in (broker.pauses.pause, broker.pauses.resume, broker.pauses.set_readonly):
        with pytest.raises(UnknownPartitionError):
            act("s", (0, 2))
    assert not broker.pauses.rests("no", 0)
    assert not broker.pauses.rests("s", 2)
