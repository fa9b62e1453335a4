"""Group commit over a real log: acked means durable, retries are stored once, readers see HW."""

from __future__ import annotations

import threading
from collections.abc import Iterator
from contextlib import ExitStack
from pathlib import Path
from queue import SimpleQueue
from typing import Any

import pyarrow as pa
import pytest

from broker.adapters.reading.rows import read_rows, resolve
from broker.codec.flight.protocol import ReadRequest
from broker.codec.record_batch import decode_body, prepare
from broker.errors import (
    ForeignHistoryError,
    InvalidCutError,
    InvalidRequestError,
    OverloadedError,
    RecordTooLargeError,
    SequenceGapError,
    ShuttingDownError,
    StreamExistsError,
    StreamRecreatedError,
    UnknownLeaseError,
    UnknownPartitionError,
    UnknownStreamError,
)
from broker.model.cut_positions import CutPosition
from broker.model.ids import LeaseId, PartitionId, ProducerId, StreamUuid
from broker.model.offsets import Offset
from broker.model.records import AppendResult
from broker.model.stream import StreamConfig
from broker.runtime.partition.driver import PartitionDriver
from simkit.brokers.brokers import disk_broker

HEADERS = pa.list_(pa.struct([pa.field("key", pa.string()), pa.field("value", pa.binary())]))


class Node:
    """A broker over a directory that can be stopped and started again."""

    def __init__(self, root: Path) -> None:
        self.root = root
        self._running = ExitStack()
        self.start()

    def start(self) -> None:
        """Open everything, as the daemon does."""
        self.broker = self._running.enter_context(disk_broker(self.root, workers=2))

    def stop(self) -> None:
        """Close everything; a turn that raised is a bug."""
        self._running.close()

    def restart(self) -> None:
        """Stop cleanly and start again."""
        self.stop()
        self.start()


@pytest.fixture
def node(tmp_path: Path) -> Iterator[Node]:
    """A running broker without network services."""
    running = Node(tmp_path)
    yield running
    running.stop()


def _open(node: Node, **settings: Any) -> PartitionDriver:
    node.broker.streams.create("s", StreamConfig(subject="s", **settings))
    return node.broker.partitions.handle("s", 0)


def _batch(*values: bytes) -> pa.RecordBatch:
    return pa.RecordBatch.from_pydict({"value": pa.array(values, pa.binary())})


def _put(partition: PartitionDriver, *values: bytes, producer: int = -1, sequence: int = -1) -> Any:
    outcome: SimpleQueue[Any] = SimpleQueue()
    prepared = prepare(
        _batch(*values), now_us=1, producer_id=ProducerId(producer), base_sequence=sequence
    )
    partition.writes.submit([prepared], outcome.put)
    return outcome.get(timeout=60)[0]


def _put_ids(partition: PartitionDriver, ids: list[str | None]) -> Any:
    outcome: SimpleQueue[Any] = SimpleQueue()
    headers = [[{"key": "Nats-Msg-Id", "value": one.encode()}] if one else None for one in ids]
    batch = pa.RecordBatch.from_pydict(
        {
            "value": pa.array([b"v%d" % n for n in range(len(ids))], pa.binary()),
            "headers": pa.array(headers, HEADERS),
        }
    )
    partition.writes.submit_records(batch, ids, outcome.put)
    return outcome.get(timeout=60)


def _values(partition: PartitionDriver) -> list[bytes]:
    found: list[bytes] = []
    start = partition.reads.log_start
    while start < partition.reads.high_watermark:
        for one in partition.reads.read(start, partition.reads.high_watermark, bytes_max=1 << 20):
            found += decode_body(one.header, one.body).column("value").to_pylist()
            start = one.header.end_offset
    return found


def test_acked_records_are_readable_and_survive_a_restart(node: Node) -> None:
    """Answered records are below the high watermark, then and after a clean restart."""
    partition = _open(node)
    assert _put(partition, b"a", b"b") == AppendResult(Offset(0), 2, partition.reads.leader_epoch)
    assert _put(partition, b"c").base_offset == 2
    assert partition.reads.high_watermark == 3
    epoch = partition.reads.leader_epoch
    node.restart()
    partition = node.broker.partitions.handle("s", 0)
    assert _values(partition) == [b"a", b"b", b"c"]
    assert partition.reads.leader_epoch == epoch + 1, "a restart never continues an old epoch"


def test_many_submitters_share_syncs(node: Node) -> None:
    """While one sync runs, others queue up and become the next group."""
    partition = _open(node)
    outcomes: SimpleQueue[Any] = SimpleQueue()
    prepared = prepare(_batch(b"x"), now_us=1)
    for _ in range(500):
        partition.writes.submit([prepared], outcomes.put)
    offsets = sorted(outcomes.get(timeout=60)[0].base_offset for _ in range(500))
    assert offsets == list(range(500))
    assert partition.counters.syncs < 500


