"""Sizes of single records, taken from offset buffers."""

from __future__ import annotations

import pyarrow as pa
import pytest

from broker.codec.record_sizes import check_record_sizes, record_sizes
from broker.codec.schema import HEADERS_TYPE
from broker.errors import RecordTooLargeError

HEADERS = [
    None,
    [],
    [{"key": "ab", "value": b"c"}, {"key": "d", "value": None}],
    [{"key": "x" * 50, "value": b"y" * 50}],
]


def batch() -> pa.RecordBatch:
    """Return four records with nulls in every place where one may be."""
    return pa.RecordBatch.from_arrays(
        [
            pa.array([b"1", None, b"123", b""], pa.binary()),
            pa.array([b"v" * 10, b"v", None, b"v" * 3], pa.binary()),
            pa.array(HEADERS, HEADERS_TYPE),
            pa.array(["s" * 1000] * 4),
        ],
        names=["key", "value", "headers", "subject"],
    )


def test_a_record_is_its_value_key_and_headers() -> None:
    """Nulls hold nothing, and the subject is not counted."""
    assert record_sizes(batch()).tolist() == [11, 1, 3 + 2 + 1 + 1, 103]


@pytest.mark.parametrize(("start", "count"), [(0, 2), (1, 3), (2, 1), (3, 1), (4, 0)])
def test_a_slice_has_the_sizes_of_its_own_rows(start: int, count: int) -> None:
    """Offsets of a slice begin in the middle of its buffers."""
    expected = record_sizes(batch()).tolist()[start : start + count]
    assert record_sizes(batch().slice(start, count)).tolist() == expected


def test_a_batch_without_sized_columns_has_no_sizes() -> None:
    """Timestamps alone are records of nothing."""
    stamps = pa.RecordBatch.from_pydict({"timestamp": [1, 2]})
    assert record_sizes(stamps).tolist() == [0, 0]


def test_the_largest_record_is_named() -> None:
    """The error tells which row, how large and what the limit is."""
    with pytest.raises(RecordTooLargeError) as caught:
        check_record_sizes(batch(), record_bytes_max=102)
    assert caught.value.facts == {"row": 3, "size_bytes": 103, "limit_bytes": 102}
    check_record_sizes(batch(), record_bytes_max=103)
