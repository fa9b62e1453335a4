"""Checks whether the rows of a table belong to the local history: one check for every caller.

The same offsets may belong to two histories. A copy of a data folder, a restored backup, or a
process that was suspended while another broker replaced it goes on from the same offsets, and may
write into the same table. So each range names the leadership that shipped it (see
broker/model/lineage.py). A table is ours only if two things hold: the position ``(lineage id, cold
end)`` of its newest range belongs to our history, and that range's rows equal the local log's,
where the log still has them. The older ranges need no check, because the newest range was shipped
on top of them.
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
    """Per partition, the offset up to which this process proved the table ours. Any thread."""

    def __init__(self) -> None:
        """Start with nothing proved."""
        self._ends: dict[PartitionId, Offset] = {}
        self._lock = threading.Lock()

    def covers(self, partition: PartitionId, cold_end: Offset) -> bool:
        """Tell whether a table with this cold end is proved; the cold end moves only forward."""
        return cold_end <= self._ends.get(partition, 0)

    def prove(self, partition: PartitionId, cold_end: Offset) -> None:
        """Note that the table is ours up to this cold end."""
        with self._lock:
            self._ends[partition] = Offset(max(cold_end, self._ends.get(partition, 0)))


def newest_range(table: Table, snapshot: TableSnapshot, number: int) -> LedgerEntry | None:
    """Return the entry of the range that ends at the cold end, from the ledger or the Delta log.

    None if neither has it.
    """
    cold_end = snapshot.cold_end(number)
    ledger = Ledger(table.store)
    for file in snapshot.files:
        if file.partition == number and file.end_offset == cold_end and file.min_offset is not None:
            try:  # works as long as no OPTIMIZE has rewritten our file
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
    """Refuse a table whose newest range of a partition does not belong to this history.

    ``recorded`` is the cold end that this history has recorded. Up to it, two kinds of ranges count
    as ours: ranges without a lineage id, which old builds shipped, and ranges of leaderships that
    are so old that the lineage no longer lists them.

    Raises:
        ForeignHistoryError: the table is of another history.
    """
    cold_end = snapshot.cold_end(number)
    if newest is None or not newest.lineage_id:
        if cold_end <= recorded or not lineage:
            return
        if newest is None:
            reason = f"nothing tells which leadership shipped the rows below {cold_end}"
        else:
            reason = f"an old build shipped {newest.range} and noted no leadership"
    else:
        if holds(lineage, newest.lineage_id, newest.end):
            return
        forgotten = (
            len(lineage) == LINEAGE_KEPT and newest.last_leader_epoch < lineage[0].leader_epoch
        )
        if forgotten and cold_end <= recorded:
            return
        reason = f"leadership {newest.lineage_id} shipped {newest.range}"
    raise foreign(snapshot, number, reason)


def foreign(snapshot: TableSnapshot, number: int, reason: str) -> ForeignHistoryError:
    """Return the error that names table, partition and reason."""
    return ForeignHistoryError(
        f"partition {number} of {snapshot.uri} version {snapshot.version} belongs to another "
        f"history than the local log: {reason}. Either a copy of this broker's data writes into "
        "the table, or the local data is an older copy. Nothing is shipped, served or freed until "
        "one of the two is removed",
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
    """Compare the newest range with the local log; return False if the log no longer has it.

    Raises:
        ForeignHistoryError: the rows of table and log differ.
        BatchCorruptError, SegmentCorruptError: the log cannot be read.
    """
    number = int(source.partition_id.number)
    start = snapshot.range_of(number).start if newest is None else newest.start
    end = snapshot.cold_end(number)
    if end > source.reads.log_end:
        reason = f"the table ends at {end} but the local log at {source.reads.log_end}"
        raise foreign(snapshot, number, reason)
    if end <= max(source.reads.whole_start, snapshot.whole_start(number)):
        return False  # not in the log any more, or not in the table: it has expired
    start = max(start, snapshot.whole_start(number))
    held = OffsetRange(Offset(max(start, source.reads.whole_start)), end)
    local = _digest(log_rows(log_batches(source, held), held, place))
    if newest is not None and held == newest.range:
        cold = newest.digest
    else:
        cold = _digest(read_rows(snapshot, table.store, number, held, FILE_SCHEMA))
    if local != cold:
        reason = f"rows {held} have digest {cold} in the table and {local} in the local log"
        raise foreign(snapshot, number, reason)
    return True


def _digest(batches: Iterable[pa.RecordBatch]) -> str:
    facts = RangeFacts()
    for rows in batches:
        facts.add(rows)
    return facts.digest
