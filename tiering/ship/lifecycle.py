"""How one partition's segments become cold: states, planner and state machine. Pure.

``PartitionTier.step(event) -> effect`` decides; shipper.py performs. Exactly one effect is
performed at a time. The process may die before, during or after any effect. So after a failure the
next cycle begins with what the table and the ledger say. This order makes the steps safe:

    object stored -> read back -> committed -> in the ledger -> cold end recorded -> local may free

A table that another process wrote is used only after it is proved to be of our history.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from enum import Enum
from typing import Final

from broker.errors import GapError, TableMismatchError
from broker.model.offsets import Offset, OffsetRange
from broker.ports.partition import SegmentInfo


class TierState(Enum):
    """What a partition is waiting for; the value names the event that ends the wait."""

    RESTING = "woken"
    LOADING = "table loaded"
    AUDITING = "ledger read"
    PROVING = "history proved"
    REPAIRING = "ledger repaired"
    RECORDING = "cold end recorded"
    LISTING = "log listed"
    PACKING = "segments packed"
    STORING = "object stored"
    CHECKING = "object checked"
    COMMITTING = "committed"
    NOTING = "ledger written"


# --------------------------------------------------------------------------------------- events


@dataclass(frozen=True, slots=True)
class Woken:
    """A segment was sealed, the check interval passed, or a caller asked for a flush."""


@dataclass(frozen=True, slots=True)
class TableLoaded:
    """The newest table version is loaded; by its transactions it holds ``[.., cold_end)``."""

    cold_end: Offset


@dataclass(frozen=True, slots=True)
class LedgerRead:
    """The ledger's last entry ends at ``end`` (0 when there is none)."""

    end: Offset


@dataclass(frozen=True, slots=True)
class HistoryProved:
    """The table's rows belong to the history of the local log."""


@dataclass(frozen=True, slots=True)
class LedgerRepaired:
    """The ledger now covers every range that the table holds."""


@dataclass(frozen=True, slots=True)
class ColdEndRecorded:
    """The metadata has the cold end; local segments below it may be freed."""


@dataclass(frozen=True, slots=True)
class LogListed:
    """The present segments and high watermark of the local log."""

    segments: Sequence[SegmentInfo]
    high_watermark: Offset


@dataclass(frozen=True, slots=True)
class Postponed:
    """There is more to pack, but the worker serves other partitions first."""


@dataclass(frozen=True, slots=True)
class SegmentsPacked:
    """The object's bytes are ready, in memory."""


@dataclass(frozen=True, slots=True)
class ObjectStored:
    """The object is durable in the store, and not yet in the table."""


@dataclass(frozen=True, slots=True)
class ObjectChecked:
    """The object was read back: size, checksum, rows, bounds and digest are right."""


@dataclass(frozen=True, slots=True)
class Committed:
    """One durable table version has the object and the cold end; it was loaded again."""


@dataclass(frozen=True, slots=True)
class CommitLost:
    """The compare-and-set failed: the table's cold end is ``found``. Nothing was committed."""

    found: Offset


@dataclass(frozen=True, slots=True)
class LedgerWritten:
    """The ledger has the committed range."""


@dataclass(frozen=True, slots=True)
class Failed:
    """An effect raised; its outcome may be unknown."""


Event = (
    Woken | TableLoaded | LedgerRead | HistoryProved | LedgerRepaired | ColdEndRecorded | LogListed
    | Postponed | SegmentsPacked | ObjectStored | ObjectChecked | Committed | CommitLost
    | LedgerWritten | Failed
)  # fmt: skip


# -------------------------------------------------------------------------------------- effects


@dataclass(frozen=True, slots=True)
class LoadTable:
    """Load the newest version; refuse one that ends below ``cold_end_min``. -> TableLoaded."""

    cold_end_min: Offset


@dataclass(frozen=True, slots=True)
class ReadLedger:
    """Find the end of the ledger. -> LedgerRead."""


@dataclass(frozen=True, slots=True)
class ProveHistory:
    """Prove that the table's newest range belongs to our history, before the table is used.

    -> HistoryProved.
    """


