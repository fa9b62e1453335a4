"""What the doors' campaign judges by: it can say no."""

from __future__ import annotations

import json
from pathlib import Path

from fuzzkit.doors.flight_bytes import flight_data, put_descriptor, varint
from fuzzkit.doors.stage import Call, errors_in
from fuzzkit.doors.storm import p99_ms


def test_errors_in_a_log_are_found(tmp_path: Path) -> None:
    """Events of level error, events with a traceback, and what Python prints by itself."""
    log = tmp_path / "broker.log"
    fine = json.dumps({"level": "warning", "event": "messages_refused"})
    bad = [
        json.dumps({"level": "error", "event": "flight_call_crashed"}),
        json.dumps({"level": "info", "event": "x", "exception": "Traceback"}),
        "Traceback (most recent call last):",
    ]
    log.write_text("\n".join([fine, *bad, "E0000 hpack_parser.cc:1006] of gRPC"]))
    assert errors_in(log) == bad


def test_the_slowest_hundredth_is_left_out() -> None:
    """Only calls of this name and within these seconds count."""
    calls = [Call(float(number), "read", float(number), 0) for number in range(100)]
    assert p99_ms(calls, "read", (0, 100)) == 99
    assert p99_ms(calls, "read", (0, 50)) == 49
    assert p99_ms(calls, "publish", (0, 100)) == 0


def test_the_bytes_of_flight_are_protobuf() -> None:
    """A length above 127 has two bytes; a path has two parts."""
    assert varint(300) == b"\xac\x02"
    assert put_descriptor("s", "0") == b"\x08\x01\x1a\x01s\x1a\x010"
    message = b"\xff\xff\xff\xff\x04\x00\x00\x00headbody"
    assert flight_data(message) == b"\x12\x04head\xc2\x3e\x04body"
