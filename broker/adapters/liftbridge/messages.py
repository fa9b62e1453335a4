"""Converts records to Liftbridge's gRPC messages, and published messages to columns.

A message of Liftbridge has two headers of its own, ``subject`` and ``reply``, which replace headers
of a publisher with these names. An empty key is no key: protobuf's third version cannot tell them
apart. Source: Liftbridge's API 2.0.0 (proto/broker/wire/liftbridge).
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import Final

import pyarrow as pa
import pyarrow.compute as pc

from broker.adapters.liftbridge.http2 import Messages, prefixed
from broker.adapters.liftbridge.laid_columns import lay_out_columns
from broker.adapters.liftbridge.laid_messages import lay_out
from broker.adapters.liftbridge.publish_requests import Published
from broker.codec.schema import HEADERS_TYPE, ROW_SCHEMA
from broker.wire.liftbridge import message_pb2 as wire

NS_PER_US: Final = 1000
COLUMNS: Final = (
    "offset",
    "timestamp",
    "key",
    "value",
    "headers",
    "subject",
    "reply_subject",
)
SCHEMA: Final = pa.schema([ROW_SCHEMA.field(name) for name in COLUMNS])
_COLUMNS_ROWS_MIN: Final = 200  # fewer take less time one after another
_STAMP_US_MAX: Final = (2**63 - 1) // NS_PER_US


def encode_rows(
    rows: pa.RecordBatch, *, stream: str, partition: int, reverse: bool = False
) -> Messages:
    """Return rows of :data:`SCHEMA` as messages, each with its prefix, joined."""
    if reverse:
        rows = rows.take(pa.array(range(rows.num_rows - 1, -1, -1), pa.int64()))
    encoded = _laid_out(rows, stream, partition)
    if encoded is None:
        messages = _messages(rows, stream, partition)
        encoded = b"".join(prefixed(message.SerializeToString()) for message in messages)
    return encoded


def _laid_out(rows: pa.RecordBatch, stream: str, partition: int) -> Messages | None:
    """Return rows that differ in offset, time, key and value only; None: they differ in more."""
    keys, headers, subjects, replies = (rows.column(place) for place in (2, 4, 5, 6))
    count = rows.num_rows
    if not count or headers.null_count < count or replies.null_count < count:
        return None
    subject = subjects[0].as_py()
    if subject is None or not pc.all(pc.equal(subjects, subjects[0])).as_py():
        return None
    common = wire.Message(stream=stream, partition=partition, subject=subject)
    common.headers["subject"] = subject.encode()
    common.headers["reply"] = b""
    stamps_us, has_keys = rows.column(1).cast(pa.int64()), keys.null_count < count
    if count >= _COLUMNS_ROWS_MIN and pc.max(stamps_us).as_py() <= _STAMP_US_MAX:
        return lay_out_columns(
            common.SerializeToString(),
            rows.column(0).to_numpy(),
            stamps_us.to_numpy() * NS_PER_US,
            keys if has_keys else None,
            rows.column(3),
        )
    return lay_out(
        common.SerializeToString(),
        rows.column(0).to_pylist(),
        [NS_PER_US * one for one in stamps_us.to_pylist()],
        keys.to_pylist() if has_keys else [None] * count,
        rows.column(3).to_pylist(),
    )


def _messages(rows: pa.RecordBatch, stream: str, partition: int) -> Iterator[wire.Message]:
    stamps = rows.column(1).cast(pa.int64()).to_pylist()
    columns = [rows.column(place).to_pylist() for place in (0, 2, 3, 4, 5, 6)]
    for stamp, offset, key, value, headers, subject, reply in zip(stamps, *columns, strict=True):
        message = wire.Message(
            offset=offset,
            key=key,
            value=value,
            timestamp=stamp * NS_PER_US,
            stream=stream,
            partition=partition,
            subject=subject,
            replySubject=reply,
        )
        named = message.headers
        for header in headers or ():
            named[header["key"]] = header["value"] or b""
        named["subject"] = (subject or "").encode()
        named["reply"] = (reply or "").encode()
        yield message


def to_batch(messages: Sequence[Published]) -> pa.RecordBatch:
    """Return published messages as columns of a producer; the broker stamps the time."""
    envelopes = [one.envelope for one in messages]
    different = {id(one): one for one in envelopes}.values()
    count = len(messages)
    keys = pa.nulls(count, pa.binary())
    if any(one.key for one in different):
        keys = pa.array([one.key or None for one in envelopes], pa.binary())
    columns = {"key": keys, "value": pa.array([one.value for one in messages], pa.binary())}
    if any(one.headers for one in different):
        # A protobuf map has no order.
        named = [sorted(one.headers.items()) or None for one in envelopes]
        columns["headers"] = pa.array(named, pa.map_(pa.string(), pa.binary())).cast(HEADERS_TYPE)
    if any(one.correlation_id for one in messages):
        ids = [one.correlation_id or None for one in messages]
        columns["correlation_id"] = pa.array(ids, pa.string())
    return pa.RecordBatch.from_pydict(columns)
