"""Frozen digests: ledgers written years ago must still match."""

from __future__ import annotations

import hashlib
import struct

import pyarrow as pa

from broker.codec.digest import STREAMS, RangeDigest, digest_of
from broker.codec.schema import FILE_SCHEMA

ROWS = pa.RecordBatch.from_pydict(
    {
        "offset": [0, 1, 2],
        "timestamp": [1_700_000_000_000_000, 1_700_000_000_000_001, 0],
        "key": [b"key", None, b""],
        "value": [b"\x00\xff", b"value", None],
        "headers": [
            [{"key": "a", "value": b"1"}, {"key": "a", "value": None}], None, [],
        ],
        "subject": ["orders", "orders.1", "orders"],
        "leader_epoch": [1, 1, 2],
        "reply_subject": [None, "_INBOX.x", None],
        "correlation_id": [None, None, "ü"],
    },
    schema=FILE_SCHEMA,
)  # fmt: skip


def test_the_digest_of_no_rows_is_frozen() -> None:
    """The empty range."""
    assert RangeDigest().hexdigest() == (
        "fe7509bdd4316ff2a5cc86a1fd966b7a8f78f0040d26769621e38176b4e8c7af"
    )


def test_the_digest_of_three_rows_is_frozen() -> None:
    """Nulls, empties, several headers of one name, text beyond ASCII."""
    assert digest_of(ROWS) == ("20d80106dd712dc40fafe7c1e816be880078c8817e9059fa1ebd69d2974dd6d4")


def test_the_digest_is_what_its_docstring_says() -> None:
    """An independent, slow twin built from Python values gives the same digest."""
    streams = dict.fromkeys(STREAMS, b"")

    def length(text: bytes | None) -> bytes:
        return struct.pack("<q", -1 if text is None else len(text))

    def text_of(value: str | bytes | None) -> bytes | None:
        return value.encode() if isinstance(value, str) else value

    for row in ROWS.to_pylist():
        row["timestamp"] = int(row["timestamp"].timestamp() * 1_000_000 + 0.5)
        for name in ("offset", "timestamp", "leader_epoch"):
            streams[f"{name}.values"] += struct.pack("<q", row[name])
            streams[f"{name}.nulls"] += b"\x01"
        for name in ("key", "value", "subject", "reply_subject", "correlation_id"):
            value = text_of(row[name])
            streams[f"{name}.lengths"] += length(value)
            streams[f"{name}.data"] += value or b""
        entries = row["headers"]
        streams["headers.lengths"] += struct.pack("<q", -1 if entries is None else len(entries))
        for entry in entries or []:
            streams["headers.entries"] += b"\x01"
            for name in ("key", "value"):
                value = text_of(entry[name])
                streams[f"headers.{name}.lengths"] += length(value)
                streams[f"headers.{name}.data"] += value or b""
    whole = hashlib.sha256(b"headwater.digest.1\n" + struct.pack("<q", 3))
    for name in STREAMS:
        whole.update(hashlib.sha256(streams[name]).digest())
    assert digest_of(ROWS) == whole.hexdigest()
