"""A producer's decisions, without threads or sockets: which batches to send, or to send again.

These rules keep every batch stored once, in order (Source: Kafka's idempotent producer, KIP-98):

1. A batch keeps its producer id and sequence until the broker has answered for it.
2. After a broken connection, or an answer that is worth a retry, all unanswered batches are sent
   again, in order, with the same numbers: the broker recognises the batches that it has.
3. A batch that is refused because of its content leaves a gap in the sequence, so the broker also
   refuses the batches that were sent after it. Once the broker has refused all of these, they are
   sent again under a new producer id. A batch that this client's Flight refuses leaves a gap, too.
4. The first batch under a producer id is sent alone. Until one batch is stored, the broker cannot
   tell a later batch from the first, so it would store the later batch in the wrong place.
5. A broker that answers in an older leader epoch than the newest seen one is no longer the leader,
   so its acknowledgement is not valid; the batch is sent again.

6. A send without an answer, or with an answer that says nothing for certain, may have stored its
   batch. A later refusal that is decided before the broker looks for the batch (no access,
   read-only, a limit that was lowered) does not say otherwise: the batch's sender is told that it
   may be stored.

Batches of NO_PRODUCER have no numbers, so rules 3 and 4 do not apply. Such a batch, sent again, may
be stored twice, or behind a later batch.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Callable
from concurrent.futures import Future
from dataclasses import dataclass, field
from typing import Any

from broker.errors import (
    AccessError,
    CommitTimeoutError,
    EnvelopeError,
    FencedError,
    HeadwaterError,
    InvalidRequestError,
    LogFailedError,
    OverloadedError,
    PartitionReadonlyError,
    PartitionsAddedError,
    RecordTooLargeError,
    SegmentCorruptError,
    SequenceGapError,
    StaleLeaderEpochError,
    StreamRecreatedError,
    may_be_stored,
    of_unknown_outcome,
)
from broker.model.epochs import LeaderEpoch
from broker.model.ids import NO_PRODUCER, NO_SEQUENCE, ProducerId
from broker.model.records import AckPolicy, AppendResult


def worth_retrying(error: HeadwaterError, *, several: bool = False) -> bool:
    """Tell whether the same batches may succeed later, sent to the same stream.

    With ``several`` brokers, another broker soon replaces a leader whose disk has failed.
    """
    if several and isinstance(error, LogFailedError | SegmentCorruptError):
        return True
    return error.retriable and not isinstance(error, StreamRecreatedError)


def _running_future() -> Future[AppendResult]:
    """Return a future that cannot be cancelled: the batch may be stored already."""
    future: Future[AppendResult] = Future()
    future.set_running_or_notify_cancel()
    return future


@dataclass(slots=True, eq=False)
class WindowEntry:
    """One batch that is not settled yet. ``future`` gets its AppendResult or its error."""

    batch: Any  # pa.RecordBatch
    records_count: int
    size_bytes: int
    producer_id: ProducerId
    base_sequence: int
    maybe_stored: bool = False  # sent under these numbers, and not refused as a sequence gap
    in_doubt: bool = False  # an earlier send may have stored it
    future: Future[AppendResult] = field(default_factory=_running_future)


def outcome_of(
    entry: WindowEntry, error: HeadwaterError, *, by_client: bool = False
) -> HeadwaterError:
    """Return the error that the sender of a batch is told (rule 6).

    ``by_client``: the batch was refused on its way to the broker.
    """
    unseen = AccessError | PartitionReadonlyError | RecordTooLargeError  # the limit may be new
    if entry.in_doubt and (by_client or isinstance(error, unseen)):
        return CommitTimeoutError(
            "an earlier send of the batch had no certain answer, so the batch may be stored; sent "
            f"again, it was refused: {error.message}",
            cause=type(error).__name__,
        )
    return error


def of_all_refusals(
    noted: HeadwaterError | None, error: HeadwaterError, acks: AckPolicy
) -> HeadwaterError:
    """Return the error that ``flush`` raises: the first one.

    A PartitionsAddedError gives way to any other: PartitionedProducer places its batch anew. Under
    NONE the batch is lost, so nothing gives way.
    """
    gives_way = isinstance(noted, PartitionsAddedError) and acks is not AckPolicy.NONE
    return error if noted is None or gives_way else noted


class SendWindow:
    """The batches that are not settled yet, in order, and those sent on the current connection.

    Not thread-safe. ``new_producer_id`` returns an id that no producer has used.
    """

    def __init__(
        self,
        *,
        producer_id: ProducerId,
        sequence: int,
        batches_max: int,
        bytes_max: int,
        new_producer_id: Callable[[], ProducerId],
    ) -> None:
        self.producer_id = producer_id
        self.next_sequence = sequence
        self.leader_epoch = LeaderEpoch(0)  # the newest in an acknowledgement
        self.several = False  # there are other brokers that may lead
        self._numbered = producer_id != NO_PRODUCER
        self.confirmed = not self._numbered  # a batch under this producer id is stored
        self.draining = False  # send no more batches on this connection, let it end
        self._new_producer_id = new_producer_id
        self._batches_max = batches_max
        self._bytes_max = bytes_max
        self._unsettled: deque[WindowEntry] = deque()
        self._to_send: deque[WindowEntry] = deque()  # not sent on this connection
        self._awaiting: deque[WindowEntry] = deque()  # sent on this connection and not answered
        self._bytes = 0
        self._gap: int | None = None  # the first sequence of this producer id refused for good

    def __len__(self) -> int:
        return len(self._unsettled)

    def has_room(self) -> bool:
        """Tell whether another batch may be added now."""
        if not self._unsettled:
            return True
        limit = self._batches_max if self.confirmed else 1
        free = len(self._unsettled) < limit and self._bytes < self._bytes_max
        return free and self._gap is None

    def add(self, batch: Any, *, records_count: int, size_bytes: int) -> WindowEntry:
        """Give a batch its numbers and its place in the order."""
        sequence = self.next_sequence if self._numbered else NO_SEQUENCE
        entry = WindowEntry(batch, records_count, size_bytes, self.producer_id, sequence)
        self.next_sequence += records_count
        self._unsettled.append(entry)
        self._to_send.append(entry)
        self._bytes += size_bytes
        return entry

    def connected(self) -> None:
        """Note a new connection: all unsettled batches must be sent on it."""
        self._leave_in_doubt()
        self._to_send = deque(self._unsettled)
        self.draining = False

    @property
    def must_wait(self) -> bool:
        """Tell whether the next batch may only be sent after an answer (rule 4)."""
        return bool(self._to_send and self._awaiting) and not self.confirmed and not self.draining

    def next_to_send(self) -> WindowEntry | None:
        """Return the batch to write to the connection now, if any; its answer is then awaited."""
        if self.draining or self.must_wait or not self._to_send:
            return None
        entry = self._to_send.popleft()
        entry.maybe_stored = True
        self._awaiting.append(entry)
        return entry

    def judged(self, answer: AppendResult | HeadwaterError) -> AppendResult | HeadwaterError:
        """Return the answer, or StaleLeaderEpochError if its leader epoch is too old (rule 5)."""
        if not isinstance(answer, AppendResult):
            return answer
        if answer.leader_epoch < self.leader_epoch:
            stale = StaleLeaderEpochError(
                f"an acknowledgement of leader epoch {answer.leader_epoch} came after one of "
                f"{self.leader_epoch}; the batch is sent again",
                got=answer.leader_epoch,
                current=self.leader_epoch,
            )
            return of_unknown_outcome(stale)
        self.leader_epoch = answer.leader_epoch
        return answer

    def answered(self, answer: AppendResult | HeadwaterError) -> WindowEntry | None:
        """Apply the answer to the oldest unanswered batch; return that batch if it is settled.

        Raises:
            EnvelopeError: the broker sent more answers than it got batches.
            HeadwaterError: the answer, if it is not about the batch: the producer must end.
        """
        if not self._awaiting:
            raise EnvelopeError("the broker acknowledged a batch that was not sent")
        entry = self._awaiting.popleft()
        settled = True
        if isinstance(answer, AppendResult):
            self.confirmed = True
        elif isinstance(answer, SequenceGapError) and (self.draining or self._is_behind_gap(entry)):
            entry.maybe_stored = settled = False
        elif isinstance(answer, InvalidRequestError) and not isinstance(answer, SequenceGapError):
            self._leave_gap(entry)
        elif worth_retrying(answer, several=self.several):
            self.draining = True
            settled = False
            certain = isinstance(answer, OverloadedError | FencedError)
            entry.in_doubt |= not certain or may_be_stored(answer)
        else:
            raise answer
        if settled:
            self._settle(entry)
        self._renumber_behind_gap()
        return entry if settled else None

    def handed_over(self, entry: WindowEntry) -> bool:
        """Settle a batch without an answer (ack policy NONE); it is the last batch sent.

        False: the batch was abandoned before.
        """
        self._await_no_longer(entry)
        return self._settle(entry)

    def refused_by_client(self, entry: WindowEntry) -> bool:
        """Settle a batch that this client's Flight refuses; it was to be the last batch sent.

        False: the batch was abandoned before.
        """
        self._await_no_longer(entry)
        if not self._settle(entry):
            return False
        self._leave_gap(entry)
        self._renumber_behind_gap()
        return True

    def ended(self, *, unread: bool = False) -> None:
        """Note that the connection is over. ``unread``: no batch without an answer was taken."""
        if unread:
            self._awaiting.clear()
        self._leave_in_doubt()
        self._to_send.clear()
        self.draining = True

    def abandon(self) -> list[WindowEntry]:
        """Remove all unsettled batches from the window and return them."""
        left = list(self._unsettled)
        for queue in (self._unsettled, self._to_send, self._awaiting):
            queue.clear()
        self._bytes = 0
        return left

    def _leave_in_doubt(self) -> None:
        for entry in self._awaiting:
            entry.in_doubt = True
        self._awaiting.clear()

    def _await_no_longer(self, entry: WindowEntry) -> None:
        if self._awaiting and self._awaiting[-1] is entry:  # else the connection is over
            self._awaiting.pop()

    def _settle(self, entry: WindowEntry) -> bool:
        """Remove a batch; tell whether it was still in the window."""
        if entry not in self._unsettled:
            return False
        self._unsettled.remove(entry)  # the head, unless an earlier batch must be sent again
        self._bytes -= entry.size_bytes
        return True

    def _leave_gap(self, entry: WindowEntry) -> None:
        if self._numbered:
            at = entry.base_sequence
            self._gap = at if self._gap is None else min(at, self._gap)

    def _is_behind_gap(self, entry: WindowEntry) -> bool:
        return self._gap is not None and entry.base_sequence > self._gap

    def _renumber_behind_gap(self) -> None:
        if self._gap is not None and not any(other.maybe_stored for other in self._unsettled):
            self._renumber()

    def _renumber(self) -> None:
        """Give all unsettled batches a new producer id; none of them is stored."""
        assert not self._awaiting, "a batch without an answer may be stored"
        self._gap = None
        self.producer_id = self._new_producer_id()
        self.next_sequence = 0
        self.confirmed = False
        for entry in self._unsettled:
            entry.in_doubt = False
            entry.producer_id = self.producer_id
            entry.base_sequence = self.next_sequence
            self.next_sequence += entry.records_count
        self.draining = self.draining or bool(self._unsettled)  # the next connection sends them