def test_a_producers_retry_is_answered_with_its_first_offset(node: Node) -> None:
    """This holds after a restart, too; a sequence gap is refused and stores nothing."""
    partition = _open(node)
    assert _put(partition, b"a", b"b", producer=9, sequence=0).base_offset == 0
    assert _put(partition, b"c", producer=9, sequence=2).base_offset == 2
    again = _put(partition, b"a", b"b", producer=9, sequence=0)
    assert (again.base_offset, again.duplicate) == (0, True)
    assert isinstance(_put(partition, b"z", producer=9, sequence=7), SequenceGapError)
    node.restart()
    partition = node.broker.partitions.handle("s", 0)
    again = _put(partition, b"c", producer=9, sequence=2)
    assert (again.base_offset, again.duplicate) == (2, True)
    assert _values(partition) == [b"a", b"b", b"c"]


def test_a_message_id_is_stored_once(node: Node) -> None:
    """It is recognised in its batch, in later ones and after a restart; no id, no duplicate."""
    partition = _open(node)
    outcome = _put_ids(partition, ["x", None, "x", "y"])
    assert (list(outcome.offsets), outcome.duplicates) == ([0, 1, 0, 2], {2})
    node.restart()
    partition = node.broker.partitions.handle("s", 0)
    outcome = _put_ids(partition, ["y", "z", None])
    assert (list(outcome.offsets), outcome.duplicates) == ([2, 3, 4], {0})
    outcome = _put_ids(partition, ["z"])
    assert (list(outcome.offsets), outcome.duplicates) == ([3], {0})
    assert partition.reads.high_watermark == 5


def test_a_full_queue_refuses_without_taking(node: Node) -> None:
    """OverloadedError means that nothing of the call was taken."""
    partition = _open(node, unshipped_bytes_max=8192, segment_bytes_max=4096)
    for _ in range(6):
        _put(partition, bytes(1000))
    with pytest.raises(OverloadedError) as caught:
        _put(partition, bytes(1000))
    assert caught.value.facts["limit_bytes"] == 8192
    with pytest.raises(RecordTooLargeError):
        _put(partition, bytes(5000))


def test_readers_wait_for_the_high_watermark(node: Node) -> None:
    """A waiting reader wakes up when records are committed, not before."""
    partition = _open(node)
    seen: SimpleQueue[int] = SimpleQueue()
    waiter = threading.Thread(
        target=lambda: seen.put(partition.reads.wait_committed(Offset(0), 60_000)), daemon=True
    )
    waiter.start()
    _put(partition, b"a")
    assert seen.get(timeout=60) == 1
    assert partition.reads.wait_committed(Offset(1), 1) == 1


def test_a_reader_that_waits_at_a_closed_partition_is_told_so(node: Node) -> None:
    """Nothing is committed there any more; records that are there are still told."""
    partition = _open(node)
    _put(partition, b"a")
    seen: SimpleQueue[int | type[Exception]] = SimpleQueue()

    def wait() -> None:
        try:
            seen.put(partition.reads.wait_committed(Offset(1), 60_000))
        except ShuttingDownError as error:
            seen.put(type(error))

    waiter = threading.Thread(target=wait, daemon=True)
    waiter.start()
    partition.close()
    assert seen.get(timeout=60) is ShuttingDownError
    with pytest.raises(ShuttingDownError, match="Read at another broker"):
        partition.reads.wait_committed(Offset(1), 60_000)
    assert partition.reads.wait_committed(Offset(0), 60_000) == 1


def test_a_reader_that_is_behind_at_a_closed_partition_is_told_so(node: Node) -> None:
    """The files are removed after a move, and the log is not damaged for that."""
    partition = _open(node, segment_bytes_max=4096)
    for number in range(20):
        _put(partition, b"%d" % number + bytes(900))
    partition.close()
    for segment in node.root.glob("streams/*/*/*.log"):
        segment.unlink()
    with pytest.raises(ShuttingDownError, match="Read at another broker"):
        partition.reads.read(Offset(1), Offset(20), bytes_max=1 << 20)
    with pytest.raises(ShuttingDownError, match="Read at another broker"):
        partition.reads.offset_at(1)
    assert partition.health.failure is None


def test_a_reader_that_is_behind_in_a_deleted_stream_hears_of_it(node: Node) -> None:
    """Another broker has no more of it than this one."""
    partition = _open(node, segment_bytes_max=4096)
    for number in range(20):
        _put(partition, b"%d" % number + bytes(900))
    wanted = resolve(
        node.broker, ReadRequest(stream="s", partition=0, start=Offset(0), batch_bytes_max=1)
    )
    rows = read_rows(node.broker, wanted, idle_check_ms=10, check_stop=lambda: False)
    assert next(rows)[1].end_offset == 1
    node.broker.streams.delete("s")
    with pytest.raises(UnknownStreamError):
        list(rows)


