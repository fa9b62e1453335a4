"""Hashes of keys, and the bounded map of the last record of each key."""

from __future__ import annotations

import random

import numpy as np
import pyarrow as pa
import pytest

from broker.codec.key_hash import hash_keys
from broker.codec.key_map import KeyMap, KeyMapFullError
from cases import seeds


def _keys(rng: random.Random, count: int) -> list[bytes]:
    lengths = (0, 1, 7, 8, 30, 1024, 1025, 3000)
    return [
        rng.randbytes(rng.choice(lengths[:5] if rng.random() < 0.9 else lengths))
        for _ in range(count)
    ]


def _pairs(keys: list[bytes | None]) -> list[tuple[int, int]]:
    first, second = hash_keys(pa.array(keys, pa.binary()))
    return list(zip(first.tolist(), second.tolist(), strict=True))


def test_a_key_has_one_hash_wherever_it_stands() -> None:
    """Alone, among others, in a slice, beside longer keys: the same key has the same hash."""
    rng = random.Random(1)
    keys = _keys(rng, 200)
    alone = [_pairs([key])[0] for key in keys]
    assert _pairs(list(keys)) == alone
    sliced = pa.array([b"x", *keys], pa.binary()).slice(1)
    first, second = hash_keys(sliced)
    assert list(zip(first.tolist(), second.tolist(), strict=True)) == alone


def test_other_keys_have_other_hashes() -> None:
    """Keys that differ in a byte, in length or in order of bytes do not collide."""
    keys = [bytes([low, high]) for low in range(256) for high in range(256)]
    keys += [bytes(count) for count in range(2000) if count != 2]
    keys += [b"user-%d" % one for one in range(20_000)]
    assert len(set(_pairs(list(keys)))) == len(keys)
    first, second = hash_keys(pa.array(keys, pa.binary()))
    assert len(set(first.tolist())) == len(set(second.tolist())) == len(keys)


def test_the_hash_does_not_change_between_builds() -> None:
    """Only one process uses a hash, but a change of its weights should be on purpose."""
    assert _pairs([b"", b"key", b"k" * 1025]) == _pairs([b"", b"key", b"k" * 1025])
    assert len({*_pairs([b"", b"\0", b"\0\0"])}) == 3


@pytest.mark.parametrize("seed", seeds(5))
def test_the_map_knows_the_last_offset_of_each_key(seed: int) -> None:
    """Against a dictionary, over many small and large additions, with growth between."""
    rng = random.Random(seed)
    known: dict[bytes, int] = {}
    found = KeyMap(bytes_max=1 << 24)
    names = _keys(rng, rng.choice((3, 300, 3000)))
    offset = 0
    for _ in range(rng.randrange(1, 12)):
        keys = rng.choices(names, k=rng.choice((1, 50, 2000)))
        offsets = np.arange(offset, offset + len(keys))
        found.add(hash_keys(pa.array(keys, pa.binary())), offsets)
        known.update(zip(keys, offsets.tolist(), strict=True))
        offset += len(keys)
    asked = [*names, b"not there"]
    told = found.last_of(hash_keys(pa.array(asked, pa.binary()))).tolist()
    assert told == [known.get(key, -1) for key in asked]
    assert found.count == len(known)


def test_a_map_takes_no_more_memory_than_it_may() -> None:
    """More keys than fit are refused; the keys of half the parts fit then."""
    keys = hash_keys(pa.array([b"%d" % one for one in range(2000)], pa.binary()))
    with pytest.raises(KeyMapFullError):
        KeyMap(bytes_max=24 * 2048).add(keys, np.arange(2000))
    counts = []
    for part in range(4):
        small = KeyMap(bytes_max=24 * 2048, part=part, parts=4)
        here = small.is_here(keys)
        small.add((keys[0][here], keys[1][here]), np.arange(2000)[here])
        counts.append(small.count)
    assert sum(counts) == 2000
    assert min(counts) > 400, "the parts are of about one size"
