"""Publishers that retry until they get an answer, and readers of committed records.

A publisher numbers its batches as a producer, or names each record by a message id as over NATS.
Their calls and answers are kept for the judge. The file is not split: both keep one history, and
what is not asked for again by one is looked for by the other.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Final

import pyarrow as pa

from broker.codec.record_batch import decode_body, prepare
from broker.errors import (
    CorruptDataError,
    DiskFullError,
    EncryptionKeyError,
    ExpiredError,
    ForeignHistoryError,
    HeadwaterError,
    HistoryClaimedError,
    NotEnoughReplicasError,
    NotLeaderError,
    OffsetOutOfRangeError,
    PurgedError,
    RemoteTierUnavailableError,
    SequenceGapError,
)
from broker.model.control_messages import NewestTold
from broker.model.epochs import LeaderEpoch
from broker.model.ids import PartitionId, ProducerId
from broker.model.offsets import Offset, OffsetRange
from broker.model.records import AckPolicy, AppendResult
from broker.ports.partition import RecordsOutcome, StoredBatch
from broker.runtime.partition.driver import PartitionDriver
from checkkit.facts import Rules
from checkkit.history import History
from checkkit.readings import Row
from simkit.house.lake import HouseLake, key_of
from simkit.house.nats import NATS
from simkit.house.node import Beneath, Node
from simkit.network.world import Network, World

if TYPE_CHECKING:
    from simkit.house.changes import Changes
    from simkit.house.expiring import Expiring

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
    policy: AckPolicy = AckPolicy.ALL


@dataclass(frozen=True, slots=True, kw_only=True)
class PublishAnswer:
    """The outcome of a publish."""

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

    def stored(offset: int) -> None:
        assert driver is not None, "who was answered was published to"
        node.oracle.acked(driver, request.policy, offset + 1, node.machine.monotonic_ms())

    def tell(found: AppendResult | RecordsOutcome | HeadwaterError) -> None:
        offset, epoch, duplicate, error = -1, LeaderEpoch(0), False, None
        match found:
            case AppendResult():
                offset, epoch, duplicate = found.base_offset, found.leader_epoch, found.duplicate
                stored(offset)
            case RecordsOutcome():
                offset, epoch = found.offsets[0], found.leader_epoch
                duplicate = 0 in found.duplicates
                stored(offset)
            case _:
                error = found
                # No copy of the history exists here, so a replaced leader answers NotLeaderError.
                assert not isinstance(found, ForeignHistoryError | HistoryClaimedError), found
                world.note(f"publish refused: {type(found).__name__}")
                if isinstance(found, NotEnoughReplicasError):
                    world.note("A11 refused while the ISR is below its minimum")
                if isinstance(found, DiskFullError):
                    world.note("D8 disk full, refused")
        answer = PublishAnswer(
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
        if node.setting.keyed:
            columns["key"] = pa.array([key_of(request.value)], pa.binary())
        if request.producer >= 0:
            batch = prepare(
                pa.RecordBatch.from_pydict(columns),
                now_us=node.machine.now_us(),
                producer_id=ProducerId(request.producer),
                base_sequence=request.sequence,
            )
            driver.writes.submit(
                [batch],
                lambda answers: tell(answers[0]),
                may_block=world.chance(0.5),
                policy=request.policy,
            )
        else:
            ids = None
            if request.policy is not AckPolicy.NONE:
                header = {"key": "Nats-Msg-Id", "value": request.value}
                columns["headers"] = pa.array([[header]], _HEADERS)
                ids = [request.value.decode()]
            rows = pa.RecordBatch.from_pydict(columns)
            driver.writes.submit_records(rows, ids, tell, policy=request.policy)
    except HeadwaterError as error:
        tell(error)


@dataclass(slots=True)
class Pending:
    """A record that is not acknowledged yet."""

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
        house: Beneath,
        nodes: Mapping[str, Node],
        history: History,
        *,
        by_id: bool,
        policy: AckPolicy = AckPolicy.ALL,
        subject: str | None = None,
    ) -> None:
        """``subject``: where records with message ids, and those under NONE, go through NATS."""
        self.name = f"publisher{number}"
        self._number = number
        self._partition, self._partition_id = partition
        self._world, self._network, self._house = world, network, house
        self._nodes, self._history = nodes, history
        self.policy = policy
        self._by_id = by_id or policy is AckPolicy.NONE
        self._is_identified = policy is not AckPolicy.NONE  # a retry is told from a new record
        self._subject = subject if self._by_id and policy is not AckPolicy.LEADER else None
        self._lives = 0
        self._window = world.rng.choice((1, 2, 4))
        self._pause_ms = world.rng.choice((20, 60, 150))
        self._sequence = self._requests = 0
        self.pending: list[Pending] = []
        self._sent: dict[int, Pending] = {}
        self._target: str | None = None
        self._epoch = 0  # the newest heard in an ack
        self.stopped = False
        network.join(self.name, self.receive)
        world.at(10 + number, self._tick)

    def _tick(self) -> None:
        if not self.stopped and len(self.pending) < self._window and self._is_near():
            self._begin_record()
        if self.policy is AckPolicy.NONE:
            self.pending.clear()  # no caller waits
        self._send_late_ones_again()
        self._world.at(1 + self._world.rng.randrange(self._pause_ms), self._tick)

    def _send_late_ones_again(self) -> None:
        for one in self.pending:
            if self._is_late(one):
                self._target = None
                self._send_again(one)

    def _is_late(self, one: Pending) -> bool:
        return self._world.now_ms - one.sent_ms > _RETRY_MS

    def _send_again(self, one: Pending) -> None:
        one.attempts += 1
        one.sent_ms = self._world.now_ms
        self._history.retry(one.record)
        self._send(one)

    def _is_near(self) -> bool:
        """Stay within the window of a producer that a broker remembers."""
        return not self.pending or self._sequence - self.pending[0].sequence < 32

    def stop(self) -> None:
        """Begin no other record."""
        self.stopped = True

    def _begin_record(self) -> None:
        one = self._recorded(self._sequence)
        self._sequence += 1
        self.pending.append(one)
        self._send(one)

    def _recorded(self, sequence: int) -> Pending:
        """Put a record that was never sent before into the history."""
        name = f"{self.name}.{self._lives}" if self._lives else self.name
        value = f"{name}:{sequence}".encode()
        if not self._by_id:
            self._history.expect_order(name)
        record = self._history.publish(
            value,
            partition=self._partition,
            at_ns=self._world.steps,
            producer=name,
            sequence=sequence,
            policy=self.policy,
            identified=self._is_identified,
            client=self.name,
        )
        return Pending(sequence, value, record, self._world.now_ms)

    def told_of_loss(self, partition_id: PartitionId, epoch: int) -> None:
        """Note an unclean election: records acknowledged before it may be lost."""
        if partition_id == self._partition_id:
            self._epoch, self._target = max(self._epoch, epoch), None
            self._begin_again()

    def _begin_again(self) -> None:
        """Go on under a new producer id: the records before its sequence may be lost."""
        self._world.note("publisher began again")
        self._lives += 1
        self._sent.clear()
        self.pending = [self._recorded(number) for number, _ in enumerate(self.pending)]
        self._sequence = len(self.pending)
        for one in self.pending:
            self._send(one)

    def _send(self, one: Pending) -> None:
        self._requests += 1
        self._sent[self._requests] = one
        if self._subject is not None:
            self._send_over_nats(one, self._subject)
            return
        if self._target is None:
            self._target = self._guess()
        publish = Publish(
            client=self.name,
            number=self._requests,
            partition_id=self._partition_id,
            producer=-1 if self._by_id else self._number + 1000 * self._lives,
            sequence=one.sequence,
            value=one.value,
            policy=self.policy,
        )
        self._network.send(self.name, self._target, ("publish", publish))

    def _send_over_nats(self, one: Pending, subject: str) -> None:
        reply = headers = b""
        if self.policy is not AckPolicy.NONE:
            reply = f"_INBOX.{self.name}.{self._requests}".encode()
            headers = b"NATS/1.0\r\nNats-Msg-Id: %b\r\n\r\n" % one.value
        message = ("publish", subject.encode(), reply, headers, one.value)
        self._network.send(self.name, NATS, message)

    def _guess(self) -> str:
        """Ask the metadata for the leader, or as over NATS go to the broker that serves it."""
        uuid, number = self._partition_id.stream_uuid, self._partition_id.number
        if self._by_id:
            serving = [one for one in self._nodes.values() if number in one.served.get(uuid, ())]
            names = sorted(one.name for one in serving if one.machine.alive)
            return self._world.rng.choice(names or sorted(self._nodes))
        leader = self._house.state.partitions[uuid][number].leader
        if leader is None or self._world.chance(0.2):
            return self._world.rng.choice(sorted(self._nodes))
        return leader

    def receive(self, _: str, message: tuple[str, Any]) -> None:
        """Take an answer; an ack of an older epoch than one seen before is not believed."""
        kind, answer = message
        if kind == "puback":
            self._hear_over_nats(*answer)
        else:
            self._hear(answer)

    def _hear_over_nats(self, number: int, body: dict[str, Any]) -> None:
        """Take an ack; a broker that does not lead may refuse what the leader accepts."""
        if "error" in body:
            self._world.note(f"NATS publish refused: {body['headwater']['type']}")
            return
        self._hear(
            PublishAnswer(
                number=number,
                offset=body["offset"],
                leader_epoch=body["leader_epoch"],
                duplicate=body.get("duplicate", False),
                error=None,
                node="",
            )
        )

    def _hear(self, answer: PublishAnswer) -> None:
        one = self._sent.pop(answer.number, None)
        if answer.error is not None:
            self._target = None
            # A retry may overtake another; a hole that stays is a loss, as LEADER allows.
            stays = isinstance(answer.error, SequenceGapError) and one in self.pending
            if stays and self.policy is AckPolicy.LEADER and self.pending[0].attempts > 3:
                self._begin_again()
            return
        if answer.leader_epoch < self._epoch:
            self._world.note("A14 ack of an old epoch dropped by a client")
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


class CommittedReader:
    """Reads the committed records of one partition from a broker that claims to lead."""

    def __init__(
        self,
        partition: tuple[int, PartitionId],
        world: World,
        nodes: Mapping[str, Node],
        history: History,
        *,
        lease_ms: int,
        lake: HouseLake | None,
        changes: Changes | None = None,
        expiring: Expiring | None = None,
    ) -> None:
        self._partition, self._partition_id = partition
        self._world, self._nodes, self._history = world, nodes, history
        self._lake, self._changes, self._expiring = lake, changes, expiring
        # How long a replaced leader may be sure of what it knows, by the slowest clock.
        self._lease_ms = lease_ms * 5 // 4
        self._position = Offset(0)
        self._shown: list[tuple[int, Offset]] = []  # times, and the committed end at each
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
                if driver.reads.high_watermark < self._position:
                    self._world.note("A20 reader above the high watermark")
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

    def truncated(self, partition_id: PartitionId, end: int) -> None:
        """Note, by the epoch in its position, that records read from ``end`` on are gone."""
        if partition_id == self._partition_id:
            self._shown = []
            if self._position > end:
                self._position = Offset(end)
                self._history.truncated(f"reader{self._partition}", self._partition, end)

    def _require(self, end: Offset, asked_ms: int, process: str) -> None:
        """Check that a committed end that a leader is sure of is not older than a lease."""
        old = max(
            (one for at_ms, one in self._shown if at_ms < asked_ms - self._lease_ms), default=0
        )
        assert end >= old, f"{process} is sure of {end} long after {old} was committed"

    def _read(self, node: Node, driver: PartitionDriver, end: Offset) -> None:
        """Read on up to the end that a leader is sure of.

        One that was replaced, because the others reported it, may be sure of an older end until it
        has to know that, and as long as its lease then; see docs/replication.md.
        """
        process, now_ms = node.machine.process, self._world.now_ms
        self._require(end, now_ms, process)
        if not self._shown or end > self._shown[-1][1]:
            self._shown.append((now_ms, end))
        if end < self._position:
            return
        try:
            rows = self._rows(node, driver, end)
        except (CorruptDataError, EncryptionKeyError, RemoteTierUnavailableError):
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
        except OffsetOutOfRangeError as error:
            if isinstance(error, ExpiredError):
                return self._missed(error)
            if node.tiering is None:
                if self._changes is None or not isinstance(error, PurgedError):
                    raise
                return self._changes.instead(self._partition_id, self._position, error)
        else:
            return rows_of([one for one in batches if one.header.end_offset <= end])
        self._world.note("read from the table")
        wanted = Offset(min(end, driver.reads.log_start))
        number = self._partition_id.number
        try:
            assert self._lake is not None, "what is tiered has a lake"
            asked = OffsetRange(self._position, wanted)
            return self._lake.served(node.tiering, driver.stream, number, asked)
        except ExpiredError as error:
            return self._missed(error)

    def _missed(self, error: ExpiredError) -> list[Row]:
        assert self._expiring is not None, error
        return self._expiring.instead(self._partition_id, self._position, error)


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
