"""Planning one group commit: which batches to write, and the answer to each submitter. Pure.

Offsets are computed from the log end; this is safe because one thread writes a partition. The retry
tables are unchanged until :meth:`CommitGroup.written` is called, when the log has the group. So
after a failed write or a crashed turn nothing must be undone.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, field, replace
from typing import Any

import numpy as np
import pyarrow as pa

from broker.codec.disk.segment_format import SEGMENT_HEADER_SIZE
from broker.codec.nats.conditions import wrong_last_sequence
from broker.codec.record_batch import PreparedBatch
from broker.core.dedup import ProducerPlan, ProducerTable
from broker.core.message_ids import IdPlan, MessageIdWindow, Repeats, digests_of, find_repeats
from broker.errors import (
    HeadwaterError,
    PartitionsAddedError,
    RecordTooLargeError,
    SequenceGapError,
    of_unknown_outcome,
)
from broker.model.epochs import LeaderEpoch
from broker.model.ids import IDS_COUNT, IDS_DO_NOT_COUNT, NO_PRODUCER
from broker.model.offsets import Offset
from broker.model.records import AckPolicy, AppendResult
from broker.ports.partition import RecordsOutcome, WriteOrder


@dataclass(frozen=True, slots=True)
class BatchesWrite:
    """A :meth:`PartitionHandle.submit` call that waits for its group."""

    batches: Sequence[PreparedBatch]
    done: Callable[[Sequence[AppendResult | HeadwaterError]], None]
    size_bytes: int
    policy: AckPolicy = AckPolicy.ALL

    def refuse(self, error: HeadwaterError) -> None:
        """Answer with an error; nothing was written."""
        self.done([error] * len(self.batches))


@dataclass(frozen=True, slots=True)
class RecordsWrite:
    """A :meth:`PartitionHandle.submit_records` call that waits for its group."""

    batch: pa.RecordBatch
    prepared: PreparedBatch  # the whole batch encoded; used if no row is a repeat
    message_ids: Sequence[str | None] | None
    done: Callable[[RecordsOutcome | HeadwaterError], None]
    size_bytes: int
    policy: AckPolicy = AckPolicy.ALL
    expected_end: Offset | None = None  # the log end that the publisher's condition names
    order: WriteOrder | None = None

    def refuse(self, error: HeadwaterError) -> None:
        """Answer with an error; nothing was written."""
        self.done(error)


Write = BatchesWrite | RecordsWrite


@dataclass(frozen=True, slots=True)
class Answer:
    """The answer to a caller, sent when all records below ``end`` are as durable as it asked."""

    write: Write
    outcome: Any  # the argument of ``done``
    end: Offset
    start: Offset  # start of the group: outcomes at or above it depend on this write

    def tell(self) -> None:
        """Send the outcome."""
        self.write.done(self.outcome)

    def unwritten(self, failure: HeadwaterError) -> Answer:
        """Return the answer when the group was not written: an error for all that needed that.

        A repeat of an earlier batch still waits for its ``end``: it may not be committed yet.
        """
        if isinstance(self.write, RecordsWrite):
            return replace(self, outcome=failure, end=Offset(0))
        outcome = [self._settled(one, failure) for one in self.outcome]
        return replace(self, outcome=outcome, end=_end_of(outcome))

    def abandon(self, error: HeadwaterError) -> None:
        """Answer the caller with ``error``, and tell that the outcome of its write is unknown.

        A refusal of the group stays: what it refused is not in the log.
        """
        unknown = of_unknown_outcome(error)
        match self.write:
            case BatchesWrite():
                told = [one if isinstance(one, HeadwaterError) else unknown for one in self.outcome]
                self.write.done(told)
            case RecordsWrite():
                self.write.done(unknown)

    def _settled(
        self, outcome: AppendResult | HeadwaterError, failure: HeadwaterError
    ) -> AppendResult | HeadwaterError:
        needed_write = isinstance(outcome, AppendResult) and outcome.base_offset >= self.start
        return failure if needed_write else outcome


@dataclass(slots=True)
class CommitGroup:
    """One group: the batches to append, and the answers once they are durable."""

    producers: ProducerTable
    window: MessageIdWindow
    start: Offset
    leader_epoch: LeaderEpoch
    now_us: int
    encode: Callable[[pa.RecordBatch], PreparedBatch]
    partitions_count: int  # of the stream
    batches: list[PreparedBatch] = field(default_factory=list)
    _end: int = -1
    _answers: list[tuple[Write, Any]] = field(default_factory=list)
    duplicates_count: int = 0
    _producer_plan: ProducerPlan = field(init=False)
    _id_plan: IdPlan = field(init=False)

    def __post_init__(self) -> None:
        self._end = self.start
        self._producer_plan = ProducerPlan(self.producers)
        self._id_plan = IdPlan(self.window)

    @property
    def end(self) -> Offset:
        """The log end when the group is written."""
        return Offset(self._end)

    def add(self, write: Write) -> None:
        """Add one call to the group."""
        match write:
            case BatchesWrite():
                self._answers.append((write, [self._add_batch(one) for one in write.batches]))
            case RecordsWrite():
                self._answers.append((write, self._add_records(write)))

    def answers(self) -> Iterator[Answer]:
        """Yield the answer to each caller, with the log end that must be committed first."""
        for write, outcome in self._answers:
            yield Answer(write, outcome, self._needed_end(outcome), self.start)

    def written(self) -> None:
        """Update the retry tables: the group is in the log now."""
        self._producer_plan.apply()
        self._id_plan.apply(self.now_us)

    def _needed_end(self, outcome: Any) -> Offset:
        """Return the end of an outcome's records; the records of a repeat may be committed."""
        if isinstance(outcome, HeadwaterError):
            return Offset(0)
        if isinstance(outcome, RecordsOutcome):
            offsets = outcome.offsets
            if isinstance(offsets, range):
                return Offset(offsets.stop)
            return Offset(max(offsets, default=-1) + 1)
        return _end_of(outcome)

    def _place(self, batch: PreparedBatch, *, ids_count: bool = False) -> Offset:
        """Place a batch at the group's end, marked for the next leader, which reads its ids."""
        base = Offset(self._end)
        if batch.producer_id == NO_PRODUCER:
            mark = IDS_COUNT if ids_count else IDS_DO_NOT_COUNT
            batch = replace(batch, base_sequence=mark)
        self.batches.append(batch)
        self._end += batch.records_count
        return base

    def _add_batch(self, batch: PreparedBatch) -> AppendResult | HeadwaterError:
        known: Offset | None = None
        late = placed_by_fewer(batch, self.partitions_count)
        if batch.producer_id != NO_PRODUCER:
            try:
                known = self._producer_plan.find(
                    batch.producer_id, batch.base_sequence, batch.records_count
                )
            except SequenceGapError as error:
                return late or error
        if known is not None:
            self.duplicates_count += batch.records_count
            return AppendResult(known, batch.records_count, self.leader_epoch, duplicate=True)
        if late is not None:  # after the look at earlier batches: a repeated one is stored
            return late
        base = self._place(batch)
        if batch.producer_id != NO_PRODUCER:
            self._producer_plan.add(
                batch.producer_id, batch.base_sequence, batch.records_count, base
            )
        return AppendResult(base, batch.records_count, self.leader_epoch)

    def _add_records(self, write: RecordsWrite) -> RecordsOutcome | HeadwaterError:
        if write.expected_end not in (None, self._end):
            return wrong_last_sequence(self.end)
        rows = write.batch.num_rows
        if write.message_ids is None:
            base = self._place(write.prepared)
            return RecordsOutcome(_offsets(base, rows), frozenset(), self.leader_epoch)
        digests = digests_of(write.message_ids)
        repeats = find_repeats(self._id_plan, digests, self.now_us)
        if not repeats:
            base = self._place(write.prepared, ids_count=True)
            every = _offsets(base, rows)
            self._id_plan.add_all(zip(digests, every, strict=True))
            return RecordsOutcome(every, frozenset(), self.leader_epoch)
        offsets = self._place_rest(write.batch, repeats)
        duplicates = frozenset(repeats.stored) | frozenset(repeats.inside)
        self.duplicates_count += len(duplicates)
        ids = enumerate(zip(digests, offsets, strict=True))
        self._id_plan.add_all(one for row, one in ids if row not in duplicates)
        return RecordsOutcome(offsets, duplicates, self.leader_epoch)

    def _place_rest(self, batch: pa.RecordBatch, repeats: Repeats) -> list[Offset]:
        keep = np.ones(batch.num_rows, dtype=bool)
        keep[[*repeats.stored, *repeats.inside]] = False
        base = Offset(self._end)
        if keep.any():
            self._place(self.encode(batch.filter(pa.array(keep))), ids_count=True)
        offsets = [Offset(int(one)) for one in base + np.cumsum(keep) - 1]
        for row, offset in repeats.stored.items():
            offsets[row] = offset
        for row, first_row in repeats.inside.items():
            offsets[row] = offsets[first_row]
        return offsets


