"""The columns of a row in Spark's types, and the checks of a projection.

These are the ten columns of ``broker.codec.schema.ROW_SCHEMA`` (a test compares them). They are
written out here, because Spark's planner needs them in processes that should not load pyarrow. This
file also has the columns that exist only in Spark: Kafka's names, and the row of ``emit=ranges``.
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

# Columns of a read that no record stores: the stream's name, under our name and under Kafka's, and
# the type of timestamp, which is always 0 (creation time).
STREAM_COLUMN: Final = "stream"
ADDED_COLUMNS: Final[dict[str, str]] = {
    STREAM_COLUMN: "string",
    "topic": "string",
    "timestampType": "int",
}
READ_COLUMNS: Final[dict[str, str]] = {**ROW_COLUMNS, **ADDED_COLUMNS}

# A value of option `columns`, and its meaning: the columns of Spark's Kafka source.
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

# With the setting spark.sql.timestampType the plain name may mean a type without a time zone.
_UNAMBIGUOUS: Final = {"timestamp": "timestamp_ltz"}

# One row per slice, for jobs that fetch the records themselves.
RANGE_COLUMNS: Final[dict[str, str]] = {
    "stream": "string",
    "stream_uuid": "string",
    "partition": "int",
    "start": "bigint",
    "end": "bigint",
}

# One row per stream of the broker.
STREAMS_COLUMNS: Final[dict[str, str]] = {
    "stream": "string",
    "stream_uuid": "string",
    "partitions": "int",
}


def ddl(columns: Iterable[str], known: Mapping[str, str] = READ_COLUMNS) -> str:
    """Return Spark's DDL text of a projection, every column nullable."""
    return ", ".join(f"`{name}` {_UNAMBIGUOUS.get(known[name], known[name])}" for name in columns)


def name_list(columns: Sequence[str]) -> tuple[str, ...]:
    """Return the names as a tuple; raises InvalidRequestError for one name without a list."""
    if isinstance(columns, str):
        raise InvalidRequestError(f"columns takes a list of names: [{columns!r}]")
    return tuple(columns)


def check_projection(
    columns: Sequence[str], *, where: str, known: Mapping[str, str] = ROW_COLUMNS
) -> tuple[str, ...]:
    """Return the columns as a tuple.

    Raises:
        InvalidRequestError: a column is unknown or named twice, or there is none. The message
            begins with ``where`` and suggests the most similar name.
    """
    if not columns:
        raise InvalidRequestError(f"{where} names no column; the columns are {', '.join(known)}")
    for name in columns:
        if name not in known:
            raise InvalidRequestError(
                f"{where} names {name!r}, which is not a column{nearest(name, known)}"
            )
    if len(set(columns)) != len(columns):
        raise InvalidRequestError(f"{where} names a column twice: {', '.join(columns)}")
    return tuple(columns)


def check_types(
    fields: Iterable[tuple[str, str]], *, where: str, known: Mapping[str, str] = READ_COLUMNS
) -> tuple[str, ...]:
    """Return the names of a user's schema of ``(name, Spark's simple type)``; types must match.

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
    """Return ``"; did you mean …?"`` with the most similar name, else the list of all names."""
    names = list(known)
    lowered = {other.lower(): other for other in names}
    close = difflib.get_close_matches(name.lower(), lowered, n=1, cutoff=0.6)
    if close:
        return f"; did you mean {lowered[close[0]]!r}?"
    return f"; known: {', '.join(names)}"
