"""What was committed in each range: its ledger entry, or else the account of its commit.

A process may die between a commit and the ledger entry of it; whoever ships next writes the entry
from the commit. Until then nothing is wrong with the table, so readers take what the commit says.
Only above all entries: nobody ships on before the ledger has what is below. Whether the commit is
ours is for proof/proofs.py.
"""

from __future__ import annotations

from broker.errors import GapError
from broker.model.offsets import OffsetRange
from tiering.store.object_store import ObjectStore
from tiering.table.delta_log import commits_between
from tiering.table.ledger import Ledger, LedgerEntry, decode_ranges
from tiering.table.table import TableSnapshot


def accounts(
    snapshot: TableSnapshot, store: ObjectStore, partition: int, within: OffsetRange
) -> list[LedgerEntry]:
    """Return what covers a range of a version, in order; ``store`` is the table's own.

    Raises:
        GapError, OverlapError: the entries do not join, or do not reach over the range.
        ObjectCorruptError, ObjectMissingError, RemoteTierUnavailableError.
    """
    ledger = Ledger(store)
    try:
        return ledger.entries(partition, within)
    except GapError:
        unnoted = _unnoted(ledger, snapshot, store, partition)
        return ledger.entries(partition, within, unnoted=unnoted)  # noted meanwhile, perhaps


def _unnoted(
    ledger: Ledger, snapshot: TableSnapshot, store: ObjectStore, partition: int
) -> list[LedgerEntry]:
    """Return what commits up to a version say of ranges above the ledger's last entry."""
    last = ledger.last(partition)
    above, end = (0, 0) if last is None else (max(last.version, 0), int(last.end))
    return [
        entry
        for commit in commits_between(store, above=above, up_to=snapshot.version)
        for entry in decode_ranges(commit.ranges_json, version=commit.version)
        if entry.partition == partition and entry.start >= end
    ]
