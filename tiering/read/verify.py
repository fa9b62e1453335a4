"""The full proof of a table: every row is read again and compared with the ledger.

proof/range_proof.py compares one range; the commits are proved too.
"""

from __future__ import annotations

from collections.abc import Callable

import pyarrow as pa

from broker.codec.digest import RangeDigest
from broker.model.certificate import PartitionCertificate
from tiering.proof.proofs import prove
from tiering.proof.range_proof import verify_entries
from tiering.read.certify import compacted_hole, prove_partition, require_files
from tiering.read.listing import data_objects
from tiering.store.object_store import ObjectStore
from tiering.table.accounts import accounts
from tiering.table.table import TableSnapshot

Progress = Callable[[int], None]  # called with the number of rows verified since the last call


def verify_table(
    snapshot: TableSnapshot, store: ObjectStore, *, progress: Progress | None = None
) -> list[PartitionCertificate]:
    """Verify every partition of a table version; ``store`` holds the table. Blocks.

    Raises:
        ObjectMissingError, ObjectCorruptError: a file or ledger entry is gone or damaged; a
            range's rows do not have the digest that was committed.
        GapError, OverlapError, TableMismatchError: rows are missing, doubled or never committed;
            the ledger does not cover the table; a commit is not ours.
        RemoteTierUnavailableError: the store does not answer.
    """
    require_files(snapshot, store, data_objects(snapshot, store))
    certificates = [
        verify_partition(snapshot, store, partition, progress=progress)
        for partition in sorted(snapshot.ranges)
    ]
    prove(snapshot, store)  # last, because an error about the rows tells more
    return certificates


def verify_partition(
    snapshot: TableSnapshot,
    store: ObjectStore,
    partition: int,
    *,
    digest: RangeDigest | None = None,
    progress: Progress | None = None,
) -> PartitionCertificate:
    """Verify one partition; errors as for :func:`verify_table`.

    A caller that continues with the tail passes ``digest``; the rows of the whole cold range are
    added to it. The certificate's digest covers the cold range.
    """
    whole = RangeDigest() if digest is None else digest
    held = snapshot.range_of(partition)
    prove_partition(snapshot, partition, store)
    entries = accounts(snapshot, store, partition, held)

    def hear(rows: pa.RecordBatch) -> None:
        whole.update(rows)
        if progress is not None:
            progress(rows.num_rows)

    for _ in verify_entries(snapshot, store, partition, held, entries, hear=hear):
        pass
    left = compacted_hole(snapshot, partition)
    return PartitionCertificate(
        partition=partition,
        start=held.start,
        end=held.end,
        cold_count=snapshot.records_count(partition),
        hot_count=0,
        digest=whole.hexdigest(),
        holes=() if left is None else (left,),
    )
