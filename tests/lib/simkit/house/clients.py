"""Publishers that retry until they are answered, and readers of what is committed.

A publisher numbers its batches as a producer, or names each record by a message id as over NATS.
All publish under ALL. What they did and heard is kept for the judge.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Final

import pyarrow as pa

from broker.codec.record_batch import decode_body, prepare
from broker.errors import (
    CorruptDataError,
    ForeignHistoryError,
    HeadwaterError,
    HistoryClaimedError,
    NotLeaderError,
    OffsetOutOfRangeError,
    RemoteTierUnavailableError,
)
from broker.model.control_messages import NewestTold
from broker.model.epochs import LeaderEpoch
from broker.model.ids import PartitionId, ProducerId
from broker.model.offsets import Offset
from broker.model.records import AppendResult
from broker.ports.partition import RecordsOutcome, StoredBatch
from broker.runtime.partition.driver import PartitionDriver
from checkkit.facts import Rules
from checkkit.history import History
from checkkit.readings import Row
from simkit.house.lake import table_rows
from simkit.house.metadata import MetadataHouse
from simkit.house.node import Node
from simkit.network.world import Network, World

RULES: Final = Rules(transport_doubles=True)
_RETRY_MS: Final = 250
_HEADERS: Final = pa.list_(
    pa.struct([pa.field("key", pa.string()), pa.field("value", pa.binary())])
)


@dataclass(frozen=True, slots=True, kw_only=True)
class Publish:
    """One record on its way to a broker."""

    client: str
    number: int
    partition_id: PartitionId
    producer: int  # -1: it is known by its message id, which is its value
    sequence: int
    value: bytes


@dataclass(frozen=True, slots=True, kw_only=True)
class Answer:
    """What became of it."""

    number: int
    offset: int
    leader_epoch: int
    duplicate: bool
    error: HeadwaterError | None
    node: str


def serve(node: Node, request: Publish) -> None:
    """Publish at a broker and answer, as its services do."""
    world = node.machine.world
    process = node.machine.process

    def tell(found: AppendResult | RecordsOutcome | HeadwaterError) -> None:
        offset, epoch, duplicate, error = -1, LeaderEpoch(0), False, None
        match found:
            case AppendResult():
                offset, epoch, duplicate = found.base_offset, found.leader_epoch, found.duplicate
            case RecordsOutcome():
                offset, epoch = found.offsets[0], found.leader_epoch
                duplicate = 0 in found.duplicates
            case _:
                error = found
                # Nobody here has a copy of the history: who was replaced says NotLeaderError.
                assert not isinstance(found, ForeignHistoryError | HistoryClaimedError), found
                world.note(f"publish refused: {type(found).__name__}")
        answer = Answer(
            number=request.number,
            offset=offset,
            leader_epoch=epoch,
            duplicate=duplicate,
            error=error,
            node=process,
        )
        node.send(request.client, ("answer", answer))

    driver = node.replica(request.partition_id)
    try:
        if driver is None:
            raise NotLeaderError("it is not here", partition=str(request.partition_id))
        columns: dict[str, Any] = {"value": pa.array([request.value], pa.binary())}
        if request.producer >= 0:
            batch = prepare(
                pa.RecordBatch.from_pydict(columns),
                now_us=node.machine.now_us(),
                producer_id=ProducerId(request.producer),
                base_sequence=request.sequence,
            )
            driver.writes.submit(
                [batch], lambda answers: tell(answers[0]), may_block=world.chance(0.5)
            )
        else:
            header = {"key": "Nats-Msg-Id", "value": request.value}
            columns["headers"] = pa.array([[header]], _HEADERS)
            ids = [request.value.decode()]
            driver.writes.submit_records(pa.RecordBatch.from_pydict(columns), ids, tell)
    except HeadwaterError as error:
        tell(error)


@dataclass(slots=True)
class _Pending:
    sequence: int
    value: bytes
    record: int
    sent_ms: int
    attempts: int = 1


class Publisher:
    """Publishes to one partition, in order, some in flight; retries each until it is acked."""

    def __init__(
        self,
        number: int,
        partition: tuple[int, PartitionId],
        world: World,
        network: Network,
        house: MetadataHouse,
        nodes: Mapping[str, Node],
        history: History,
        *,
        by_id: bool,
    ) -> None:
        self.name = f"publisher{number}"
        self._number = number
        self._partition, self._partition_id = partition
        self._world, self._network, self._house = world, network, house
        self._nodes, self._history = nodes, history
        self._by_id = by_id
        self._window = world.rng.choice((1, 2, 4))
        self._pause_ms = world.rng.choice((20, 60, 150))
        self._sequence = self._requests = 0
        self.pending: list[_Pending] = []
        self._sent: dict[int, _Pending] = {}
        self._target: str | None = None
        self._epoch = 0  # the newest heard in an ack
        self.stopped = False
        network.join(self.name, self.receive)
        world.at(10 + number, self._tick)

    def _tick(self) -> None:
        now_ms = self._world.now_ms
        if not self.stopped and len(self.pending) < self._window and self._is_near():
            self._begin_record()
        for one in self.pending:
            if now_ms - one.sent_ms > _RETRY_MS:
                one.attempts += 1
                one.sent_ms, self._target = now_ms, None
                self._history.retry(one.record)
                self._send(one)
        self._world.at(1 + self._world.rng.randrange(self._pause_ms), self._tick)

    def _is_near(self) -> bool:
        """Stay within what a broker remembers of a producer."""
        return not self.pending or self._sequence - self.pending[0].sequence < 32

    def _begin_record(self) -> None:
        value = f"{self.name}:{self._sequence}".encode()
        if not self._by_id:
            self._history.expect_order(self.name)
        record = self._history.publish(
            value,
            partition=self._partition,
            at_ns=self._world.steps,
            producer=self.name,
            sequence=self._sequence,
            client=self.name,
        )
        one = _Pending(self._sequence, value, record, self._world.now_ms)
        self._sequence += 1
        self.pending.append(one)
        self._send(one)

    def _send(self, one: _Pending) -> None:
        if self._target is None:
            self._target = self._guess()
        self._requests += 1
        self._sent[self._requests] = one
        publish = Publish(
            client=self.name,
            number=self._requests,
            partition_id=self._partition_id,
            producer=-1 if self._by_id else self._number,
            sequence=one.sequence,
            value=one.value,
        )
        self._network.send(self.name, self._target, ("publish", publish))

    def _guess(self) -> str:
        """Ask the metadata for the leader, or as over NATS go to whoever serves the partition."""
        uuid, number = self._partition_id.stream_uuid, self._partition_id.number
        if self._by_id:
            serving = [one for one in self._nodes.values() if number in one.served.get(uuid, ())]
            names = sorted(one.name for one in serving if one.machine.alive)
            return self._world.rng.choice(names or sorted(self._nodes))
        leader = self._house.state.partitions[uuid][number].leader
        if leader is None or self._world.chance(0.2):
            return self._world.rng.choice(sorted(self._nodes))
        return leader

    def receive(self, _: str, message: tuple[str, Answer]) -> None:
        """Take an answer; an ack of an older epoch than one seen before is not believed."""
        answer = message[1]
        one = self._sent.pop(answer.number, None)
        if answer.error is not None:
            self._target = None
            return
        if answer.leader_epoch < self._epoch:
            return
        self._epoch = answer.leader_epoch
        if one is None or one not in self.pending:
            return
        self.pending.remove(one)
        self._history.ok(
            one.record,
            at_ns=self._world.steps,
            offset=answer.offset,
            leader_epoch=answer.leader_epoch,
            duplicate=answer.duplicate,
            node=answer.node,
        )
        if answer.duplicate:
            kind = "message id" if self._by_id else "producer"
            self._world.note(f"retry answered with its first offset ({kind})")


class Reader:
    """Reads what is committed of one partition from whoever says that it leads."""

    def __init__(
        self,
        partition: tuple[int, PartitionId],
        world: World,
        nodes: Mapping[str, Node],
        history: History,
        *,
        lease_ms: int,
    ) -> None:
        self._partition, self._partition_id = partition
        self._world, self._nodes, self._history = world, nodes, history
        self._lease_ms = lease_ms * 5 // 4  # of the slowest clock
        self._position = Offset(0)
        self._shown: list[tuple[int, Offset]] = []  # when, and what was committed then
        world.at(70, self._tick)

    def _tick(self) -> None:
        candidates = []
        for name in sorted(self._nodes):
            node = self._nodes[name]
            driver = node.replica(self._partition_id)
            if driver is not None and driver.leads and not node.machine.paused:
                candidates.append((node, driver))
        if candidates:
            node, driver = self._world.rng.choice(candidates)
            if len(candidates) > 1:
                self._world.note("two brokers believe that they lead")
            end = driver.replication.newest_committed
            if end is None:
                self._world.note("leader that is not sure what is committed")
            else:
                self._read(node, driver, end)
        if self._world.chance(0.2):
            self._ask()
        self._world.at(40 + self._world.rng.randrange(60), self._tick)

    def _ask(self) -> None:
        """Ask any broker how far the leader is; the answer is as new as the question."""
        node, asked_ms = (
            self._nodes[self._world.rng.choice(sorted(self._nodes))],
            self._world.now_ms,
        )

        def answered(told: NewestTold | HeadwaterError) -> None:
            if isinstance(told, HeadwaterError):
                self._world.note("nobody could tell the newest")
                return
            self._world.note("newest told")
            assert told.high_watermark is not None, "that is no answer"
            self._require(told.high_watermark, asked_ms, node.machine.process)

        node.ask_newest(self._partition_id, answered)

    def _require(self, end: Offset, asked_ms: int, process: str) -> None:
        """What somebody is sure of is not older than a lease."""
        old = max(
            (one for at_ms, one in self._shown if at_ms < asked_ms - self._lease_ms), default=0
        )
        assert end >= old, f"{process} is sure of {end} long after {old} was committed"

    def _read(self, node: Node, driver: PartitionDriver, end: Offset) -> None:
        """Read on up to what a leader is sure of.

        One that was replaced, because the others reported it, may be sure of an older end for as
        long as its lease; see docs/replication.md.
        """
        process, now_ms = node.machine.process, self._world.now_ms
        self._require(end, now_ms, process)
        if not self._shown or end > self._shown[-1][1]:
            self._shown.append((now_ms, end))
        if end < self._position:
            return
        try:
            rows = self._rows(node, driver, end)
        except (CorruptDataError, RemoteTierUnavailableError):
            return
        self._history.poll(
            f"reader{self._partition}",
            self._partition,
            rows,
            began_ns=self._world.steps,
            at_ns=self._world.steps,
            high_watermark=end,
            node=process,
            leader_epoch=driver.reads.leader_epoch,
        )
        self._position = Offset(rows[-1].offset + 1) if rows else self._position

    def _rows(self, node: Node, driver: PartitionDriver, end: Offset) -> list[Row]:
        """Read on, from the table where the local log begins later."""
        try:
            batches = driver.reads.read(self._position, end, bytes_max=1 << 20)
        except OffsetOutOfRangeError:
            if node.tiering is None:
                raise
        else:
            return rows_of([one for one in batches if one.header.end_offset <= end])
        self._world.note("read from the table")
        wanted = Offset(min(end, driver.reads.log_start))
        number = self._partition_id.number
        return table_rows(node.tiering.read(driver.stream, number, self._position, wanted))


def rows_of(batches: Sequence[StoredBatch]) -> list[Row]:
    """Return the rows of batches that a log holds, each known by its value."""
    rows: list[Row] = []
    for one in batches:
        body = decode_body(one.header, one.body)
        for delta, value in enumerate(body.column("value").to_pylist()):
            offset = one.header.base_offset + delta
            time_us = one.header.first_timestamp_us
            rows.append(Row(offset, value, one.header.leader_epoch, time_us))
    return rows