@dataclass(frozen=True, slots=True)
class RepairLedger:
    """Write the ledger entries that a crash left out, proved by the table. -> LedgerRepaired."""

    missing: OffsetRange


@dataclass(frozen=True, slots=True)
class TellColdEnd:
    """Record the cold end in the metadata; after table and ledger have it. -> ColdEndRecorded."""

    cold_end: Offset


@dataclass(frozen=True, slots=True)
class ListLog:
    """Read the list of local segments and the high watermark. -> LogListed."""


@dataclass(frozen=True, slots=True)
class PackSegments:
    """Read the range, checking every CRC, and write the object in memory.

    -> SegmentsPacked, or Postponed if other partitions come first.
    """

    range: OffsetRange
    segments_count: int


@dataclass(frozen=True, slots=True)
class StoreObject:
    """PUT the object under an unused key, if absent. -> ObjectStored."""


@dataclass(frozen=True, slots=True)
class CheckObject:
    """GET the object and prove its bytes. -> ObjectChecked."""


@dataclass(frozen=True, slots=True)
class CommitObject:
    """Add the object and move the cold end over ``range``. -> Committed or CommitLost."""

    range: OffsetRange


@dataclass(frozen=True, slots=True)
class WriteLedger:
    """Create the range's ledger entry; only after the commit. -> LedgerWritten."""


@dataclass(frozen=True, slots=True)
class Rest:
    """Nothing to do until woken."""


Effect = (
    LoadTable | ReadLedger | ProveHistory | RepairLedger | TellColdEnd | ListLog | PackSegments
    | StoreObject | CheckObject | CommitObject | WriteLedger | Rest
)  # fmt: skip

# Any other event in a state is a bug of the shell, not a race. Failed is allowed in every state.
EXPECTED: Final[Mapping[TierState, tuple[type, ...]]] = {
    TierState.RESTING: (Woken,),
    TierState.LOADING: (TableLoaded,),
    TierState.AUDITING: (LedgerRead,),
    TierState.PROVING: (HistoryProved,),
    TierState.REPAIRING: (LedgerRepaired,),
    TierState.RECORDING: (ColdEndRecorded,),
    TierState.LISTING: (LogListed,),
    TierState.PACKING: (SegmentsPacked, Postponed),
    TierState.STORING: (ObjectStored,),
    TierState.CHECKING: (ObjectChecked,),
    TierState.COMMITTING: (Committed, CommitLost),
    TierState.NOTING: (LedgerWritten,),
}