def placed_by_fewer(batch: PreparedBatch, partitions_count: int) -> PartitionsAddedError | None:
    """Return the error if a producer placed the keys by fewer partitions than there are.

    A record of a key that has moved on would count as older than records stored before it.
    """
    if batch.placed_by is None or batch.placed_by >= partitions_count:
        return None
    return PartitionsAddedError(
        f"the stream has {partitions_count} partitions, and the keys of this batch were placed by "
        f"{batch.placed_by}: place them anew",
        partitions_count=partitions_count,
    )


def _end_of(outcomes: Sequence[AppendResult | HeadwaterError]) -> Offset:
    """Return the end of all records that were placed; 0 if none was."""
    placed = (one for one in outcomes if isinstance(one, AppendResult))
    return Offset(max((one.base_offset + one.records_count for one in placed), default=0))


def _offsets(base: Offset, count: int) -> Sequence[Offset]:
    return range(base, base + count)  # type: ignore[return-value]  # a range of offsets, unboxed


def refuse_too_large(write: Write, limit_bytes: int) -> None:
    """Raise RecordTooLargeError for a write that no segment could hold."""
    room = limit_bytes - SEGMENT_HEADER_SIZE
    if write.size_bytes > room:
        raise RecordTooLargeError(
            f"a batch of {write.size_bytes} bytes does not fit into a segment of {limit_bytes} "
            f"bytes (segment_bytes_max), which has room for {room}",
            size_bytes=write.size_bytes,
            limit_bytes=room,
        )
