"""Records keep their bytes in every form, and nothing in them can disturb a terminal."""

from __future__ import annotations

import pyarrow as pa

from broker.codec.schema import ROW_SCHEMA
from headwater.cli.rendering import json_records, printable, raw_values, text_lines


def _rows() -> pa.RecordBatch:
    return pa.RecordBatch.from_pydict(
        {
            "partition": [0, 0],
            "offset": [7, 8],
            "timestamp": [1, 1_767_225_600_000_001],
            "key": [b"k", None],
            "value": [b"\x1b[2Jv", None],
            "headers": [[{"key": "h", "value": b"\xff"}, {"key": "h", "value": None}], None],
            "subject": ["s", "s"],
            "leader_epoch": [1, 1],
            "reply_subject": [None, None],
            "correlation_id": [None, "c"],
        },
        schema=ROW_SCHEMA,
    )


def test_text_shows_place_time_key_and_value() -> None:
    """A control sequence is shown, not obeyed; a tombstone has a mark of its own."""
    first, second = text_lines(_rows())
    assert first.split() == ["0:7", "1970-01-01T00:00:00.000001Z", "k", r"\x1b[2Jv"]
    assert second.split() == ["0:8", "2026-01-01T00:00:00.000001Z", "-", "∅"]


def test_json_keeps_what_text_cannot() -> None:
    """Nulls stay nulls, bytes that are not UTF-8 stay bytes, repeated headers stay in order."""
    first, second = json_records(_rows())
    assert first["headers"] == [
        {"key": "h", "value_base64": "/w=="},
        {"key": "h", "value": None},
    ]
    assert first["value"] == "\x1b[2Jv"
    assert second["key"] is None
    assert second["value"] is None
    assert second["headers"] == []
    assert second["correlation_id"] == "c"


def test_raw_is_the_value_alone() -> None:
    """A tombstone has no value to write."""
    assert list(raw_values(_rows())) == [b"\x1b[2Jv"]


def test_printable_is_one_harmless_line() -> None:
    """Line ends and control characters are spelled out; foreign bytes are marked."""
    assert printable("grüß 👋".encode()) == "grüß 👋"
    assert printable(b"a\nb\tc") == r"a\nb\tc"
    assert printable(b"\xff") == "base64:/w=="
