"""The full proof of a table: every byte read again and compared with the ledger.

Independent of how files look today: after OPTIMIZE by others the rows of each committed range
must still give the digest that was noted when it was committed.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import Final

import pyarrow as pa

from broker.codec.checksum import crc32c
from broker.codec.digest import RangeDigest
from broker.codec.schema import FILE_SCHEMA
from broker.errors import ObjectCorruptError
from broker.model.certificate import PartitionCertificate
from tiering.certify import prove_partition, require_files
from tiering.ledger import Ledger, LedgerEntry, ledger_key
from tiering.object_store import ObjectStore
from tiering.reader import read_rows
from tiering.table import TableSnapshot

_CHUNK_BYTES: Final = 16 * 1024 * 1024

Progress = Callable[[int], None]  # hears how many more rows were verified


def verify_table(
    snapshot: TableSnapshot, store: ObjectStore, *, progress: Progress | None = None
) -> list[PartitionCertificate]:
    """Verify every partition of a table version; ``store`` is the table's own. Blocks.

    Raises:
        ObjectMissingError, ObjectCorruptError: a file or ledger entry is gone or damaged; a
            range's rows do not have the digest that was committed.
        GapError, OverlapError, TableMismatchError: rows missing, twice, or never committed; the
            ledger does not cover the table.
        RemoteTierUnavailableError: the store does not answer.
    """
    require_files(snapshot, store)
    return [
        verify_partition(snapshot, store, partition, progress=progress)
        for partition in sorted(snapshot.ranges)
    ]


def verify_partition(
    snapshot: TableSnapshot,
    store: ObjectStore,
    partition: int,
    *,
    digest: RangeDigest | None = None,
    progress: Progress | None = None,
) -> PartitionCertificate:
    """Verify one partition; errors as for :func:`verify_table`.

    A caller that goes on with the tail passes ``digest``, which has digested the whole cold range
    when this returns. The certificate's digest is of the cold range.
    """
    whole = RangeDigest() if digest is None else digest
    held = snapshot.ranges[partition]
    prove_partition(snapshot, partition, store)
    entries = Ledger(store).entries(partition, held)
    present = {file.path for file in snapshot.files}
    for entry in entries:
        if entry.path in present:
            _require_bytes(entry, store)
    pieces = _Pieces(read_rows(snapshot, store, partition, held, FILE_SCHEMA))
    for entry in entries:
        found = RangeDigest()
        # An entry may begin below what retention left, and end above an older version's end.
        start, end = max(entry.start, held.start), min(entry.end, held.end)
        for piece in pieces.up_to(end):
            found.update(piece)
            whole.update(piece)
            if progress is not None:
                progress(piece.num_rows)
        if (start, end) == (entry.start, entry.end):
            _require_equal(entry, found.hexdigest())
    return PartitionCertificate(
        partition=partition,
        start=held.start,
        end=held.end,
        cold_count=len(held),
        hot_count=0,
        digest=whole.hexdigest(),
    )


class _Pieces:
    """A stream of rows in offset order, handed out up to chosen offsets."""

    def __init__(self, rows: Iterator[pa.RecordBatch]) -> None:
        self._rows = rows
        self._rest: pa.RecordBatch | None = None

    def up_to(self, end: int) -> Iterator[pa.RecordBatch]:
        """Yield the next rows below ``end``, without gaps as the reader guarantees."""
        while True:
            batch = self._rest if self._rest is not None else next(self._rows, None)
            self._rest = None
            if batch is None or batch.num_rows == 0:
                return
            first = int(batch.column("offset")[0].as_py())
            count = min(batch.num_rows, end - first)
            if count < batch.num_rows:
                self._rest = batch.slice(max(count, 0))
            if count > 0:
                yield batch.slice(0, count)
            if first + batch.num_rows >= end:
                return


def _require_bytes(entry: LedgerEntry, store: ObjectStore) -> None:
    """Compare an object that is still as we wrote it, before any of it is parsed."""
    found = 0
    for start in range(0, entry.size_bytes, _CHUNK_BYTES):
        chunk = store.get(entry.path, start, min(start + _CHUNK_BYTES, entry.size_bytes))
        found = crc32c(chunk, found)
    if found != entry.crc32c:
        raise ObjectCorruptError(
            f"{entry.path}: crc32c is {found}, the ledger says {entry.crc32c}",
            key=entry.path,
            expected=entry.crc32c,
            found=found,
        )


def _require_equal(entry: LedgerEntry, found: str) -> None:
    if found != entry.digest:
        raise ObjectCorruptError(
            f"the rows {entry.range} of partition {entry.partition} have digest {found}; the "
            f"ledger says {entry.digest}",
            key=ledger_key(entry.partition, entry.start),
            partition=entry.partition,
            expected=entry.digest,
            found=found,
        )
