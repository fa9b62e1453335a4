"""Whether the rows of a table are of the history that is here: one check for all who use them.

Offsets are no identity. A copy of a data folder, a restored backup, or a process that slept
through its replacement counts on from the same offsets and may feed the same table. So each range
says which start of leadership shipped it (broker/model/lineage.py), and a table is ours only if the
position ``(lineage id, cold end)`` of its newest range belongs to our history, and its rows are the
local log's where the log still has them. Everything below was there before that position was.
"""

from __future__ import annotations

import threading
from collections.abc import Iterable

import pyarrow as pa

from broker.codec.schema import FILE_SCHEMA
from broker.errors import ForeignHistoryError, ObjectMissingError
from broker.model.ids import PartitionId
from broker.model.lineage import LINEAGE_KEPT, Lineage, holds
from broker.model.offsets import Offset, OffsetRange
from broker.ports.tiering import TierSource
from tiering.read.reader import read_rows
from tiering.ship.segment_writer import RangeFacts, SegmentPlace, log_rows
from tiering.table.ledger import NO_VERSION, Ledger, LedgerEntry, decode_ranges
from tiering.table.ledger_repair import log_batches
from tiering.table.table import Table, TableSnapshot


class ProvedEnds:
    """Up to where each partition's table was proved to be ours, in this process. Any thread."""

    def __init__(self) -> None:
        """Nothing is proved yet."""
        self._ends: dict[PartitionId, Offset] = {}
        self._lock = threading.Lock()

    def covers(self, partition: PartitionId, cold_end: Offset) -> bool:
        """Tell whether a table that ends here is ours; the cold end moves only forward."""
        return cold_end <= self._ends.get(partition, 0)

    def prove(self, partition: PartitionId, cold_end: Offset) -> None:
        """Note that the table is ours up to here."""
        with self._lock:
            self._ends[partition] = Offset(max(cold_end, self._ends.get(partition, 0)))


def newest_range(table: Table, snapshot: TableSnapshot, number: int) -> LedgerEntry | None:
    """Return what ledger or log say of the range that ends at the cold end; None: neither does."""
    cold_end = snapshot.cold_end(number)
    ledger = Ledger(table.store)
    for file in snapshot.files:
        if file.partition == number and file.end_offset == cold_end and file.min_offset is not None:
            try:  # as long as nobody has rewritten our file
                entry = ledger.get(number, file.min_offset)
            except ObjectMissingError:
                continue
            if entry.end == cold_end:
                return entry
    starts = ledger.starts(number)
    below = [start for start in starts if start < cold_end]
    last = ledger.get(number, below[-1]) if below else None
    if last is not None and last.end == cold_end:
        return last
    above = NO_VERSION if last is None else last.version
    for commit in table.commits(above=max(above, 0)):
        for entry in decode_ranges(commit.ranges_json, version=commit.version):
            if (entry.partition, entry.end) == (number, cold_end):
                return entry
    return None


def require_ours(
    snapshot: TableSnapshot,
    number: int,
    newest: LedgerEntry | None,
    *,
    lineage: Lineage,
    recorded: Offset,
) -> None:
    """Refuse a table whose newest range of a partition is not of a history.

    ``recorded`` is the cold end that this history has recorded. Ranges from before there were
    lineages, and those of leaderships that the lineage has forgotten, are ours below it.

    Raises:
        ForeignHistoryError: the table is of another history.
    """
    cold_end = snapshot.cold_end(number)
    if newest is None or not newest.lineage_id:
        if cold_end <= recorded or not lineage:
            return
        whose = "nobody knows who shipped"
    else:
        if holds(lineage, newest.lineage_id, newest.end):
            return
        forgotten = (
            len(lineage) == LINEAGE_KEPT and newest.last_leader_epoch < lineage[0].leader_epoch
        )
        if forgotten and cold_end <= recorded:
            return
        whose = f"leadership {newest.lineage_id} shipped"
    start = cold_end if newest is None else newest.start
    raise foreign(snapshot, number, f"{whose} [{start}, {cold_end})")


def foreign(snapshot: TableSnapshot, number: int, reason: str) -> ForeignHistoryError:
    """Return the error that names table, partition and reason."""
    return ForeignHistoryError(
        f"{snapshot.uri} version {snapshot.version} is of another history: {reason} of partition "
        f"{number}, and the log that is here does not hold it. A copy of this data feeds the "
        "table, or this is an older copy than the table; nothing is shipped, served or freed",
        uri=snapshot.uri,
        partition=number,
        version=snapshot.version,
    )


def require_rows_of_log(
    table: Table,
    snapshot: TableSnapshot,
    source: TierSource,
    newest: LedgerEntry | None,
    place: SegmentPlace,
) -> bool:
    """Compare the newest range with the local log where the log has it; tell whether it has.

    Raises:
        ForeignHistoryError: the rows are not the log's.
        BatchCorruptError, SegmentCorruptError: the log cannot be read.
    """
    number = int(source.partition_id.number)
    start = snapshot.ranges[number].start if newest is None else newest.start
    end = snapshot.cold_end(number)
    if end > source.log_end:
        reason = f"the table ends at {end} and the log at {source.log_end}, of what is more"
        raise foreign(snapshot, number, reason)
    if end <= source.log_start:
        return False
    held = OffsetRange(Offset(max(start, source.log_start)), end)
    local = _digest(log_rows(log_batches(source, held), held, place))
    if newest is not None and held == newest.range:
        cold = newest.digest
    else:
        cold = _digest(read_rows(snapshot, table.store, number, held, FILE_SCHEMA))
    if local != cold:
        raise foreign(snapshot, number, f"rows {held} have digest {cold}, not the log's {local},")
    return True


def _digest(batches: Iterable[pa.RecordBatch]) -> str:
    facts = RangeFacts()
    for rows in batches:
        facts.add(rows)
    return facts.digest
