"""The beginning and end of a read in its options: words, offsets per partition, or a time. Pure.

    earliest                                   a word, for every partition
    {"0": 5, "1": -2}                          per partition, for a read of one stream
    {"flights": {"0": 5}, "orders": {"0": -1}} per stream, as in Spark's Kafka source

Kafka's -2 and -1 mean earliest and latest. The JSON text is bounded. A name that occurs twice is
refused, because one of the two values would be ignored.
"""

from __future__ import annotations

import json
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, Final

from broker.errors import InvalidRequestError
from broker.model.ids import is_stream_name
from broker.model.offsets import OFFSET_MAX, Offset

EARLIEST: Final = "earliest"
LATEST: Final = "latest"
JSON_TEXT_MAX: Final = 1024 * 1024
_TIMESTAMP_MS_MAX: Final = 253_402_300_800_000  # year 10000, the log's limit
_KAFKA_WORDS: Final = {-2: EARLIEST, -1: LATEST}  # Kafka's JSON has numbers for the words


@dataclass(frozen=True, slots=True)
class AtMs:
    """The first record at or after a time; if there is none, an error or the end."""

    timestamp_ms: int
    or_latest: bool


Position = Offset | str  # an offset, EARLIEST or LATEST
Positions = str | AtMs | dict[int, Position]  # one stream: one for all partitions, or one for each
Bound = Positions | dict[str, dict[int, Position]]  # one for all streams, or one for each


def of_stream(bound: Bound, stream: str, *, option: str) -> Positions:
    """Return the positions of one stream from a bound.

    Raises:
        InvalidRequestError: the bound names streams, but not this one.
    """
    if not isinstance(bound, dict) or not _names_streams(bound):
        return bound  # type: ignore[return-value]  # the keys are partitions
    if stream not in bound:
        raise InvalidRequestError(
            f"{option} does not name stream {stream!r}; give positions for each stream of the read"
        )
    return bound[stream]  # type: ignore[index,return-value]  # the keys are streams


def is_explicit(positions: Positions) -> bool:
    """Tell whether every position is a number, so that the server need not be asked."""
    return isinstance(positions, dict) and not any(isinstance(at, str) for at in positions.values())


def named_streams(bound: Bound) -> set[str]:
    """Return the streams that a bound names; none if it is for all streams of the read."""
    return set(bound) if isinstance(bound, dict) and _names_streams(bound) else set()  # type: ignore[arg-type]


def positions_text(offsets: Mapping[int, Offset]) -> str:
    """Return offsets in the form of the option; equal offsets give equal texts."""
    return json.dumps({str(partition): offset for partition, offset in sorted(offsets.items())})


def parse_bound(name: str, text: str) -> Bound:
    """Parse an offsets option; raises InvalidRequestError."""
    if text.strip().lower() in {EARLIEST, LATEST}:
        return text.strip().lower()
    shape = f'{name} must be "earliest", "latest" or JSON like {{"0": 5}}'
    body = parse_json(text, shape)
    if all(isinstance(value, dict) for value in body.values()):
        for stream in body:
            if not is_stream_name(stream):
                raise InvalidRequestError(f"{shape}: {stream[:100]!r} is not a stream name")
        return {stream: _positions(shape, value) for stream, value in body.items()}
    return _positions(shape, body)


def parse_timestamp(name: str, text: str, *, or_latest: bool) -> AtMs:
    """Parse a timestamp option, milliseconds since 1970 as in Spark's Kafka source.

    Raises:
        InvalidRequestError: not a whole number, or not a time that a record can have.
    """
    try:
        value = int(text)
    except ValueError as cause:
        raise InvalidRequestError(
            f"{name} must be milliseconds since 1970-01-01 UTC, not {text[:100]!r}"
        ) from cause
    if not 0 <= value < _TIMESTAMP_MS_MAX:
        raise InvalidRequestError(f"{name} {value} ms is not a time that a record can have")
    return AtMs(value, or_latest)


def parse_json(text: str, shape: str) -> dict[str, Any]:
    """Return a JSON object that is not empty; ``shape`` is the beginning of every message.

    Raises:
        InvalidRequestError: too long, not JSON, not an object, empty, or with a name twice.
    """
    if len(text) > JSON_TEXT_MAX:
        raise InvalidRequestError(
            f"{shape} of at most {JSON_TEXT_MAX} characters; this text has {len(text)}"
        )
    try:
        body = json.loads(text, object_pairs_hook=_unique_pairs)
    except (ValueError, RecursionError) as cause:
        raise InvalidRequestError(f"{shape}, not {text[:100]!r}") from cause
    if not isinstance(body, dict) or not body:
        raise InvalidRequestError(f"{shape}, not {text[:100]!r}")
    return body


def partition_number(shape: str, text: object) -> int:
    """Parse a partition's number from a name in JSON; raises InvalidRequestError."""
    if isinstance(text, str) and text.isascii() and text.isdigit() and len(text) <= 9:
        return int(text)
    raise InvalidRequestError(f"{shape}: {text!r} is not a partition number")


def _positions(shape: str, body: Mapping[str, Any]) -> dict[int, Position]:
    if not body:
        raise InvalidRequestError(f"{shape}: a stream without partitions")
    found = {
        partition_number(shape, partition): _position(shape, partition, position)
        for partition, position in body.items()
    }
    if len(found) != len(body):
        raise InvalidRequestError(f"{shape}: a partition is named twice")
    return found


def _position(shape: str, partition: str, position: object) -> Position:
    if isinstance(position, int) and not isinstance(position, bool):
        if position in _KAFKA_WORDS:
            return _KAFKA_WORDS[position]
        if 0 <= position <= OFFSET_MAX:
            return Offset(position)
    elif isinstance(position, str) and position in {EARLIEST, LATEST}:
        return position
    raise InvalidRequestError(f"{shape}: partition {partition} has {position!r}")


def _names_streams(bound: Mapping[Any, Any]) -> bool:
    return isinstance(next(iter(bound), None), str)


def _unique_pairs(pairs: list[tuple[str, object]]) -> dict[str, object]:
    found = dict(pairs)
    if len(found) != len(pairs):
        raise ValueError("a name occurs twice")
    return found
