"""Cuts and their names: the same rows give the same cuts, however Spark chunks them."""

from __future__ import annotations

import itertools

import pyarrow as pa
import pytest
from hypothesis import given
from hypothesis import strategies as st

from broker.model.ids import StreamUuid
from spark_jobs.sink.columns import row_sizes, to_records
from spark_jobs.sink.cuts import Cutter, Origin, producer_id

UUID = StreamUuid("00000000-0000-4000-8000-000000000001")
ORIGIN = Origin(kind="query", key="q", batch=3, task=1)


def _records(values: list[bytes | None]) -> pa.RecordBatch:
    return to_records(pa.record_batch({"value": pa.array(values, pa.binary())}))


def _cut(batches: list[list[bytes | None]], **limits: int) -> list[list[bytes | None]]:
    cutter = Cutter(**limits)
    cuts = [cut for batch in batches for cut in cutter.add(_records(batch))]
    cuts += cutter.finish()
    return [cut.column("value").to_pylist() for cut in cuts]


@given(
    st.lists(st.one_of(st.none(), st.binary(max_size=200)), max_size=60),
    st.lists(st.integers(0, 60), max_size=6),
    st.integers(1, 9),
    st.integers(64, 700),
)
def test_chunks_do_not_move_cuts(
    values: list[bytes | None], at: list[int], rows_max: int, bytes_max: int
) -> None:
    """A retried task may get its rows in other Arrow batches; its cuts have to be the same."""
    bounds = [0, *sorted(min(one, len(values)) for one in at), len(values)]
    chunks = [values[low:high] for low, high in itertools.pairwise(bounds)]
    whole = _cut([values], rows_max=rows_max, bytes_max=bytes_max)

    assert _cut(chunks, rows_max=rows_max, bytes_max=bytes_max) == whole
    assert [value for cut in whole for value in cut] == values
    for cut in whole:
        assert 0 < len(cut) <= rows_max
        assert len(cut) == 1 or int(row_sizes(_records(cut)).sum()) <= bytes_max


def test_a_huge_record_travels_alone() -> None:
    """A record above the limit of a cut is a cut of its own; the stream's limit is another one."""
    assert _cut([[b"a", b"x" * 1000, b"b", b"c"]], bytes_max=500) == [
        [b"a"],
        [b"x" * 1000],
        [b"b", b"c"],
    ]


@pytest.mark.parametrize(
    "other",
    [
        Origin(kind="write", key="q", batch=3, task=1),
        Origin(kind="query", key="p", batch=3, task=1),
        Origin(kind="query", key="q", batch=4, task=1),
        Origin(kind="query", key="q", batch=3, task=2),
    ],
)
def test_every_part_of_the_origin_names_another_producer(other: Origin) -> None:
    """Two tasks never take each other's rows for their own."""
    assert producer_id(ORIGIN, UUID, 0, 0) != producer_id(other, UUID, 0, 0)


def test_names_are_stable() -> None:
    """A release that changed them would store a batch twice that was re-run across it."""
    assert producer_id(ORIGIN, UUID, 0, 0) == 1_524_823_798_480_309_463
    again = StreamUuid(UUID.replace("1", "2"))
    others = {producer_id(ORIGIN, again, 0, 0), producer_id(ORIGIN, UUID, 1, 0)}
    others |= {producer_id(ORIGIN, UUID, 0, 1), producer_id(ORIGIN, UUID, 0, 0)}
    assert len(others) == 4
    assert all(0 <= one < 2**63 for one in others)


def test_headers_count_in_the_size() -> None:
    """A record of many headers fills a cut as one of a long value does."""
    kind = pa.list_(pa.struct([("key", pa.string()), ("value", pa.binary())]))
    headers = [None, [], [{"key": "ab", "value": b"cde"}, {"key": "ab", "value": None}]]
    rows = pa.record_batch(
        {"value": pa.array([b"", b"1", None]), "headers": pa.array(headers, kind)}
    )
    assert row_sizes(to_records(rows)).tolist() == [64, 65, 71]
