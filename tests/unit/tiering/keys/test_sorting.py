"""Rows by key come out by offset, in memory or by way of files."""

from __future__ import annotations

import random
from collections.abc import Iterator
from pathlib import Path

import numpy as np
import pyarrow as pa
import pytest

from tiering.keys import sorting
from tiering.keys.sorting import in_offset_order, rows_at


@pytest.fixture
def temporary(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """The folder that temporary folders are made in."""
    monkeypatch.setattr(sorting, "scratch_folder", lambda: tmp_path)
    return tmp_path


def shuffled(count: int, size: int) -> tuple[list[pa.RecordBatch], np.ndarray]:
    """Return rows of random offsets in batches of one size, and the sorted offsets."""
    rng = random.Random(count)
    offsets = rng.sample(range(10 * count), count)
    batches = [
        pa.record_batch({"offset": pa.array(part, pa.int64()), "value": [b"%d" % n for n in part]})
        for part in (offsets[low : low + size] for low in range(0, count, size))
    ]
    return [batches[0].slice(0, 0), *batches], np.array(sorted(offsets))


@pytest.mark.parametrize("bytes_max", [1 << 20, 2_000, 1])
def test_rows_come_in_order_with_their_values(temporary: Path, bytes_max: int) -> None:
    """In memory, in some pieces, in as many as may be; nothing is left on the disk."""
    batches, offsets = shuffled(1_000, 70)
    found = [row for one in in_offset_order(batches, offsets, bytes_max=bytes_max)
             for row in one.to_pylist()]  # fmt: skip
    assert found == [{"offset": n, "value": b"%d" % n} for n in offsets.tolist()]
    assert list(temporary.iterdir()) == []


def test_no_more_than_a_piece_is_held(temporary: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Each piece that is sorted has about the bytes that were allowed."""
    batches, offsets = shuffled(4_000, 50)
    sizes: list[int] = []

    def noted(piece: list[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
        sizes.append(sum(one.nbytes for one in piece))
        yield from piece

    monkeypatch.setattr(sorting, "_sorted", noted)
    list(in_offset_order(batches, offsets, bytes_max=8_000))
    assert len(sizes) > 5
    assert max(sizes) < 2 * 8_000


def test_who_stops_early_leaves_nothing_behind(temporary: Path) -> None:
    """The files of the pieces go when the iteration is closed."""
    batches, offsets = shuffled(1_000, 70)
    rows: Iterator[pa.RecordBatch] = in_offset_order(batches, offsets, bytes_max=2_000)
    next(rows)
    assert list(temporary.iterdir()) != []
    rows.close()  # type: ignore[attr-defined]
    assert list(temporary.iterdir()) == []


def test_rows_are_chosen_by_offset() -> None:
    """From a batch in any order; none of them, if none is wanted."""
    batch = pa.record_batch({"offset": pa.array([7, 3, 9, 1], pa.int64())})
    for wanted in ([], [3], [1, 3, 8, 9], [10], [0]):
        found = rows_at(batch, np.array(wanted, np.int64)).column("offset").to_pylist()
        assert found == [n for n in (7, 3, 9, 1) if n in wanted]