def test_segments_seal_and_are_freed_below_the_cold_end_only(node: Node) -> None:
    """Local disk shrinks only by what the recorded cold end covers and no lease holds."""
    partition = _open(node, segment_bytes_max=4096, local_retention_bytes=0)
    for number in range(20):
        _put(partition, bytes(900) + b"%d" % number)
    partition.tier.seal_active()
    sealed = [one for one in partition.tier.segments() if one.sealed]
    assert len(sealed) > 2
    assert partition.frees.now(lambda: Offset(2**62)) == 0, "nothing is in the table yet"
    node.broker.cuts.take_lease("s", owner="test", ttl_ms=600_000)  # holds all of it from upkeep
    partition.tier.record_cold_end(sealed[1].end_offset)
    assert partition.frees.now(lambda: sealed[0].end_offset) == 1, "a lease holds the second"
    assert partition.reads.log_start == sealed[0].end_offset
    node.restart()
    partition = node.broker.partitions.handle("s", 0)
    assert partition.tier.cold_end == sealed[1].end_offset


def test_a_roll_is_noticed_although_the_cold_end_moved_meanwhile(node: Node) -> None:
    """Tiering's thread looks at the segments too; it must not hide a roll from the owner."""
    sealed: SimpleQueue[PartitionId] = SimpleQueue()
    node.broker.tier_listeners.on_sealed(sealed.put)
    partition = _open(node)
    _put(partition, b"a")

    def roll_and_ship() -> None:  # on the owner's thread, which looks for a roll afterwards
        partition._local.log.seal_active(1)
        partition.tier.record_cold_end(Offset(1))

    partition._queue.call(roll_and_ship)
    _put(partition, b"b")
    assert sealed.get(timeout=60) == partition.partition_id


def test_streams_are_created_once_and_named_when_unknown(node: Node) -> None:
    """Equal configuration is the same stream; an error does not tell of other streams."""
    config = StreamConfig(subject="s", partitions=2)
    first = node.broker.streams.create("s", config)
    assert node.broker.streams.create("s", config) == first
    with pytest.raises(StreamExistsError):
        node.broker.streams.create("s", StreamConfig(subject="other"))
    with pytest.raises(UnknownStreamError, match=r"^no stream is named 'nope'$"):
        node.broker.partitions.handle("nope", 0)
    with pytest.raises(UnknownPartitionError, match="0 to 1"):
        node.broker.partitions.handle("s", 2)


def test_a_deleted_stream_is_gone_and_its_name_gets_a_new_identity(node: Node) -> None:
    """The files go with the stream; the same name later is another stream."""
    first = node.broker.streams.create("s", StreamConfig(subject="s"))
    partition = node.broker.partitions.handle("s", 0)
    _put(partition, b"a")
    node.broker.streams.delete("s")
    assert not (node.root / "streams" / first.uuid).exists()
    with pytest.raises(ShuttingDownError):
        _put(partition, b"b")
    second = node.broker.streams.create("s", StreamConfig(subject="s"))
    assert second.uuid != first.uuid
    assert node.broker.partitions.handle("s", 0).reads.high_watermark == 0


def test_a_cut_without_a_lake_is_all_hot(node: Node) -> None:
    """Cut and lease work before there is a table; a lease's time is bounded."""
    partition = _open(node)
    _put(partition, b"a", b"b")
    cut = node.broker.cuts.take("s", owner="test", ttl_ms=60_000)
    assert cut.table_version is None
    assert [(one.start, one.cold_end, one.hot_end) for one in cut.partitions] == [(0, 0, 2)]
    assert type(cut).load(cut.save()) == cut
    assert node.broker.cuts.renew_lease(cut.lease.lease_id, ttl_ms=120_000).expires_us > 0
    node.broker.cuts.drop_lease(cut.lease.lease_id)
    with pytest.raises(UnknownLeaseError):
        node.broker.cuts.renew_lease(cut.lease.lease_id, ttl_ms=60_000)
    with pytest.raises(UnknownLeaseError):
        node.broker.cuts.renew_lease(LeaseId("never"), ttl_ms=60_000)
    with pytest.raises(InvalidRequestError):
        node.broker.cuts.take_lease("s", owner="test", ttl_ms=1)


def test_a_cut_of_another_history_is_refused(node: Node) -> None:
    """All its offsets may exist here, so the lineage of each partition is compared."""
    partition = _open(node)
    _put(partition, b"a", b"b")
    (part,) = node.broker.cuts.take("s", owner="test", ttl_ms=60_000).partitions
    uuid = node.broker.streams.get("s").uuid
    here = CutPosition(part.lineage_id, part.hot_end)
    node.broker.cuts.check("s", stream_uuid=uuid, positions=[here])
    with pytest.raises(ForeignHistoryError):
        node.broker.cuts.check("s", stream_uuid=uuid, positions=[CutPosition("f" * 32, Offset(2))])
    with pytest.raises(InvalidCutError):
        node.broker.cuts.check("s", stream_uuid=uuid, positions=[here, here])
    other = StreamUuid("00000000-0000-0000-0000-000000000001")
    with pytest.raises(StreamRecreatedError):
        node.broker.cuts.check("s", stream_uuid=other, positions=[here])
