"""Reads rows again and compares them, range by range, with the digests in the ledger.

The check does not depend on the present files: after a foreign OPTIMIZE, the rows of each committed
range must still have the digest that was noted at the range's commit.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from typing import Final

import numpy as np
import pyarrow as pa

from broker.codec.checksum import crc32c
from broker.codec.digest import RangeDigest
from broker.codec.schema import FILE_SCHEMA
from broker.errors import ObjectCorruptError, TableMismatchError
from broker.model.offsets import Offset, OffsetRange
from tiering.read.reader import read_rows
from tiering.store.object_store import ObjectStore
from tiering.table.ledger import LedgerEntry, ledger_key
from tiering.table.table import TableSnapshot

_CHUNK_BYTES: Final = 16 * 1024 * 1024


@dataclass(frozen=True, slots=True, kw_only=True)
class RangeProof:
    """A range whose rows were read again; ``proved`` if the ledger has the same digest."""

    partition: int
    start: Offset
    end: Offset
    records_count: int  # below ``end - start`` where key compaction has removed records
    digest: str
    proved: bool  # False: only a part of a ledger entry, which has no digest to compare with


def verify_entries(
    snapshot: TableSnapshot,
    store: ObjectStore,
    partition: int,
    within: OffsetRange,
    entries: Sequence[LedgerEntry],
    *,
    hear: Callable[[pa.RecordBatch], None] = lambda _: None,
) -> Iterator[RangeProof]:
    """Read a range again and compare it, entry by entry, with the ledger; yield each result.

    ``entries`` cover ``within``. The first and the last entry may reach beyond it: retention left
    only a part of the first entry, and an older version has only a part of the last. ``hear`` gets
    every row, in order. Errors as for :func:`tiering.read.verify.verify_table`.
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
    """Yield the rows of a range; the iterator ends normally only if all digests match the ledger.

    Rows of an entry are handed out before the entry is proved. So the caller must not use or keep
    a result before the end. Arguments and errors as for :func:`verify_entries`.
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
    pieces = _Pieces(read_rows(snapshot, store, partition, within, FILE_SCHEMA, sparse=True))
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
            partition=partition,
            start=start,
            end=end,
            records_count=found.records_count,
            digest=found.hexdigest(),
            proved=whole,
        )
    # The entries of a sparse range leave offsets out.
    for piece in pieces.up_to(within.end) if entries else ():
        raise TableMismatchError(
            f"partition {partition} of {snapshot.uri} has a row at offset "
            f"{piece.column('offset')[0].as_py()}, and no account of a committed range has it",
            partition=partition,
        )


def checksum_of(store: ObjectStore, path: str, size_bytes: int) -> int:
    """Return the CRC-32C of an object, a bounded number of bytes at a time."""
    found = 0
    for start in range(0, size_bytes, _CHUNK_BYTES):
        chunk = store.get(path, start, min(start + _CHUNK_BYTES, size_bytes))
        found = crc32c(chunk, found)
    return found


class _Pieces:
    """Cuts a stream of rows, in offset order, at chosen offsets."""

    def __init__(self, rows: Iterator[pa.RecordBatch]) -> None:
        self._rows = rows
        self._rest: pa.RecordBatch | None = None

    def up_to(self, end: int) -> Iterator[pa.RecordBatch]:
        """Yield the next rows below ``end``."""
        while True:
            batch = self._rest if self._rest is not None else next(self._rows, None)
            self._rest = None
            if batch is None or batch.num_rows == 0:
                return
            offsets = np.asarray(batch.column("offset"))
            count = int(np.searchsorted(offsets, end))
            if count < batch.num_rows:
                self._rest = batch.slice(count)
            if count > 0:
                yield batch.slice(0, count)
            if int(offsets[-1]) + 1 >= end:
                return


def _require_bytes(entry: LedgerEntry, store: ObjectStore) -> None:
    """Check the CRC-32C of an object that we wrote, before any of it is parsed."""
    found = checksum_of(store, entry.path, entry.size_bytes)
    if found != entry.crc32c:
        raise ObjectCorruptError(
            f"{entry.path}: crc32c is {found}, but the ledger has {entry.crc32c}",
            key=entry.path,
            expected=entry.crc32c,
            found=found,
        )


def _require_equal(entry: LedgerEntry, found: str) -> None:
    if found != entry.digest:
        raise ObjectCorruptError(
            f"the rows {entry.range} of partition {entry.partition} have digest {found}, but the "
            f"ledger has {entry.digest}",
            key=ledger_key(entry.partition, entry.start),
            partition=entry.partition,
            expected=entry.digest,
            found=found,
        )
