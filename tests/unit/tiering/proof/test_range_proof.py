"""Rows that are read again are compared with whole entries of the ledger, never with a part."""

from __future__ import annotations

from pathlib import Path

import pyarrow as pa
import pytest

from broker.model.offsets import Offset, OffsetRange
from simkit.tier.lab import TierLab
from tiering.proof.range_proof import proved_rows, verify_entries
from tiering.table.accounts import accounts


@pytest.mark.parametrize(
    ("start", "end", "proved"),
    [
        (0, 60, [(0, 20, True), (20, 40, True), (40, 60, True)]),
        (5, 60, [(5, 20, False), (20, 40, True), (40, 60, True)]),
        (0, 55, [(0, 20, True), (20, 40, True), (40, 55, False)]),
        (25, 30, [(25, 30, False)]),
    ],
)
def test_a_part_of_an_entry_is_read_and_not_compared(
    tmp_path: Path, start: int, end: int, proved: list[tuple[int, int, bool]]
) -> None:
    """Retention left a part of the first, an older version has a part of the last."""
    lab = TierLab(tmp_path / "lake")
    lab.source.fill(3, 20)
    snapshot, store = lab.ship_all(), lab.table.store
    within = OffsetRange(Offset(start), Offset(end))
    entries = accounts(snapshot, store, 0, within)
    heard: list[pa.RecordBatch] = []
    found = list(verify_entries(snapshot, store, 0, within, entries, hear=heard.append))
    assert [(one.start, one.end, one.proved) for one in found] == proved
    offsets = [offset for one in heard for offset in one.column("offset").to_pylist()]
    assert offsets == list(range(start, end))
    rows = proved_rows(snapshot, store, 0, within, entries)
    assert sum(one.num_rows for one in rows) == end - start