class PartitionTier:
    """The state machine of one partition. Owner: the worker that runs the partition's cycle."""

    def __init__(self, partition: int, *, object_bytes_max: int, recorded: Offset) -> None:
        """Begin with the cold end that the metadata has recorded."""
        self._partition = partition
        self._object_bytes_max = object_bytes_max
        self.recorded = recorded
        self.cold_end = recorded
        self.state = TierState.RESTING
        self._trusted = False  # whether table and ledger have confirmed cold_end
        self._noted_end = Offset(0)  # the ledger's end when it was last read
        self._range = OffsetRange(recorded, recorded)

    def step(self, event: Event) -> Effect:
        """Consume one event; return the next effect.

        Raises:
            TableMismatchError: the table has records that the local log never had.
            GapError: records are neither in the table nor in the local log.
        """
        if isinstance(event, Failed):
            self._trusted = False
            self.state = TierState.RESTING
            return Rest()
        assert isinstance(event, EXPECTED[self.state]), f"{event} in {self.state}"
        try:
            return self._decide(event)
        except (TableMismatchError, GapError):
            self.step(Failed())
            raise

    def _decide(self, event: Event) -> Effect:
        match event:
            case Woken() if not self._trusted:
                return self._go(TierState.LOADING, LoadTable(self.recorded))
            case TableLoaded(cold_end):
                self.cold_end = cold_end
                return self._go(TierState.AUDITING, ReadLedger())
            case LedgerRead(end) if end > self.cold_end:
                # Another process committed between the two reads, or the table has lost a commit.
                # In the second case loading the table with this bound raises an error.
                return self._go(TierState.LOADING, LoadTable(end))
            case LedgerRead(end) if self.cold_end > 0:
                self._noted_end = end
                return self._go(TierState.PROVING, ProveHistory())
            case HistoryProved() if self._noted_end < self.cold_end:
                missing = OffsetRange(self._noted_end, self.cold_end)
                return self._go(TierState.REPAIRING, RepairLedger(missing))
            case Committed():
                self.cold_end = self._range.end
                return self._go(TierState.NOTING, WriteLedger())
            case LedgerRead() | HistoryProved() | LedgerRepaired() | LedgerWritten():
                self._trusted = True
                return self._record_or_list()
            case CommitLost():
                # Table and ledger now decide: drop the object, cut the range, or ship it again.
                self._trusted = False
                return self._go(TierState.LOADING, LoadTable(self.recorded))
            case ColdEndRecorded():
                self.recorded = self.cold_end
                return self._go(TierState.LISTING, ListLog())
            case LogListed(segments, high_watermark):
                return self._plan(segments, high_watermark)
            case Woken():
                return self._go(TierState.LISTING, ListLog())
            case Postponed():
                return self._go(TierState.RESTING, Rest())
            case SegmentsPacked():
                return self._go(TierState.STORING, StoreObject())
            case ObjectStored():
                return self._go(TierState.CHECKING, CheckObject())
            case _:
                assert isinstance(event, ObjectChecked), f"no rule for {event}"
                return self._go(TierState.COMMITTING, CommitObject(self._range))

    def _record_or_list(self) -> Effect:
        if self.cold_end > self.recorded:
            return self._go(TierState.RECORDING, TellColdEnd(self.cold_end))
        return self._go(TierState.LISTING, ListLog())

    def _plan(self, segments: Sequence[SegmentInfo], high_watermark: Offset) -> Effect:
        if self.cold_end > high_watermark:
            if segments and self.cold_end <= segments[-1].end_offset:
                return self._go(TierState.RESTING, Rest())  # a new leader has not heard it yet
            raise TableMismatchError(
                f"the table of partition {self._partition} ends at {self.cold_end}, above the "
                f"local log, whose high watermark is {high_watermark}: another writer adds to the "
                "table, or the local log was replaced",
                partition=self._partition,
                expected=int(high_watermark),
                found=int(self.cold_end),
            )
        chosen = plan_shipment(
            segments,
            cold_end=self.cold_end,
            high_watermark=high_watermark,
            bytes_max=self._object_bytes_max,
            partition=self._partition,
        )
        if not chosen:
            return self._go(TierState.RESTING, Rest())
        self._range = OffsetRange(self.cold_end, chosen[-1].end_offset)
        return self._go(TierState.PACKING, PackSegments(self._range, len(chosen)))

    def _go(self, state: TierState, effect: Effect) -> Effect:
        self.state = state
        return effect


def plan_shipment(
    segments: Sequence[SegmentInfo],
    *,
    cold_end: Offset,
    high_watermark: Offset,
    bytes_max: int,
    partition: int,
) -> list[SegmentInfo]:
    """Choose the segments of the next object: sealed, committed, gap-free from the cold end on.

    Oldest first; as many as fit ``bytes_max``, but at least one. The first may begin below the
    cold end, if another uploader has committed a part of it. Empty: nothing to ship.

    Raises:
        GapError: the log begins above the cold end, or has a gap between segments.
    """
    chosen: list[SegmentInfo] = []
    size = 0
    expected = cold_end
    for segment in segments:
        if segment.end_offset <= expected:
            continue
        if segment.base_offset > expected:
            raise GapError(
                f"partition {partition}: offsets [{expected}, {segment.base_offset}) are neither "
                "in the table nor in the local log",
                partition=partition,
                start=int(expected),
                end=int(segment.base_offset),
            )
        if not segment.sealed or segment.end_offset > high_watermark:
            break
        if chosen and size + segment.size_bytes > bytes_max:
            break
        chosen.append(segment)
        size += segment.size_bytes
        expected = segment.end_offset
    return chosen
