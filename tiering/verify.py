"""The full proof of a table: every byte read again and compared with the ledger.

Independent of how files look today: after OPTIMIZE by others the rows of each committed range
must still give the digest that was noted when it was committed.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from typing import Final

import pyarrow as pa

from broker.codec.checksum import crc32c
from broker.codec.digest import RangeDigest
from broker.codec.schema import FILE_SCHEMA
from broker.errors import ObjectCorruptError
from broker.model.certificate import PartitionCertificate
from broker.model.offsets import Offset, OffsetRange
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

    def hear(rows: pa.RecordBatch) -> None:
        whole.update(rows)
        if progress is not None:
            progress(rows.num_rows)

    for _ in verify_entries(snapshot, store, partition, held, entries, hear=hear):
        pass
    return PartitionCertificate(
        partition=partition,
        start=held.start,
        end=held.end,
        cold_count=len(held),
        hot_count=0,
        digest=whole.hexdigest(),
    )


@dataclass(frozen=True, slots=True, kw_only=True)
class RangeProof:
    """A range whose rows were read again; ``proved`` if the ledger says the same digest."""

    partition: int
    start: Offset
    end: Offset
    digest: str
    proved: bool  # false: a part of a ledger entry, which alone proves nothing


def verify_entries(
    snapshot: TableSnapshot,
    store: ObjectStore,
    partition: int,
    within: OffsetRange,
    entries: Sequence[LedgerEntry],
    *,
    hear: Callable[[pa.RecordBatch], None] = lambda _: None,
) -> Iterator[RangeProof]:
    """Read a range again and compare it, entry by entry, with the ledger; yield what is proved.

    ``entries`` cover ``within``; at its ends they may reach beyond it: retention has left a part of
    the first, an older version has a part of the last. ``hear`` gets every row, in order. Errors as
    for :func:`verify_table`.
    """
    for found in _read_again(snapshot, store, partition, within, entries):
        if isinstance(found, RangeProof):
            yield found
        else:
            hear(found)


def proved_rows(
    snapshot: TableSnapshot,
    store: ObjectStore,
    partition: int,
    within: OffsetRange,
    entries: Sequence[LedgerEntry],
) -> Iterator[pa.RecordBatch]:
    """Yield the rows of a range; the end comes only if the ledger's digests were all right.

    Rows of an entry are handed out before it is proved, so nothing may be made of them before the
    end. Arguments and errors as for :func:`verify_entries`.
    """
    for found in _read_again(snapshot, store, partition, within, entries):
        if not isinstance(found, RangeProof):
            yield found


def _read_again(
    snapshot: TableSnapshot,
    store: ObjectStore,
    partition: int,
    within: OffsetRange,
    entries: Sequence[LedgerEntry],
) -> Iterator[pa.RecordBatch | RangeProof]:
    """Yield an entry's rows, then its proof, entry by entry."""
    present = {file.path for file in snapshot.files}
    for entry in entries:
        if entry.path in present:
            _require_bytes(entry, store)
    pieces = _Pieces(read_rows(snapshot, store, partition, within, FILE_SCHEMA))
    for entry in entries:
        found = RangeDigest()
        start, end = max(entry.start, within.start), min(entry.end, within.end)
        for piece in pieces.up_to(end):
            found.update(piece)
            yield piece
        whole = (start, end) == (entry.start, entry.end)
        if whole:
            _require_equal(entry, found.hexdigest())
        yield RangeProof(
            partition=partition, start=start, end=end, digest=found.hexdigest(), proved=whole
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
