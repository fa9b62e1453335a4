"""The columns of a row in Spark's words, and the checks of a projection.

The same ten columns as ``broker.codec.schema.ROW_SCHEMA`` (a test compares them), spelled out here
because Spark's planner asks for them in processes where pyarrow need not be loaded. Beside them
stand what only Spark sees: Kafka's column names, and the row that ``emit=ranges`` gives.
"""

from __future__ import annotations

import difflib
from collections.abc import Iterable, Mapping, Sequence
from typing import Final

from broker.errors import InvalidRequestError

ROW_COLUMNS: Final[dict[str, str]] = {
    "partition": "int",
    "offset": "bigint",
    "timestamp": "timestamp",
    "key": "binary",
    "value": "binary",
    "headers": "array<struct<key:string,value:binary>>",
    "subject": "string",
    "leader_epoch": "bigint",
    "reply_subject": "string",
    "correlation_id": "string",
}

# Columns of a read that no record stores: the stream's name, by our word and by Kafka's, and the
# kind of timestamp, which is always that of creation.
STREAM_COLUMN: Final = "stream"
ADDED_COLUMNS: Final[dict[str, str]] = {
    STREAM_COLUMN: "string",
    "topic": "string",
    "timestampType": "int",
}
READ_COLUMNS: Final[dict[str, str]] = {**ROW_COLUMNS, **ADDED_COLUMNS}

# The word for option `columns`, and what it means: the columns of Spark's Kafka source.
KAFKA: Final = "kafka"
KAFKA_COLUMNS: Final = (
    "key",
    "value",
    "topic",
    "partition",
    "offset",
    "timestamp",
    "timestampType",
)

# A session's spark.sql.timestampType may take the word for a type without a zone.
_UNAMBIGUOUS: Final = {"timestamp": "timestamp_ltz"}

# One row per slice, for jobs that fetch the records themselves.
RANGE_COLUMNS: Final[dict[str, str]] = {
    "stream": "string",
    "stream_uuid": "string",
    "partition": "int",
    "start": "bigint",
    "end": "bigint",
}


def ddl(columns: Iterable[str], known: Mapping[str, str] = READ_COLUMNS) -> str:
    """Return Spark's DDL text of a projection, every column nullable."""
    return ", ".join(f"`{name}` {_UNAMBIGUOUS.get(known[name], known[name])}" for name in columns)


def check_projection(
    columns: Sequence[str], *, where: str, known: Mapping[str, str] = ROW_COLUMNS
) -> tuple[str, ...]:
    """Return the columns as a tuple.

    Raises:
        InvalidRequestError: one is unknown or named twice, or there is none. ``where`` says who
            asked, the nearest right name is offered.
    """
    if not columns:
        raise InvalidRequestError(f"{where} names no column; there are {', '.join(known)}")
    for name in columns:
        if name not in known:
            raise InvalidRequestError(
                f"{where} names {name!r}, which no stream has{nearest(name, known)}"
            )
    if len(set(columns)) != len(columns):
        raise InvalidRequestError(f"{where} names a column twice: {', '.join(columns)}")
    return tuple(columns)


def check_types(
    fields: Iterable[tuple[str, str]], *, where: str, known: Mapping[str, str] = READ_COLUMNS
) -> tuple[str, ...]:
    """Return the names of a user's schema ``(name, Spark's simple type)``; its types must be ours.

    Raises:
        InvalidRequestError: a column is unknown, named twice or of another type.
    """
    typed = list(fields)
    names = check_projection([name for name, _ in typed], where=where, known=known)
    for name, given in typed:
        if given != known[name]:
            raise InvalidRequestError(
                f"{where} declares {name} as {given}, but it is "
                f"{_UNAMBIGUOUS.get(known[name], known[name])}; "
                "cast after the read instead"
            )
    return names


def nearest(name: str, known: Iterable[str]) -> str:
    """Return ``"; did you mean …?"`` for the closest known name, else the list of them."""
    names = list(known)
    lowered = {other.lower(): other for other in names}
    close = difflib.get_close_matches(name.lower(), lowered, n=1, cutoff=0.6)
    if close:
        return f"; did you mean {lowered[close[0]]!r}?"
    return f"; known: {', '.join(names)}"
