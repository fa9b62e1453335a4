"""Forwards a publisher's write to the broker that leads the partition.

The sender takes the leader from its local metadata. The leader treats the write like one of its own
publishers, and answers with the offsets or with the error. If no answer comes, the sender cannot
know whether the records were stored. Its publisher gets ``CommitTimeoutError``, and may read the
partition, or publish again. The sender never repeats a write: that could store the records twice.

A leader of an older build gets no write: it would close the connection at the unknown frame, and
Raft uses the same connection.
"""

from __future__ import annotations

import itertools
import threading
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Final

import pyarrow as pa

from broker.codec.peer.forwarded_writes import rows_from_bytes, rows_to_bytes
from broker.codec.record_batch import PreparedBatch
from broker.core.metadata.state import FEATURE_LEVEL_LIFTBRIDGE, MetadataState
from broker.core.replication.replica import first_request_id
from broker.errors import (
    CommitTimeoutError,
    HeadwaterError,
    InvalidRequestError,
    NotLeaderError,
    OverloadedError,
)
from broker.model.epochs import BrokerEpoch, LeaderEpoch
from broker.model.forwarded_writes import ForwardingMessage, WriteAnswered, WriteForwarded
from broker.model.ids import BrokerId, PartitionId
from broker.model.offsets import Offset
from broker.model.records import AckPolicy, AppendResult
from broker.ports.cluster import WriteTransport
from broker.ports.partition import RecordsOutcome, WriteOrder
from broker.ports.system import Clock
from broker.runtime.partition.driver import PartitionDriver

ANSWER_MS: Final = 10_000  # how long a forwarded write may wait for the leader's answer
_LOOK_MS: Final = 250

Done = Callable[[RecordsOutcome | HeadwaterError], None]


@dataclass(frozen=True, slots=True)
class _Waiting:
    leader: BrokerId
    leader_epoch: LeaderEpoch
    partition_id: PartitionId
    done: Done
    until_ms: int


class ForwardedWrites:
    """Sends writes to their leaders, and stores writes that other brokers send. Any thread."""

    def __init__(
        self,
        me: BrokerId,
        transport: WriteTransport,
        replica: Callable[[PartitionId], PartitionDriver | None],
        state: Callable[[], MetadataState],
        clock: Clock,
        *,
        refusal: Callable[[PartitionId], HeadwaterError | None],
    ) -> None:
        """``replica`` finds a local replica of broker ``me``; ``state`` returns its metadata.

        ``refusal`` returns why a replica that belongs to ``me`` could not be opened, or None.
        """
        self._me = me
        self._transport = transport
        self._replica = replica
        self._refusal = refusal
        self._state = state
        self._clock = clock
        self._lock = threading.Lock()
        self._waiting: dict[int, _Waiting] = {}
        self._numbers = itertools.count(1)

    def registered(self, broker_epoch: BrokerEpoch) -> None:
        """Choose request ids that no earlier process of this broker used.

        So a late answer to an earlier process matches no write of this one.
        """
        self._numbers = itertools.count(first_request_id(broker_epoch))

    def start(self) -> None:
        """Begin to receive messages of other brokers."""
        self._transport.start(self._hear)

    def close(self) -> None:
        """Stop receiving; end every waiting write with ``CommitTimeoutError``."""
        self._transport.close()
        with self._lock:
            waiting = list(self._waiting.values())
            self._waiting.clear()
        for one in waiting:
            one.done(_unknown("this broker stops"))

    def turn(self, now_ms: int) -> int:
        """End the writes whose answer is late or cannot come; return the time of the next turn."""
        state = self._state()
        with self._lock:
            gone = {
                number: why
                for number, one in self._waiting.items()
                if (why := _given_up(one, state, now_ms)) is not None
            }
            lost = [(self._waiting.pop(number), why) for number, why in gone.items()]
        for one, why in lost:
            one.done(_unknown(why))
        return now_ms + _LOOK_MS

    # ------------------------------------------------------------------ writes of publishers here

    def submit(
        self,
        partition_id: PartitionId,
        rows: pa.RecordBatch,
        done: Done,
        *,
        name: str,
        policy: AckPolicy,
        expected_end: Offset | None,
    ) -> None:
        """Send ``rows`` to the partition's leader. ``done`` gets the outcome, on any thread.

        ``name`` is the partition's name for error messages.

        Raises:
            NotLeaderError: the partition has no leader now, or this broker begins to lead it, or
                its leader runs an older build.
            OverloadedError: the queue to the leader is full; nothing was sent.
        """
        state = self._state()
        row = state.partition(partition_id)
        if row is None or row.leader is None:
            raise NotLeaderError(
                f"{name} has no leader now: publish again later", partition=str(partition_id)
            )
        if row.leader == self._me:  # the metadata knows; the replica will take writes soon
            raise NotLeaderError(
                f"this broker begins to lead {name}: publish again", partition=str(partition_id)
            )
        broker = state.brokers.get(row.leader)
        if broker is None or broker.features_max < FEATURE_LEVEL_LIFTBRIDGE:
            raise NotLeaderError(
                f"broker {row.leader} leads {name}, and its older build takes no forwarded "
                f"writes: publish to broker {row.leader}, or update it",
                leader=row.leader,
            )
        number = next(self._numbers)
        now_ms = self._clock.monotonic_ms()
        waiting = _Waiting(row.leader, row.leader_epoch, partition_id, done, now_ms + ANSWER_MS)
        with self._lock:
            self._waiting[number] = waiting
        message = WriteForwarded(
            request_id=number,
            partition_id=partition_id,
            policy=policy,
            expected_end=expected_end,
            rows=rows_to_bytes(rows),
        )
        if not self._transport.send(row.leader, message):
            with self._lock:
                waits = self._waiting.pop(number, None) is not None
            if waits:  # else it has its outcome: another thread has just ended its wait
                raise OverloadedError(
                    f"the queue to broker {row.leader}, the leader of {name}, is full: "
                    "publish again later"
                )

    # ------------------------------------------------------------------ messages

    def _hear(self, sender: BrokerId, message: ForwardingMessage) -> None:
        if isinstance(message, WriteForwarded):
            self._store(sender, message)
            return
        with self._lock:
            waiting = self._waiting.get(message.request_id)
            if waiting is None or waiting.leader != sender:
                return
            del self._waiting[message.request_id]
        if message.refused is not None:
            waiting.done(message.refused)
        else:
            epoch = LeaderEpoch(message.leader_epoch)
            waiting.done(RecordsOutcome(message.offsets, frozenset(), epoch))

    def _store(self, sender: BrokerId, asked: WriteForwarded) -> None:
        def done(outcome: RecordsOutcome | HeadwaterError) -> None:
            self._transport.send(sender, _answer(asked, outcome))

        rows = rows_from_bytes(asked.rows)
        driver = self._replica(asked.partition_id)
        if isinstance(rows, HeadwaterError):
            done(rows)
        elif driver is None:
            why = self._refusal(asked.partition_id)
            done(why or NotLeaderError(f"{asked.partition_id} is not open here"))
        else:
            try:
                driver.writes.submit_records(
                    rows, None, done, policy=asked.policy, expected_end=asked.expected_end
                )
            except HeadwaterError as refused:
                done(refused)


