"""Tells whether records that are gone may have defined a moment: they reached its time first.

Retention removes the first files of a partition, and key compaction removes records that later ones
supersede. The first record *left* that reaches a time is the first record that reached it only if
no removed record below did. The ledger keeps each range's greatest time for ever, so it tells that
for all but the range in which the answer lies.
"""

from __future__ import annotations

from concurrent.futures import ThreadPoolExecutor
from typing import Final

from broker.errors import CompactedRangeError, ExpiredError
from broker.model.cut import PartitionCut
from broker.model.offsets import Offset, OffsetRange
from tiering.store.object_store import ObjectStore
from tiering.table.ledger import Ledger, LedgerEntry
from tiering.table.table import TableSnapshot

_THREADS: Final = 16

_WAY_OUT: Final = "Read as of a later moment, as of offsets, or as of a cut that was saved before"


def require_moment_known(
    snapshot: TableSnapshot,
    store: ObjectStore,
    part: PartitionCut,
    timestamp_us: int,
    found: Offset | None,
) -> None:
    """Refuse a moment that a removed record may have defined. Blocks.

    ``found`` is the first offset of the table that reaches the time, or None. The cost is nothing
    if no record below it is gone, otherwise one LIST and a GET for each range in which some are.
    Records that were purged before there was a table are not asked about.

    Raises:
        ExpiredError: retention removed records that may have reached the time.
        CompactedRangeError: key compaction did.
        ObjectCorruptError, ObjectMissingError, RemoteTierUnavailableError.
    """
    thinned = snapshot.whole_start(part.partition)
    gone_end = max(part.start, thinned if snapshot.gone_count(part.partition) else Offset(0))
    end = gone_end if found is None else min(gone_end, found)
    if end <= part.purged_end:
        return
    known = part.purged_end
    for entry in _entries(Ledger(store), part.partition, end):
        if entry.start > known:
            break
        if entry.max_timestamp_us >= timestamp_us:
            raise _unknown(part, snapshot, entry.range)
        known = max(known, entry.end)
    if known < end:
        raise _unknown(part, snapshot, OffsetRange(known, end))


def compacted_moment(partition: int, gone: OffsetRange) -> CompactedRangeError:
    """Return the error of a moment that key compaction may have removed the first record of."""
    return CompactedRangeError(
        f"it is not known any more where this moment ends in partition {partition}: key compaction "
        f"has removed records of {gone}, and one of them may have been the first at or after the "
        f"time. {_WAY_OUT}",
        partition=partition,
        start=int(gone.start),
        end=int(gone.end),
    )


def _unknown(
    part: PartitionCut, snapshot: TableSnapshot, gone: OffsetRange
) -> ExpiredError | CompactedRangeError:
    if gone.start >= part.start and snapshot.gone_count(part.partition):
        return compacted_moment(part.partition, gone)
    return ExpiredError(
        f"it is not known any more where this moment ends in partition {part.partition}: records "
        f"below {part.start} have expired by the stream's remote retention, and one of {gone} may "
        f"have been the first at or after the time. {_WAY_OUT}",
        offset=gone.start,
        start=part.start,
        end=part.hot_end,
    )


def _entries(ledger: Ledger, partition: int, end: Offset) -> list[LedgerEntry]:
    """Return the entries that begin below an offset, in order; a store's latency dominates."""
    starts = [start for start in ledger.starts(partition) if start < end]
    with ThreadPoolExecutor(_THREADS, "headwater-moments") as threads:
        return list(threads.map(lambda start: ledger.get(partition, start), starts))
