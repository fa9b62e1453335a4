"""The account of each committed range: its ledger entry, or else the copy in its commit.

Below the first whole offset of a version the account is that of the last key compaction.

A process may die between a commit and the commit's ledger entry; the next uploader writes the entry
from the commit. Until then the table is whole, so readers take the account from the commit. Only
ranges above all ledger entries can lack one, because an uploader repairs the ledger before it
ships more. proof/proofs.py checks whether the commit is ours.
"""

from __future__ import annotations

from broker.errors import GapError
from broker.model.offsets import Offset, OffsetRange
from tiering.store.object_store import ObjectStore
from tiering.table.delta_log import commits_between
from tiering.table.key_compactions import KeyCompactions
from tiering.table.ledger import Ledger, LedgerEntry, decode_ranges
from tiering.table.table import TableSnapshot


def accounts(
    snapshot: TableSnapshot, store: ObjectStore, partition: int, within: OffsetRange
) -> list[LedgerEntry]:
    """Return the entries that cover a range of a version, in order; ``store`` holds the table.

    In a sparse range, the offsets between two entries have no rows.

    Raises:
        GapError, OverlapError: the entries do not join, or do not cover the range.
        ObjectCorruptError, ObjectMissingError, RemoteTierUnavailableError.
    """
    thinned = snapshot.sparse_range(partition)  # expired ranges below it have entries, too
    found = []
    if thinned and within.start < min(thinned.end, within.end):
        left = KeyCompactions(store).of(snapshot, partition)
        found = [one for one in left.files if one.start < within.end and one.end > within.start]
        if within.end <= thinned.end:
            return found
        within = OffsetRange(thinned.end, within.end)
    ledger = Ledger(store)
    try:
        return [*found, *ledger.entries(partition, within)]
    except GapError:
        unnoted = _unnoted(ledger, snapshot, store, partition)
        # The ledger is read once more: an uploader may have written the entry meanwhile.
        return [*found, *ledger.entries(partition, within, unnoted=unnoted)]


def account_starts(snapshot: TableSnapshot, store: ObjectStore, partition: int) -> list[Offset]:
    """Return the starts of the accounts of a version's range of a partition, in order.

    Raises as :func:`accounts`, except that a missing ledger entry is not noticed.
    """
    thinned, held = snapshot.sparse_range(partition), snapshot.range_of(partition)
    files = KeyCompactions(store).of(snapshot, partition).files if thinned else ()
    left = [one.start for one in files if one.start >= held.start]
    above = OffsetRange(thinned.end, held.end)
    return [*left, *(start for start in Ledger(store).starts(partition) if start in above)]


def _unnoted(
    ledger: Ledger, snapshot: TableSnapshot, store: ObjectStore, partition: int
) -> list[LedgerEntry]:
    """Return the entries of commits up to a version, for ranges above the ledger's last entry."""
    last = ledger.last(partition)
    above, end = (0, 0) if last is None else (max(last.version, 0), int(last.end))
    return [
        entry
        for commit in commits_between(store, above=above, up_to=snapshot.version)
        for entry in decode_ranges(commit.ranges_json, version=commit.version)
        if entry.partition == partition and entry.start >= end
    ]
