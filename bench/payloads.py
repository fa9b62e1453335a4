"""The records of the benchmarks. Seeded, so that every run and every side sends the same bytes."""

from __future__ import annotations

from typing import Final

import numpy as np
import pyarrow as pa

_SEED: Final = 20_261_121
_ROW_TEXT: Final = b'{"id":%5d,"tail":"N%05d","delay":%4d,"note":"'
_DISTINCT_BYTES: Final = 64 * 2**20  # so far apart that no compressor finds a repetition


def payload(size: int) -> bytes:
    """Return ``size`` random bytes, which cannot be compressed."""
    return np.random.default_rng(_SEED).bytes(size)


def batch_of(size: int, rows: int) -> pa.RecordBatch:
    """Return a batch of ``rows`` values of ``size`` random bytes, with no other column."""
    data = np.random.default_rng(_SEED).bytes(size * rows)
    offsets = np.arange(0, (rows + 1) * size, size, dtype=np.int32)
    buffers = [None, pa.py_buffer(offsets), pa.py_buffer(data)]
    value = pa.Array.from_buffers(pa.binary(), rows, buffers)
    return pa.RecordBatch.from_arrays([value], names=["value"])


def keyed_batches(size: int, rows: int) -> list[pa.RecordBatch]:
    """Return batches like those of a real stream: JSON of ``size`` bytes, keyed by tail number.

    There are 4,000 keys. Half of a value of 100 bytes is random hexadecimal text, and more of a
    longer value, so that Parquet can compress a part of each value and not the rest.
    """
    random = np.random.default_rng(_SEED)
    batches = []
    for _ in range(max(1, _DISTINCT_BYTES // (rows * size))):
        tails = random.integers(0, 4_000, rows)
        noise = random.bytes(rows * size).hex().encode()
        values = []
        for row, tail in enumerate(tails.tolist()):
            head = _ROW_TEXT % (row, tail, tail % 300)
            fill = max(0, size - len(head) - 2)
            values.append((head + noise[row * size : row * size + fill] + b'"}')[:size])
        keys = pa.array([b"N%05d" % tail for tail in tails.tolist()], pa.binary())
        batches.append(
            pa.RecordBatch.from_arrays([keys, pa.array(values, pa.binary())], ["key", "value"])
        )
    return batches
