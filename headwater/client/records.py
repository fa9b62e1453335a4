"""Converts records from Python values to one Arrow batch of producer columns."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from typing import Any, Final, TypeAlias

import pyarrow as pa

from broker.codec.schema import HEADERS_TYPE, PRODUCER_FIELDS
from broker.errors import InvalidRequestError, RecordTooLargeError, SchemaMismatchError

RecordLike: TypeAlias = bytes | str | Mapping[str, object] | None
Records: TypeAlias = pa.RecordBatch | pa.Table | Sequence[RecordLike]
BATCH_BYTES_MAX: Final = 2**31 - 64 * 1024  # Flight sends less than 2 GiB, padding included


def to_batch(records: Records) -> pa.RecordBatch:
    """Return the records as one batch of at least one row.

    A sequence holds values (``bytes``; ``str`` is encoded as UTF-8; None is a tombstone) or
    mappings with any of ``value, key, headers, timestamp, subject, reply_subject,
    correlation_id``; headers are a mapping or (name, bytes) pairs, timestamps are µs UTC.

    Raises:
        InvalidRequestError: there is no record, or a value is not a record.
        SchemaMismatchError: a column or field is not one of a record, or has a wrong type.
    """
    if isinstance(records, pa.Table):
        records = _one_batch(records)
    if not isinstance(records, pa.RecordBatch):
        records = _from_rows(_rows(records))
    if not records.num_rows:
        raise InvalidRequestError("there is no record to send")
    return records


def sendable(records: Records) -> pa.RecordBatch:
    """Return the records as one batch that is not too large for Flight.

    Raises:
        RecordTooLargeError: it is too large.
        InvalidRequestError, SchemaMismatchError: as :func:`to_batch`.
    """
    batch = to_batch(records)
    if batch.nbytes > BATCH_BYTES_MAX:
        raise RecordTooLargeError(
            f"a batch of {batch.nbytes} bytes exceeds {BATCH_BYTES_MAX} bytes, the most that one "
            "message of Arrow Flight holds: send its records in several batches",
            size_bytes=batch.nbytes,
            limit_bytes=BATCH_BYTES_MAX,
        )
    return batch


def _rows(records: Iterable[RecordLike]) -> list[RecordLike]:
    """Return a list of records; refuse one record, whose parts would be taken as records."""
    one = isinstance(records, bytes | bytearray | str | Mapping)
    if one or not isinstance(records, Iterable):
        raise InvalidRequestError(
            f"send takes a list of records, not {type(records).__name__}: send([record]) sends one"
        )
    return list(records)


def _one_batch(table: pa.Table) -> pa.RecordBatch:
    batches = table.combine_chunks().to_batches()
    if len(batches) > 1:
        raise InvalidRequestError("the table is too large for one batch: send it in parts")
    return batches[0] if batches else pa.RecordBatch.from_pylist([], schema=table.schema)


def _from_rows(rows: list[RecordLike]) -> pa.RecordBatch:
    if all(row is None or isinstance(row, bytes) for row in rows):
        return pa.RecordBatch.from_arrays([pa.array(rows, pa.binary())], names=["value"])
    fields = [_fields(row) for row in rows]
    names = [name for name in PRODUCER_FIELDS if any(name in row for row in fields)] or ["value"]
    schema = pa.schema([PRODUCER_FIELDS[name] for name in names])
    try:
        return pa.RecordBatch.from_arrays(
            [
                pa.array([row.get(name) for row in fields], schema.field(name).type)
                for name in names
            ],
            schema=schema,
        )
    except (pa.ArrowInvalid, pa.ArrowTypeError, TypeError, OverflowError) as cause:
        raise SchemaMismatchError(f"a field of a record has a wrong type: {cause}") from cause


def _fields(row: RecordLike) -> dict[str, Any]:
    if isinstance(row, Mapping):
        unknown = sorted(str(name) for name in row if name not in PRODUCER_FIELDS)
        if unknown:
            raise SchemaMismatchError(
                f"a record has no field {unknown[0]!r}; its fields are "
                f"{', '.join(PRODUCER_FIELDS)}",
                column=unknown[0],
            )
        fields = {name: _bytes(value) for name, value in row.items() if name in ("key", "value")}
        return {**row, **fields, **_headers(row)}
    if row is None or isinstance(row, bytes | str):
        return {"value": _bytes(row)}
    raise InvalidRequestError(
        f"a record is bytes, str, None or a mapping, not {type(row).__name__}"
    )


def _bytes(value: Any) -> Any:
    return value.encode() if isinstance(value, str) else value


def _headers(row: Mapping[str, Any]) -> dict[str, Any]:
    headers = row.get("headers")
    if headers is None:
        return {}
    pairs = headers.items() if isinstance(headers, Mapping) else headers
    entries = [{"key": name, "value": _bytes(value)} for name, value in pairs]
    return {"headers": pa.scalar(entries, HEADERS_TYPE).as_py()}
