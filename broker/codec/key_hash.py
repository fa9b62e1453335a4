"""Hashes of many keys at once: 128 bits each, by NumPy, without a loop over the keys.

Each of two lanes is a weighted sum of the key's bytes modulo 2^64, with a fixed random weight for
each position, then mixed. Two given keys have equal hashes with a probability below 2^-110, so a
billion keys have a collision with a probability below 2^-50. A publisher
who makes a key collide with another key gains nothing: it may publish under the other key, too.
"""

from __future__ import annotations

from functools import lru_cache
from hashlib import blake2b
from typing import Final

import numpy as np
import numpy.typing as npt
import pyarrow as pa

Hashes = npt.NDArray[np.uint64]

_LONG_BYTES: Final = 1024  # longer keys are hashed one by one
_LANES: Final = ("<headwater.key.0>", "<headwater.key.1>")
_MIX: Final = (np.uint64(0xBF58476D1CE4E5B9), np.uint64(0x94D049BB133111EB))
_SHIFTS: Final = (np.uint64(30), np.uint64(27), np.uint64(31))
_OFFSETS: Final = np.dtype("<i4")


def hash_keys(keys: pa.Array) -> tuple[Hashes, Hashes]:
    """Return the two lanes of each key's hash; ``keys`` is binary, without null."""
    count = len(keys)
    if not count:
        return np.empty(0, np.uint64), np.empty(0, np.uint64)
    found = np.frombuffer(keys.buffers()[1], dtype=_OFFSETS)
    bounds = found[keys.offset : keys.offset + count + 1].astype(np.int64)
    lengths: npt.NDArray[np.int64] = np.diff(bounds)
    long = np.flatnonzero(lengths > _LONG_BYTES)
    first, last = int(bounds[0]), int(bounds[-1])
    data = keys.buffers()[2]
    content = np.frombuffer(data, np.uint8)[first:last] if data is not None else np.empty(0, "u1")
    starts = bounds[:-1] - first
    if len(long):
        lanes = _short(content, starts, lengths, keep=lengths <= _LONG_BYTES)
        for row in long.tolist():
            key = content[starts[row] : starts[row] + lengths[row]].tobytes()
            digest = np.frombuffer(blake2b(key, digest_size=16).digest(), "<u8")
            lanes[0][row], lanes[1][row] = digest[0], digest[1]
    else:
        lanes = _short(content, starts, lengths, keep=None)
    return lanes


def _short(
    content: npt.NDArray[np.uint8],
    starts: npt.NDArray[np.int64],
    lengths: npt.NDArray[np.int64],
    *,
    keep: npt.NDArray[np.bool_] | None,
) -> tuple[Hashes, Hashes]:
    """Hash keys of at most ``_LONG_BYTES``; those that are not in ``keep`` get the hash of b""."""
    weights = _weights()
    short = lengths if keep is None else np.where(keep, lengths, 0)
    if int(short.max()) == int(short.min()) and keep is None:
        return _equal_lengths(content, starts, int(short[0]))
    inside = np.arange(int(short.sum()), dtype=np.int64)
    begins = np.cumsum(short) - short
    inside -= np.repeat(begins, short)  # the position of each byte within its key
    chosen = content if keep is None else content[np.repeat(starts, short) + inside]
    values = chosen.astype(np.uint64)
    filled = np.flatnonzero(short)
    found = []
    for lane in range(2):
        sums = np.zeros(len(short), np.uint64)
        if len(filled):
            products = values * weights[lane][inside]
            sums[filled] = np.add.reduceat(products, begins[filled])
        found.append(_mixed(sums + weights[lane][_LONG_BYTES] * (short + 1).astype(np.uint64)))
    return found[0], found[1]


def _equal_lengths(
    content: npt.NDArray[np.uint8], starts: npt.NDArray[np.int64], length: int
) -> tuple[Hashes, Hashes]:
    """Hash keys of one length, which follow one another."""
    weights = _weights()
    values = content.reshape(len(starts), length)
    found = []
    columns = np.ascontiguousarray(values.T).astype(np.uint64)
    for lane in range(2):
        sums = np.zeros(len(starts), np.uint64)
        for column in range(length):
            sums += columns[column] * weights[lane][column]
        sums += weights[lane][_LONG_BYTES : _LONG_BYTES + 1] * np.uint64(length + 1)
        found.append(_mixed(sums))
    return found[0], found[1]


@lru_cache(maxsize=1)
def _weights() -> tuple[Hashes, Hashes]:
    """Return a weight for each position, and one for the length; the same in every process."""
    lanes = []
    for name in _LANES:
        digests = (
            blake2b(f"{name}{block}".encode(), digest_size=64).digest()
            for block in range(_LONG_BYTES // 8 + 1)
        )
        lanes.append(np.frombuffer(b"".join(digests), "<u8")[: _LONG_BYTES + 1] | np.uint64(1))
    return lanes[0], lanes[1]


def _mixed(sums: Hashes) -> Hashes:
    """Spread every bit over all bits (the finaliser of splitmix64)."""
    sums = (sums ^ (sums >> _SHIFTS[0])) * _MIX[0]
    sums = (sums ^ (sums >> _SHIFTS[1])) * _MIX[1]
    return sums ^ (sums >> _SHIFTS[2])
