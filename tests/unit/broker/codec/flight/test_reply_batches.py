"""Reply batches: exact offsets whatever the stored batches are, without tiny pieces."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import pyarrow as pa
import pytest

from broker.codec.flight.reply_batches import Reply, replies
from broker.codec.record_batch import (
    BatchHeader,
    decode_header,
    encode_header,
    prepare,
)
from broker.codec.schema import ROW_SCHEMA, body_schema
from broker.errors import BatchCorruptError, GapError
from broker.model.offsets import Offset
from simkit.brokers.memory_broker import numbered, records

Stored = tuple[BatchHeader, pa.Buffer]


def stored(batch: pa.RecordBatch, base: int, *, epoch: int = 1) -> Stored:
    """Return a batch as the log holds it."""
    prepared = prepare(batch, now_us=5)
    header = encode_header(prepared, base_offset=base, leader_epoch=epoch, synced_end=base)
    return decode_header(header), prepared.body


def read(
    batches: list[Stored], start: int, end: int, schema: pa.Schema = ROW_SCHEMA
) -> list[Reply]:
    """Return the replies for ``[start, end)``."""
    return list(
        replies(
            batches,
            start=Offset(start),
            end=Offset(end),
            partition=2,
            subject="subject.2",
            schema=schema,
        )
    )


def offsets(found: list[Reply]) -> list[int]:
    """Return the offsets of all rows."""
    return [offset for reply in found for offset in reply.rows.column("offset").to_pylist()]


@pytest.mark.parametrize("start", range(6))
@pytest.mark.parametrize("end", range(6, 10))
def test_exactly_the_requested_offsets_come(start: int, end: int) -> None:
    """First and last batch are cut to the request."""
    batches = [stored(numbered(0, 6), 0), stored(numbered(6, 4), 6)]
    found = read(batches, start, end)
    assert offsets(found) == list(range(start, end))
    values = [int(value) for reply in found for value in reply.rows.column("value").to_pylist()]
    assert values == list(range(start, end))
    assert (found[0].base_offset, found[-1].end_offset) == (start, end)


def test_single_records_are_joined() -> None:
    """A log written one record at a time is not read one record at a time, nor all at once.

    A decoded batch of one record takes kilobytes: 50 readers of 4 MiB of them took 600 MiB.
    """
    found = read([stored(numbered(n, 1), n) for n in range(500)], 0, 500)
    assert [reply.rows.num_rows for reply in found] == [256, 244]
    assert offsets(found) == list(range(500))


def test_a_large_batch_is_not_copied() -> None:
    """The reply's values are the very bytes of the log."""
    header, body = stored(numbered(0, 4_000, value_bytes=100), 0)
    (reply,) = read([(header, body)], 0, 4_000)
    values = reply.rows.column("value").buffers()[2]
    assert body.address <= values.address < body.address + body.size


def test_small_neighbours_of_a_large_batch_keep_the_order() -> None:
    """A large batch goes alone, between the batches before and after it."""
    batches = [
        stored(numbered(0, 2), 0),
        stored(numbered(2, 4_000, value_bytes=100), 2),
        stored(numbered(4_002, 1), 4_002),
        stored(numbered(4_003, 1), 4_003),
    ]
    found = read(batches, 1, 4_004)
    assert [reply.rows.num_rows for reply in found] == [1, 4_000, 2]
    assert offsets(found) == list(range(1, 4_004))


def test_batches_of_different_shape_are_joined() -> None:
    """Columns and epochs may change from batch to batch within one reply."""
    batches = [
        stored(records([b"a"]), 0, epoch=1),
        stored(records([b"b"], key=[b"k"]), 1, epoch=1),
        stored(records([b"c"], subject=["other"]), 2, epoch=2),
        stored(records([None]), 3, epoch=2),
    ]
    (reply,) = read(batches, 0, 4)
    rows = reply.rows.to_pydict()
    assert rows["value"] == [b"a", b"b", b"c", None]
    assert rows["key"] == [None, b"k", None, None]
    assert rows["subject"] == ["subject.2", "subject.2", "other", "subject.2"]
    assert rows["leader_epoch"] == [1, 1, 2, 2]
    assert rows["partition"] == [2] * 4


def test_many_small_batches_are_what_they_are_one_by_one() -> None:
    """Nulls, empty values and all columns, cut at both ends, whatever they were packed with."""
    batches: list[Stored] = []
    for number in range(40):
        part = records(
            [None if number % 3 == 0 else b"%d" % number, b""],
            key=[b"k%d" % number, None],
            subject=["a", None],
        )
        batches.append(stored(part, 2 * number))
    (reply,) = read(batches, 1, 79)
    single = [read([one], max(1, 2 * n), min(79, 2 * n + 2)) for n, one in enumerate(batches)]
    assert reply.rows.to_pylist() == [row for (alone,) in single for row in alone.rows.to_pylist()]
    assert (reply.base_offset, reply.end_offset) == (1, 79)


@pytest.mark.parametrize("bad", [0, 17, 39])
def test_one_bad_body_among_many_is_named(bad: int) -> None:
    """A checksum does not say that a body is Arrow, or has as many rows as its header says."""
    batches = [stored(numbered(n, 1), n) for n in range(40)]
    header, body = batches[bad]
    for wrong in (bytes(len(body)), stored(numbered(0, 2), 0)[1], b"x" * len(body), body[:-8]):
        batches[bad] = header, pa.py_buffer(wrong)
        with pytest.raises(BatchCorruptError) as caught:
            read(batches, 0, 40)
        assert caught.value.facts["offset"] == bad


def test_columns_come_in_the_order_asked() -> None:
    """A projection is neither sorted nor widened."""
    schema = pa.schema([ROW_SCHEMA.field(name) for name in ("value", "offset")])
    (reply,) = read([stored(numbered(0, 3), 0)], 1, 3, schema)
    assert reply.rows.schema.names == ["value", "offset"]
    assert reply.rows.column("offset").to_pylist() == [1, 2]


def test_a_joined_reply_is_bounded() -> None:
    """Joining stops at a few megabytes or some ten thousand rows."""
    batches = [stored(numbered(n * 2_000, 2_000), n * 2_000) for n in range(80)]
    found = read(batches, 0, 160_000)
    assert len(found) > 1
    assert max(reply.rows.num_rows for reply in found) <= 64 * 1024 + 2_000
    assert offsets(found) == list(range(160_000))


def test_a_sparse_batch_shows_the_offsets_that_are_left() -> None:
    """A compacted batch covers more offsets than it has rows."""
    body = pa.RecordBatch.from_arrays(
        [
            pa.array(np.full(3, 7)),
            pa.array([b"a", b"c", b"f"], pa.binary()),
            pa.array([0, 2, 5], pa.uint32()),
        ],
        schema=body_schema(2, sparse=True),
    ).serialize()
    header, _ = stored(numbered(0, 3), 10)
    sparse = replace(header, sparse=True, offset_span=8, columns=2, body_size=len(body))
    (reply,) = read([(sparse, body)], 11, 15)
    assert reply.rows.column("offset").to_pylist() == [12]
    assert reply.rows.column("value").to_pylist() == [b"c"]
    assert (reply.base_offset, reply.end_offset) == (11, 15)


@pytest.mark.parametrize("base", [3, 5])
def test_a_hole_between_batches_is_an_error(base: int) -> None:
    """Neither a missing nor a repeated offset is passed on."""
    batches = [stored(numbered(0, 4), 0), stored(numbered(0, 1 if base == 3 else 4), base)]
    with pytest.raises(GapError) as caught:
        read(batches, 0, 9)
    assert caught.value.facts["start"] == 4
