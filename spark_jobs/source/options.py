"""The options of ``spark.read.format("headwater")``: parsed once, refused when not understood.

Names follow Spark's Kafka source. Spark lower-cases option names before we see them, so they are
compared without case. A misspelt option would silently read other rows; it is an error instead.
"""

from __future__ import annotations

import json
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Final

from broker.errors import InvalidRequestError
from broker.model.ids import StreamUuid, is_stream_name, is_uuid
from broker.model.offsets import OFFSET_MAX, Offset
from spark_jobs.source.columns import ROW_COLUMNS, check_projection, nearest

EARLIEST: Final = "earliest"
LATEST: Final = "latest"
SERVER_VARIABLE: Final = "HEADWATER_SERVER"

# A task of this many 100 B records runs about a second: long against its start, short enough that
# the cores finish together.
RECORDS_PER_PARTITION_DEFAULT: Final = 2_000_000
_SPARK_PARTITIONS_MAX: Final = 100_000
_OFFSETS_TEXT_MAX: Final = 1024 * 1024
_KAFKA_WORDS: Final = {-2: EARLIEST, -1: LATEST}  # Kafka's JSON writes the words as numbers

KNOWN: Final = (
    "server",
    "stream",
    "streamUuid",
    "startingOffsets",
    "endingOffsets",
    "columns",
    "minPartitions",
    "maxRecordsPerPartition",
)

Position = Offset | str  # an offset, EARLIEST or LATEST
Positions = str | dict[int, Position]  # one word for every partition, or one position for each


@dataclass(frozen=True, slots=True, kw_only=True)
class SourceOptions:
    """What one read of the source was asked for."""

    server: str | None  # None: HEADWATER_SERVER, else the client's default
    stream: str
    stream_uuid: StreamUuid | None  # refuse a stream re-created under the same name
    starting: Positions
    ending: Positions
    columns: tuple[str, ...]
    partitions_min: int  # ask for at least so many Spark partitions; 0: as the ranges are
    records_per_partition_max: int

    def explicit(self) -> bool:
        """Tell whether every bound is a number, so that planning needs no server."""
        return all(
            isinstance(side, dict) and not any(isinstance(at, str) for at in side.values())
            for side in (self.starting, self.ending)
        )


def parse(options: Mapping[str, str]) -> SourceOptions:
    """Return the checked options.

    Raises:
        InvalidRequestError: an option is unknown (the nearest right name is offered), missing or
            out of bounds.
    """
    known = {name.lower(): name for name in KNOWN}
    given = {name.lower(): value for name, value in options.items()}
    if "path" in given:
        raise InvalidRequestError(
            'load("...") takes no path here; name the stream with .option("stream", "...")'
        )
    for name in given:
        if name not in known:
            raise InvalidRequestError(f"unknown option {name!r}{nearest(name, KNOWN)}")
    stream = given.get("stream", "")
    if not is_stream_name(stream):
        raise InvalidRequestError(
            f'stream {stream!r} is not a stream name; give one with .option("stream", "...")'
        )
    uuid = given.get("streamuuid")
    if uuid is not None and not is_uuid(uuid):
        raise InvalidRequestError(f"streamUuid {uuid!r} is not a uuid")
    return SourceOptions(
        server=given.get("server") or None,
        stream=stream,
        stream_uuid=None if uuid is None else StreamUuid(uuid),
        starting=_positions("startingOffsets", given.get("startingoffsets", EARLIEST)),
        ending=_positions("endingOffsets", given.get("endingoffsets", LATEST)),
        columns=_columns(given.get("columns")),
        partitions_min=_integer(
            "minPartitions", given.get("minpartitions", "0"), 0, _SPARK_PARTITIONS_MAX
        ),
        records_per_partition_max=_integer(
            "maxRecordsPerPartition",
            given.get("maxrecordsperpartition", str(RECORDS_PER_PARTITION_DEFAULT)),
            1,
            OFFSET_MAX,
        ),
    )


def positions_text(offsets: Mapping[int, Offset]) -> str:
    """Return offsets as the option takes them, in one spelling."""
    return json.dumps({str(partition): offset for partition, offset in sorted(offsets.items())})


def _columns(text: str | None) -> tuple[str, ...]:
    if text is None:
        return tuple(ROW_COLUMNS)
    return check_projection([name.strip() for name in text.split(",")], where="option columns")


def _integer(name: str, text: str, low: int, high: int) -> int:
    try:
        value = int(text)
    except ValueError as cause:
        raise InvalidRequestError(f"{name} must be a whole number, not {text!r}") from cause
    if not low <= value <= high:
        raise InvalidRequestError(f"{name} must be {low} to {high}, not {value}")
    return value


def _positions(name: str, text: str) -> Positions:
    """Parse ``earliest``, ``latest`` or a JSON object ``{"<partition>": <offset>, ...}``."""
    if text.strip().lower() in {EARLIEST, LATEST}:
        return text.strip().lower()
    shape = f'{name} must be "earliest", "latest" or JSON like {{"0": 5}}'
    if len(text) > _OFFSETS_TEXT_MAX:
        raise InvalidRequestError(f"{shape}; this is {len(text)} characters long")
    try:
        body = json.loads(text, object_pairs_hook=_unique_pairs)
    except (ValueError, RecursionError) as cause:
        raise InvalidRequestError(f"{shape}, not {text[:100]!r}") from cause
    if not isinstance(body, dict) or not body:
        raise InvalidRequestError(f"{shape}, not {text[:100]!r}")
    found: dict[int, Position] = {}
    for partition, position in body.items():
        if not (partition.isascii() and partition.isdigit() and len(partition) <= 9):
            raise InvalidRequestError(f"{shape}: {partition!r} is not a partition number")
        found[int(partition)] = _position(shape, partition, position)
    if len(found) != len(body):
        raise InvalidRequestError(f"{shape}: a partition is named twice")
    return found


def _position(shape: str, partition: str, position: object) -> Position:
    if isinstance(position, int) and not isinstance(position, bool):
        if position in _KAFKA_WORDS:
            return _KAFKA_WORDS[position]
        if 0 <= position <= OFFSET_MAX:
            return Offset(position)
    elif position in {EARLIEST, LATEST}:
        return str(position)
    raise InvalidRequestError(f"{shape}: partition {partition} has {position!r}")


def _unique_pairs(pairs: list[tuple[str, object]]) -> dict[str, object]:
    found = dict(pairs)
    if len(found) != len(pairs):
        raise ValueError("a name occurs twice")
    return found
