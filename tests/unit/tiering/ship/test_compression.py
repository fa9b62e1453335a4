"""Payloads are compressed if that makes them smaller; random ones are stored as they are."""

from __future__ import annotations

import random

import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from tiering.ship.compression import ZSTD_LEVEL, codecs, worth_packing

_NESTED = pa.schema([
    ("offset", pa.int64()),
    ("value", pa.binary()),
    ("headers", pa.list_(pa.struct([("key", pa.string()), ("value", pa.binary())]))),
    ("tags", pa.map_(pa.string(), pa.list_(pa.int32()))),
    ("at", pa.struct([("x", pa.float64())])),
])  # fmt: skip


def noise(count: int) -> pa.Array:
    """Return values that nothing can compress, the same each time."""
    source = random.Random(7)
    return pa.array([source.randbytes(100) for _ in range(count)], pa.binary())


def text(count: int) -> pa.Array:
    """Return values as JSON records are."""
    return pa.array([b'{"id":%d,"delay":12,"gate":"A7"}' % row for row in range(count)])


def rows(values: pa.Array) -> pa.RecordBatch:
    """Return rows of a schema with nested columns."""
    count = len(values)
    return pa.RecordBatch.from_arrays(
        [
            pa.array(range(count)),
            values,
            pa.array([[{"key": "k", "value": b"v"}]] * count, _NESTED.field("headers").type),
            pa.array([[("a", [1, 2])]] * count, _NESTED.field("tags").type),
            pa.array([{"x": 1.0}] * count, _NESTED.field("at").type),
        ],
        schema=_NESTED,
    )


def test_noise_is_not_worth_it_and_text_is() -> None:
    """Also for slices of a longer column, and for repeats farther apart than a page."""
    assert not worth_packing([noise(1000)])
    assert not worth_packing([noise(500), noise(500)])
    assert worth_packing([text(1000)])
    both = pa.concat_arrays([text(2000), noise(2000)])
    assert worth_packing([both.slice(0, 2000)])
    assert not worth_packing([both.slice(2000)])


@pytest.mark.parametrize("values", [pa.array([], pa.binary()), noise(10), pa.nulls(5, pa.binary())])
def test_too_little_tells_nothing(values: pa.Array) -> None:
    """A small sample proves nothing, so the column is compressed."""
    assert worth_packing([values])
    assert worth_packing([])


def test_some_noise_in_text_is_packed() -> None:
    """The sample has several places of the column."""
    assert worth_packing([noise(1000), text(1000), text(1000), text(1000)])


def test_only_the_payload_is_left_alone_and_all_reads_back() -> None:
    """Every other leaf keeps its codec, nested ones too."""
    batch = rows(noise(2000))
    chosen = codecs(_NESTED, ["value"], [batch])
    sink = pa.BufferOutputStream()
    with pq.ParquetWriter(sink, _NESTED, **chosen) as writer:
        writer.write_batch(batch)
    file = pq.ParquetFile(pa.BufferReader(sink.getvalue()))
    group = file.metadata.row_group(0)
    found = {
        group.column(at).path_in_schema: group.column(at).compression
        for at in range(group.num_columns)
    }
    assert found.pop("value") == "UNCOMPRESSED"
    assert len(found) == 6
    assert set(found.values()) == {"ZSTD"}
    assert file.read().equals(pa.Table.from_batches([batch]))


def test_what_shrinks_is_packed_with_everything_else() -> None:
    """One codec for the file."""
    chosen = codecs(_NESTED, ["value"], [rows(text(2000))])
    assert chosen == {"compression": "zstd", "compression_level": ZSTD_LEVEL}