class LeadersWriter:
    """Implements ``PartitionWriter`` for a partition that another broker leads. Any thread."""

    def __init__(self, writes: ForwardedWrites, partition_id: PartitionId, name: str) -> None:
        """Each write looks for the leader anew: it may change between two writes."""
        self._writes = writes
        self._partition_id = partition_id
        self._name = name

    @property
    def keeps_order(self) -> bool:
        """See ``PartitionWriter.keeps_order``: a forwarded write has no field for an order."""
        return False

    def submit(
        self,
        batches: Sequence[PreparedBatch],  # noqa: ARG002 - the signature of ``PartitionWriter``
        done: Callable[[Sequence[AppendResult | HeadwaterError]], None],  # noqa: ARG002
        *,
        may_block: bool = False,  # noqa: ARG002
        policy: AckPolicy = AckPolicy.ALL,  # noqa: ARG002
    ) -> None:
        """Refuse with ``NotLeaderError``: a client of the native protocol connects to the leader.

        Only writes of Liftbridge publishers are forwarded.
        """
        raise NotLeaderError(f"this broker does not lead {self._name}")

    def submit_records(
        self,
        batch: pa.RecordBatch,
        message_ids: Sequence[str | None] | None,
        done: Done,
        *,
        policy: AckPolicy = AckPolicy.ALL,
        expected_end: Offset | None = None,
        order: WriteOrder | None = None,  # noqa: ARG002 - see ``keeps_order``
    ) -> None:
        """See ``PartitionWriter.submit_records``.

        Raises:
            InvalidRequestError: a row has a message id. A forwarded write has no field for it.
        """
        if message_ids is not None and any(message_ids):
            raise InvalidRequestError(
                f"{self._name} has its leader on another broker, and only the leader can check "
                "message ids: publish to the leader, or without a message id"
            )
        self._writes.submit(
            self._partition_id,
            batch,
            done,
            name=self._name,
            policy=policy,
            expected_end=expected_end,
        )


def _answer(asked: WriteForwarded, outcome: RecordsOutcome | HeadwaterError) -> WriteAnswered:
    if isinstance(outcome, HeadwaterError):
        return WriteAnswered(request_id=asked.request_id, refused=outcome)
    return WriteAnswered(
        request_id=asked.request_id,
        offsets=outcome.offsets,
        leader_epoch=outcome.leader_epoch,
    )


def _given_up(one: _Waiting, state: MetadataState, now_ms: int) -> str | None:
    """Return why a write waits no longer for its answer, or None while it does."""
    row = state.partition(one.partition_id)
    if row is None:
        return "the stream was deleted"
    if row.leader_epoch != one.leader_epoch:
        return f"broker {one.leader} leads the partition no longer"
    if now_ms >= one.until_ms:
        return f"broker {one.leader} did not answer within {ANSWER_MS} ms"
    return None


def _unknown(why: str) -> CommitTimeoutError:
    return CommitTimeoutError(
        f"the records may be stored or not, because {why}: read the partition before a repeat"
    )
