"""How one partition's segments become cold: states, planner, and the machine. Pure.

``PartitionTier.step(event) -> effect`` decides; uploader.py performs. There is always exactly one
effect under way, and the process may die before, during or after any of them: every cycle after a
failure begins at the table and the ledger, which alone say what is true. The order is the safety:

    object stored -> read back -> committed -> in the ledger -> cold end recorded -> local may free

What others committed is believed only once it is proved to be of our history.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from enum import Enum
from typing import Final, Literal

from broker.errors import GapError, TableMismatchError
from broker.model.offsets import Offset, OffsetRange
from broker.ports.partition import SegmentInfo


class TierState(Enum):
    """What a partition is waiting for. The value is the past participle of what will end it."""

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
    """A segment was sealed, time passed, or somebody asked for a flush."""


@dataclass(frozen=True, slots=True)
class TableLoaded:
    """The newest table version says that ``[.., cold_end)`` is in it."""

    cold_end: Offset


@dataclass(frozen=True, slots=True)
class LedgerRead:
    """The ledger's last entry ends at ``end`` (0 when there is none)."""

    end: Offset


@dataclass(frozen=True, slots=True)
class HistoryProved:
    """What the table holds is of the history that the local log holds."""


@dataclass(frozen=True, slots=True)
class LedgerRepaired:
    """The ledger now covers all that the table has."""


@dataclass(frozen=True, slots=True)
class ColdEndRecorded:
    """The metadata has the cold end; local segments below it may go."""


@dataclass(frozen=True, slots=True)
class LogListed:
    """The local log as it is now."""

    segments: Sequence[SegmentInfo]
    high_watermark: Offset


@dataclass(frozen=True, slots=True)
class Postponed:
    """There is something to pack, but others are to have their turn first."""


@dataclass(frozen=True, slots=True)
class SegmentsPacked:
    """The object's bytes exist, in memory."""


@dataclass(frozen=True, slots=True)
class ObjectStored:
    """The object is in the store, durable, in nobody's table yet."""


@dataclass(frozen=True, slots=True)
class ObjectChecked:
    """The object was read back: size, checksum, rows, bounds and digest are right."""


@dataclass(frozen=True, slots=True)
class Committed:
    """The table has object and cold end, in one durable version that was loaded again."""


@dataclass(frozen=True, slots=True)
class CommitLost:
    """The compare-and-set failed: the cold end is not where we believed. Nothing was committed."""

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
    """Show that the table's newest range is of our history, before it is believed.

    -> HistoryProved.
    """


@dataclass(frozen=True, slots=True)
class RepairLedger:
    """Write what a crash left out of the ledger, proved from the table. -> LedgerRepaired."""

    missing: OffsetRange


@dataclass(frozen=True, slots=True)
class TellColdEnd:
    """Tell the broker's metadata; only after table and ledger have it. -> ColdEndRecorded."""

    cold_end: Offset


@dataclass(frozen=True, slots=True)
class ListLog:
    """Look at the local segments and the high watermark. -> LogListed."""


@dataclass(frozen=True, slots=True)
class PackSegments:
    """Read the range, checking every CRC, and write the object in memory. -> SegmentsPacked."""

    range: OffsetRange
    segments_count: int


@dataclass(frozen=True, slots=True)
class StoreObject:
    """PUT under a fresh key, if absent. -> ObjectStored."""


@dataclass(frozen=True, slots=True)
class CheckObject:
    """GET and prove the bytes. -> ObjectChecked."""


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

# A pair that is absent is a bug of the shell, not a race. Failed is allowed everywhere.
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
    """The machine of one partition. Owner: whichever worker runs the partition's cycle."""

    def __init__(self, partition: int, *, object_bytes_max: int, recorded: Offset) -> None:
        """Begin with what the metadata recorded as cold end."""
        self._partition = partition
        self._object_bytes_max = object_bytes_max
        self.recorded = recorded
        self.cold_end = recorded
        self.state = TierState.RESTING
        self._trusted = False  # whether cold_end was confirmed by table and ledger
        self._noted_end = Offset(0)  # of the ledger, when it was read
        self._range = OffsetRange(recorded, recorded)

    def step(self, event: Event) -> Effect:
        """Consume one event; return the one thing to do next.

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
                # Another process has committed between the two looks, or a commit is gone from
                # the table: then loading it with this proof says so.
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
                # Table and ledger say what to do: drop the object, cut the range, or redo it.
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
            raise TableMismatchError(
                f"the table of partition {self._partition} ends at {self.cold_end}, above the "
                f"log's committed end {high_watermark}: another writer feeds it, or the local "
                "log was replaced",
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
    cold end (a commit that was lost to another uploader may have cut it). Empty: nothing to ship.

    Raises:
        GapError: the log begins above the cold end, or has a hole between segments.
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


def conflict_outcome(found: Offset, lost: OffsetRange) -> Literal["drop", "cut", "redo"]:
    """Say what becomes of an object whose commit was lost, for people to read.

    Someone else has committed all of it (drop), a part (cut: the rest is written anew), or the
    commit only has to be tried again.
    """
    if found >= lost.end:
        return "drop"
    return "cut" if found > lost.start else "redo"
