"""Sparse batches: what is left of batches, at the offsets where it was."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import numpy as np
import pyarrow as pa
import pytest

from broker.codec.record_batch import (
    BatchHeader,
    decode_body,
    decode_header,
    encode_header,
    encode_stored,
    offsets_of,
    prepare,
    to_rows,
)
from broker.codec.sparse import Survivors, encode_sparse, from_offset
from broker.errors import BatchCorruptError
from broker.model.ids import ProducerId
from broker.model.offsets import Offset


def dense(**columns: list[Any]) -> tuple[BatchHeader, pa.RecordBatch]:
    """Return a dense batch at offset 10."""
    types = {"key": pa.binary(), "value": pa.binary(), "subject": pa.string()}
    arrays = {name: pa.array(values, types[name]) for name, values in columns.items()}
    prepared = prepare(
        pa.RecordBatch.from_pydict(arrays), now_us=5, producer_id=ProducerId(3), base_sequence=40
    )
    head = encode_header(prepared, base_offset=10, leader_epoch=2, synced_end=9)
    header = decode_header(head)
    return header, decode_body(header, prepared.body)


def read_back(made: tuple[BatchHeader, Any]) -> dict[str, list[Any]]:
    """Return the rows of a batch after it was written and read."""
    header = decode_header(encode_stored(made[0]))
    assert header == made[0]
    rows = to_rows(header, decode_body(header, made[1]), partition=0, subject="own")
    wanted = ("offset", "key", "value", "subject", "leader_epoch")
    return {name: rows.column(name).to_pylist() for name in wanted}


def test_records_of_batches_of_several_shapes_become_one_batch() -> None:
    """A column that one batch lacks is null there; one without a value is left out."""
    header, body = dense(key=[b"a", b"b"], value=[b"1", None])
    _, other = dense(key=[b"c"], subject=["s"])
    made = encode_sparse(
        header,
        Offset(20),
        [Survivors(np.array([11]), body.slice(1)), Survivors(np.array([17]), other)],
    )
    assert read_back(made) == {
        "offset": [11, 17], "key": [b"b", b"c"], "value": [None, None], "subject": ["own", "s"],
        "leader_epoch": [2, 2],
    }  # fmt: skip
    assert (made[0].base_offset, made[0].end_offset, made[0].records_count) == (10, 20, 2)
    assert (made[0].producer_id, made[0].columns) == (-1, 0b1001)


def test_a_batch_may_have_no_record() -> None:
    """Its offsets still have a place, and its producer if it is to stay."""
    header, _ = dense(key=[b"a"])
    made = encode_sparse(header, Offset(11), [], keep_producer=True)
    assert read_back(made)["offset"] == []
    assert (made[0].producer_id, made[0].base_sequence, made[0].offset_span) == (3, 40, 1)
    assert (made[0].max_timestamp_us, made[0].synced_end) == (0, 9)


@pytest.mark.parametrize(("start", "left"), [(11, [11, 13]), (12, [13]), (13, [13]), (14, [])])
def test_a_part_begins_anywhere_within_the_batch(start: int, left: list[int]) -> None:
    """As a follower needs it whose log ends there."""
    header, body = dense(key=[b"a", b"b", b"c", b"d"])
    kept = Survivors(np.array([11, 13]), body.take(pa.array([1, 3])))
    whole = encode_sparse(header, Offset(15), [kept])
    part = from_offset(*whole, Offset(start))
    assert read_back(part)["offset"] == left
    assert (part[0].base_offset, part[0].end_offset) == (start, 15)


@pytest.mark.parametrize("deltas", [[1, 1], [2, 1], [0, 5], [0, 2**31]])
def test_offsets_that_do_not_ascend_within_the_batch_are_damage(deltas: list[int]) -> None:
    """They are checked before they are believed."""
    header, body = dense(key=[b"a", b"b"])
    wrong = encode_sparse(header, Offset(2**31 + 20), [Survivors(np.array(deltas) + 10, body)])
    with pytest.raises(BatchCorruptError, match="do not ascend"):
        decode_body(replace(wrong[0], offset_span=5), wrong[1])


@pytest.mark.parametrize(
    ("changes", "sane"),
    [
        ({"records_count": 0, "offset_span": 1}, True),
        ({"records_count": 0, "offset_span": 0}, False),
        ({"records_count": 2, "offset_span": 1}, False),
        ({"records_count": 0, "sparse": False, "offset_span": 0}, False),
        ({"records_count": 1, "sparse": False, "offset_span": 2}, False),
    ],
)
def test_only_a_sparse_batch_may_have_fewer_records_than_offsets(
    changes: dict[str, Any], sane: bool
) -> None:
    """And none has more, or no offset at all."""
    header, _ = dense(key=[b"a"])
    data = encode_stored(replace(header, **{"sparse": True, **changes}))
    if sane:
        assert decode_header(data).end_offset == 11
        return
    with pytest.raises(BatchCorruptError, match="out of bounds"):
        decode_header(data)


def test_offsets_of_a_dense_batch_follow_one_another() -> None:
    """One for each record."""
    header, body = dense(key=[b"a", None, b"c"])
    assert offsets_of(header, body).tolist() == [10, 11, 12]
