"""Brings the rows of a key snapshot, whose files are sorted by key, into offset order.

Up to ``bytes_max`` bytes of rows are sorted in memory. More rows are first divided by offset into
pieces of about that size, in files of a temporary folder, and then sorted piece by piece. The
folder goes when the iteration ends or is closed.
"""

from __future__ import annotations

import itertools
import tempfile
from collections.abc import Iterable, Iterator, Sequence
from contextlib import ExitStack
from pathlib import Path
from typing import Final

import numpy as np
import pyarrow as pa

from tiering.read.parquet_source import Offsets
from tiering.read.reader import BATCH_ROWS_MAX
from tiering.scratch import scratch_folder

SORTED_BYTES: Final = 64 * 1024 * 1024
_PIECES_MAX: Final = 256  # files that are open at a time


def rows_at(batch: pa.RecordBatch, offsets: Offsets) -> pa.RecordBatch:
    """Return the rows of a batch at these offsets; ``offsets`` is sorted, the batch need not be."""
    if not len(offsets):
        return batch.slice(0, 0)
    found = np.asarray(batch.column("offset"))
    places = np.minimum(np.searchsorted(offsets, found), len(offsets) - 1)
    return batch.filter(pa.array(offsets[places] == found))


def in_offset_order(
    batches: Iterable[pa.RecordBatch], offsets: Offsets, *, bytes_max: int = SORTED_BYTES
) -> Iterator[pa.RecordBatch]:
    """Yield all rows of ``batches`` in offset order.

    Args:
        batches: Rows with a column ``offset``, in any order.
        offsets: All offsets of these rows, sorted.
        bytes_max: About so many bytes of rows are in memory, also in Arrow's sorting once more.
    """
    rest = (one for one in batches if one.num_rows)
    held: list[pa.RecordBatch] = []
    size = rows = 0
    for batch in rest:
        held.append(batch)
        size += batch.nbytes
        rows += batch.num_rows
        if size > bytes_max:
            pieces = min(_PIECES_MAX, 1 + size * len(offsets) // (rows * bytes_max))
            yield from _by_pieces(itertools.chain(held, rest), offsets, pieces)
            return
    yield from _sorted(held)


def _by_pieces(
    batches: Iterable[pa.RecordBatch], offsets: Offsets, pieces: int
) -> Iterator[pa.RecordBatch]:
    borders = offsets[[len(offsets) * number // pieces for number in range(1, pieces)]]
    with tempfile.TemporaryDirectory(prefix="state-", dir=scratch_folder()) as folder:
        for path in _divided(batches, borders, Path(folder)):
            with pa.OSFile(str(path), "rb") as source, pa.ipc.open_stream(source) as stored:
                piece = list(stored)
            path.unlink()
            yield from _sorted(piece)


def _divided(batches: Iterable[pa.RecordBatch], borders: Offsets, folder: Path) -> list[Path]:
    """Write rows into one file for each piece that has any; return the files in offset order."""
    writers: dict[int, pa.ipc.RecordBatchStreamWriter] = {}
    with ExitStack() as files:
        for batch in batches:
            places = np.searchsorted(borders, np.asarray(batch.column("offset")), side="right")
            for piece in np.unique(places).tolist():
                if piece not in writers:
                    sink = files.enter_context(pa.OSFile(str(folder / f"{piece:03}"), "wb"))
                    writer = pa.ipc.new_stream(sink, batch.schema)
                    writers[piece] = files.enter_context(writer)
                writers[piece].write_batch(batch.filter(pa.array(places == piece)))
    return [folder / f"{piece:03}" for piece in sorted(writers)]


def _sorted(batches: Sequence[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
    if batches:
        rows = pa.Table.from_batches(batches).sort_by("offset")
        yield from rows.to_batches(max_chunksize=BATCH_ROWS_MAX)
