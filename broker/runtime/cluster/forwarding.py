"""Writes to partitions that another broker leads: handed over, and answered.

A write goes to the leader that the metadata names here. The leader stores it, or refuses it, as a
write of its own publishers. An outcome that does not come back is not known: the publisher hears of
a late commit, and may ask or repeat. Nothing is sent twice by itself.

A leader whose build does not know such writes is not sent any: an unknown frame would end the
connection, and Raft shares it.
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
from broker.ports.partition import RecordsOutcome
from broker.ports.system import Clock
from broker.runtime.partition.driver import PartitionDriver

ANSWER_MS: Final = 10_000  # for the outcome of a write that was handed over
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
    """Hands writes over, and takes those of other brokers. Any thread."""

    def __init__(
        self,
        transport: WriteTransport,
        replica: Callable[[PartitionId], PartitionDriver | None],
        state: Callable[[], MetadataState],
        clock: Clock,
    ) -> None:
        """``replica`` finds the replica that is here, ``state`` the newest metadata here."""
        self._transport = transport
        self._replica = replica
        self._state = state
        self._clock = clock
        self._lock = threading.Lock()
        self._waiting: dict[int, _Waiting] = {}
        self._numbers = itertools.count(1)

    def registered(self, broker_epoch: BrokerEpoch) -> None:
        """Number writes so that a late answer to the process before is not taken for ours."""
        self._numbers = itertools.count(first_request_id(broker_epoch))

    def start(self) -> None:
        """Hear other brokers."""
        self._transport.start(self._hear)

    def close(self) -> None:
        """Hear nobody any more; what waits for an outcome is told that it is not known."""
        self._transport.close()
        with self._lock:
            waiting = list(self._waiting.values())
            self._waiting.clear()
        for one in waiting:
            one.done(_unknown("this broker stops"))

    def turn(self, now_ms: int) -> int:
        """Give up outcomes that cannot come any more, or are too late."""
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
        """Hand rows to the leader of a partition, called ``name``; ``done`` as for a writer.

        Raises:
            NotLeaderError: nobody leads the partition now, or its leader is of an older build.
            OverloadedError: too much waits for that broker; nothing was sent.
        """
        state = self._state()
        row = state.partition(partition_id)
        if row is None or row.leader is None:
            raise NotLeaderError(f"nobody leads {name} now", partition=str(partition_id))
        broker = state.brokers.get(row.leader)
        if broker is None or broker.features_max < FEATURE_LEVEL_LIFTBRIDGE:
            raise NotLeaderError(
                f"{name} is led by {row.leader}, whose build takes no writes from other brokers: "
                "publish there",
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
                self._waiting.pop(number, None)
            raise OverloadedError(f"too many writes wait for {row.leader}, which leads {name}")

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
            done(NotLeaderError(f"{asked.partition_id} is not open here"))
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
        """Hand what is written to the leader, whoever it is at that time."""
        self._writes = writes
        self._partition_id = partition_id
        self._name = name

    def submit(
        self,
        batches: Sequence[PreparedBatch],  # noqa: ARG002 - the signature of ``PartitionWriter``
        done: Callable[[Sequence[AppendResult | HeadwaterError]], None],  # noqa: ARG002
        *,
        may_block: bool = False,  # noqa: ARG002
        policy: AckPolicy = AckPolicy.ALL,  # noqa: ARG002
    ) -> None:
        """Refuse: a producer with an id of its own writes to the leader itself."""
        raise NotLeaderError(f"this broker does not lead {self._name}")

    def submit_records(
        self,
        batch: pa.RecordBatch,
        message_ids: Sequence[str | None] | None,
        done: Done,
        *,
        policy: AckPolicy = AckPolicy.ALL,
        expected_end: Offset | None = None,
    ) -> None:
        """See ``PartitionWriter.submit_records``; rows with message ids are refused."""
        if message_ids is not None and any(message_ids):
            raise InvalidRequestError("message ids are known by the leader only: publish there")
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
    """Return why an outcome is not waited for any longer, or None."""
    row = state.partition(one.partition_id)
    if row is None:
        return "the stream was deleted"
    if row.leader_epoch != one.leader_epoch:
        return f"{one.leader} leads the partition no longer"
    if now_ms >= one.until_ms:
        return f"{one.leader} did not answer within {ANSWER_MS} ms"
    return None


def _unknown(why: str) -> CommitTimeoutError:
    return CommitTimeoutError(f"whether the records are stored is not known: {why}")
