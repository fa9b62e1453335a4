"""Rows become the same messages however many are encoded at once."""

from __future__ import annotations

import pyarrow as pa
import pytest

from broker.adapters.liftbridge.http2 import PREFIX_BYTES
from broker.adapters.liftbridge.messages import SCHEMA, encode_rows
from broker.wire.liftbridge import message_pb2 as wire

COUNT = 500
LATE_US = 2**63 // 1000 + 1  # in nanoseconds it needs more than 63 bits


@pytest.mark.parametrize("reverse", [False, True])
@pytest.mark.parametrize("keys", [[None], [b"k", None, b"", b"longer"]])
@pytest.mark.parametrize("first_us", [0, 1795828678880048])
def test_many_rows_give_the_messages_of_few(
    reverse: bool, keys: list[bytes | None], first_us: int
) -> None:
    """Many are laid out by columns, few one after another."""
    rows = _rows(keys, [first_us + number // 7 for number in range(COUNT)])
    whole = encode_rows(rows, stream="s", partition=2, reverse=reverse)
    parts = [
        bytes(encode_rows(rows.slice(start, 50), stream="s", partition=2, reverse=reverse))
        for start in range(0, COUNT, 50)
    ]
    assert bytes(whole) == b"".join(reversed(parts) if reverse else parts)
    first = wire.Message.FromString(bytes(whole[PREFIX_BYTES : _end_of_first(whole)]))
    place = COUNT - 1 if reverse else 0
    assert first.offset == 100 + place
    assert first.timestamp == 1000 * (first_us + place // 7)
    assert dict(first.headers) == {"subject": b"foo", "reply": b""}


def test_a_time_that_nanoseconds_cannot_hold_is_no_other_time() -> None:
    """Columns of 64 bits would wrap around, so such rows are laid out one after another."""
    rows = _rows([None], [LATE_US] * COUNT)
    parts = [encode_rows(rows.slice(at, 50), stream="s", partition=2) for at in range(0, COUNT, 50)]
    assert encode_rows(rows, stream="s", partition=2) == b"".join(parts)


def _rows(keys: list[bytes | None], stamps_us: list[int]) -> pa.RecordBatch:
    columns = {
        "offset": pa.array(range(100, 100 + COUNT), pa.int64()),
        "timestamp": pa.array(stamps_us, pa.int64()).cast(SCHEMA.field("timestamp").type),
        "key": pa.array((keys * COUNT)[:COUNT], pa.binary()),
        "value": pa.array([b"v" * (number % 300) for number in range(COUNT)], pa.binary()),
        "headers": pa.nulls(COUNT, SCHEMA.field("headers").type),
        "subject": pa.array(["foo"] * COUNT, SCHEMA.field("subject").type),
        "reply_subject": pa.nulls(COUNT, SCHEMA.field("reply_subject").type),
    }
    return pa.RecordBatch.from_arrays([columns[name] for name in SCHEMA.names], schema=SCHEMA)


def _end_of_first(messages: bytes | memoryview) -> int:
    return PREFIX_BYTES + int.from_bytes(messages[1:PREFIX_BYTES], "big")
