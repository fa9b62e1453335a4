"""The digest does not see how rows are cut into batches, and sees everything else."""

from __future__ import annotations

import itertools
from typing import Any

import pyarrow as pa
import pytest
from hypothesis import given
from hypothesis import strategies as st

from broker.codec.digest import RangeDigest, digest_of
from broker.codec.schema import FILE_SCHEMA

pytestmark = pytest.mark.slow

_BYTES = st.none() | st.binary(max_size=4)
_TEXT = st.none() | st.text(max_size=3)
_ENTRY = st.none() | st.fixed_dictionaries({"key": _TEXT, "value": _BYTES})
_ROW = st.fixed_dictionaries(
    {
        "offset": st.integers(0, 2**40),
        "timestamp": st.integers(0, 2**40),
        "key": _BYTES,
        "value": _BYTES,
        "headers": st.none() | st.lists(_ENTRY, max_size=3),
        "subject": _TEXT,
        "leader_epoch": st.none() | st.integers(0, 3),
        "reply_subject": _TEXT,
        "correlation_id": _TEXT,
    }
)
_ROWS = st.lists(_ROW, min_size=1, max_size=12)


def _batch(rows: list[dict[str, Any]]) -> pa.RecordBatch:
    return pa.RecordBatch.from_pylist(rows, schema=FILE_SCHEMA)


@given(_ROWS, st.lists(st.integers(0, 12), max_size=6), st.integers(0, 3))
def test_any_cut_gives_the_same_digest(
    rows: list[dict[str, Any]], cuts: list[int], before: int
) -> None:
    """Slices of a larger batch, copies of slices, and the whole: one digest."""
    whole = digest_of(_batch(rows))
    padded = _batch([*rows[:before], *rows]).slice(min(before, len(rows)))
    bounds = sorted({0, len(rows), *(min(cut, len(rows)) for cut in cuts)})
    for copied in (False, True):
        digest = RangeDigest()
        for low, high in itertools.pairwise(bounds):
            piece = padded.slice(low, high - low)
            digest.update(_batch(piece.to_pylist()) if copied else piece)
        assert digest.hexdigest() == whole


@given(_ROWS, _ROWS)
def test_different_rows_have_different_digests(
    left: list[dict[str, Any]], right: list[dict[str, Any]]
) -> None:
    """Equal digests mean equal rows."""
    one, two = _batch(left), _batch(right)
    assert (digest_of(one) == digest_of(two)) == (one.to_pylist() == two.to_pylist())


@given(_ROWS, st.data())
def test_one_changed_cell_changes_the_digest(rows: list[dict[str, Any]], data: Any) -> None:
    """Replace any one cell by any other value."""
    at = data.draw(st.integers(0, len(rows) - 1))
    other = data.draw(_ROW)
    name = data.draw(st.sampled_from(FILE_SCHEMA.names))
    changed = [dict(row) for row in rows]
    changed[at][name] = other[name]
    same = _batch(changed).to_pylist() == _batch(rows).to_pylist()
    assert (digest_of(_batch(changed)) == digest_of(_batch(rows))) == same
