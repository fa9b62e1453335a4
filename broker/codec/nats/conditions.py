"""Conditions of JetStream publishers in the headers of a message. Pure.

A header is either checked, with JetStream's meaning and error, or the message is refused with the
header's name: a positive PubAck for an unchecked condition would be false. As in JetStream the name
of a header is case-sensitive, and an empty value is no condition.

    Nats-Expected-Stream          compared here
    Nats-Expected-Last-Sequence   compared when the record gets its offset; one partition only
    every other one               refused; the codes are those of a stream without the feature

Sources: the answers of nats-server 2.15.1 to each header, and its errors.json.
"""

from __future__ import annotations

from typing import Final

from broker.errors import ConditionFailedError
from broker.model.offsets import OFFSET_MAX, Offset
from broker.model.records import Headers

MESSAGE_ID: Final = "Nats-Msg-Id"
EXPECTED_STREAM: Final = "Nats-Expected-Stream"
EXPECTED_LAST_SEQUENCE: Final = "Nats-Expected-Last-Sequence"

_BAD_REQUEST: Final = (400, 10003, "bad request")
WRONG_STREAM: Final = (400, 10060, "expected stream does not match")
WRONG_LAST_SEQUENCE: Final = (400, 10071, "wrong last sequence")

# Prefixes of names: (HTTP-like code, JetStream's error number, JetStream's description). A header
# with such a prefix is refused even if no release of JetStream has it today.
_REFUSED: Final[tuple[tuple[str, tuple[int, int, str]], ...]] = (
    ("Nats-Expected-", _BAD_REQUEST),
    ("Nats-Rollup", (500, 10111, "rollup not permitted")),
    ("Nats-TTL", (400, 10166, "per-message TTL is disabled")),
    ("Nats-Schedule", (400, 10188, "message schedules is disabled")),
    ("Nats-Batch-", (400, 10174, "atomic publish is disabled")),
    ("Nats-Fast-Batch-", (400, 10205, "batch publish is disabled")),
    ("Nats-Incr", (400, 10168, "message counters is disabled")),
)
_PREFIXES: Final = tuple(prefix for prefix, _ in _REFUSED)
_DIGITS_MAX: Final = len(str(OFFSET_MAX))


def is_of_a_publisher(headers: Headers) -> bool:
    """Tell whether a header shows that a JetStream publisher waits for a PubAck."""
    return any(
        name == MESSAGE_ID or name.startswith(_PREFIXES)
        for name, _ in headers
        if name.startswith("Nats-")
    )


def check(headers: Headers, *, stream: str, partitions: int) -> Offset | None:
    """Return the log end at which the record may be stored; None: there is no such condition.

    Raises:
        ConditionFailedError: a condition does not hold, or is not checked by this broker.
    """
    expected: Offset | None = None
    for name, value in headers:
        if not value or not name.startswith(_PREFIXES):
            continue
        if name == EXPECTED_STREAM:
            if value != stream.encode():
                raise _failed(name, WRONG_STREAM, "")
        elif name == EXPECTED_LAST_SEQUENCE:
            if partitions > 1:
                raise _failed(
                    name,
                    _BAD_REQUEST,
                    f": stream {stream!r} has {partitions} partitions, each with sequences of its "
                    "own, so there is no last sequence of the stream",
                )
            found = _sequence(name, value)
            if expected is not None and found != expected:
                raise _failed(name, WRONG_LAST_SEQUENCE, ": the header is given twice")
            expected = found
        else:
            refusal = next(error for prefix, error in _REFUSED if name.startswith(prefix))
            raise _failed(name, refusal, f": Headwater does not support the header {name}")
    return expected


def wrong_last_sequence(log_end: Offset) -> ConditionFailedError:
    """Return the error of a record that expected another last sequence, with the present one."""
    return _failed(EXPECTED_LAST_SEQUENCE, WRONG_LAST_SEQUENCE, f": {log_end}")


def _sequence(name: str, value: bytes) -> Offset:
    """Return the log end that the header expects: JetStream's last sequence has the same value.

    A record's sequence is its offset plus one, and the last offset plus one is the log end.
    """
    if not value.isdigit() or len(value) > _DIGITS_MAX:
        raise _failed(name, WRONG_LAST_SEQUENCE, f": the header is {value[:32]!r}, not a sequence")
    return Offset(int(value))


def _failed(name: str, error: tuple[int, int, str], more: str) -> ConditionFailedError:
    code, number, description = error
    return ConditionFailedError(f"{description}{more}", header=name, code=code, err_code=number)
