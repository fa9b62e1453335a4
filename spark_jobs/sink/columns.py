"""The columns that a write may have, and their conversion to the columns of records.

Pure. Imports pyarrow late, because Spark's planner loads this file too.

The stream's partition of a row is the column ``partition`` if it is given and not null. Else it is
the partition of its key (broker/model/partitioner.py). Rows without a key get a partition by task
and micro-batch, so that a repeated task chooses the same partition as its first attempt.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING, Any, Final

from broker.errors import SchemaMismatchError, UnknownPartitionError
from broker.model.partitioner import partition_of_key

if TYPE_CHECKING:
    import numpy as np
    import pyarrow as pa

_HEADERS: Final = "array<struct<key:string,value:binary>>"
# Name -> the accepted types, as Spark names them.
COLUMNS: Final[dict[str, tuple[str, ...]]] = {
    "value": ("binary", "string"),
    "key": ("binary", "string"),
    "headers": (_HEADERS,),
    "subject": ("string",),
    "timestamp": ("timestamp",),
    "partition": ("int", "bigint"),
    "reply_subject": ("string",),
    "correlation_id": ("string",),
}
_ROW_OVERHEAD_BYTES: Final = 64


def check_schema(fields: Sequence[tuple[str, str]]) -> None:
    """Refuse a schema that cannot become records.

    Args:
        fields: names and Spark's short names of their types.

    Raises:
        SchemaMismatchError: with the facts column, got, wanted.
    """
    for name, got in fields:
        wanted = COLUMNS.get(name)
        if wanted is None:
            raise SchemaMismatchError(
                f"a record has no column {name!r}; its columns are {', '.join(COLUMNS)}",
                column=name,
                got=got,
                wanted=list(COLUMNS),
            )
        if got not in wanted:
            raise SchemaMismatchError(
                f"column {name} has type {got}; cast it to {' or '.join(wanted)}",
                column=name,
                got=got,
                wanted=list(wanted),
            )
    names = [name for name, _ in fields]
    if "value" not in names:
        raise SchemaMismatchError(
            "a write needs the column value (a null value makes a tombstone)",
            column="value",
            got=None,
            wanted=list(COLUMNS["value"]),
        )
    if len(set(names)) != len(names):
        raise SchemaMismatchError(f"a column occurs twice in {names}", column=names[0])


def to_records(rows: pa.RecordBatch) -> pa.RecordBatch:
    """Convert a batch from Spark to producer columns, in a fixed order and with exact types."""
    import pyarrow as pa  # noqa: PLC0415

    from broker.codec.schema import PRODUCER_FIELDS, TIMESTAMP_TYPE  # noqa: PLC0415

    fields, arrays = [], []
    for name, field in PRODUCER_FIELDS.items():
        if name not in rows.schema.names:
            continue
        column = rows.column(name)
        if name == "timestamp":
            column = column.cast(TIMESTAMP_TYPE)
        fields.append(field)
        arrays.append(column.cast(field.type))
    return pa.RecordBatch.from_arrays(arrays, schema=pa.schema(fields))


def targets(rows: pa.RecordBatch, *, partitions_count: int, turn: int) -> np.ndarray[Any, Any]:
    """Return the stream's partition of each row; ``turn`` chooses it for rows without a key.

    Raises:
        UnknownPartitionError: the column ``partition`` has a number that the stream does not have.
    """
    import numpy as np  # noqa: PLC0415

    names = rows.schema.names
    found = np.full(rows.num_rows, turn % partitions_count, dtype=np.int64)
    if "key" in names and partitions_count > 1:
        for row, key in enumerate(rows.column("key").to_pylist()):
            if key is not None:
                data = key.encode() if isinstance(key, str) else key
                found[row] = partition_of_key(data, partitions_count)
    if "partition" in names:
        column = rows.column("partition")
        chosen = np.asarray(column.is_valid().to_numpy(zero_copy_only=False))
        found[chosen] = column.drop_null().to_numpy(zero_copy_only=False)
    strange = (found < 0) | (found >= partitions_count)
    if strange.any():
        number = int(found[strange][0])
        raise UnknownPartitionError(
            f"a row has partition {number}; the stream has 0 to {partitions_count - 1}",
            partition=number,
        )
    return found


def row_sizes(records: pa.RecordBatch) -> np.ndarray[Any, Any]:
    """Return the rough size of each record in bytes; equal records always have equal sizes."""
    import numpy as np  # noqa: PLC0415
    import pyarrow as pa  # noqa: PLC0415
    import pyarrow.compute as pc  # noqa: PLC0415

    total = np.full(records.num_rows, _ROW_OVERHEAD_BYTES, dtype=np.int64)
    for column in records.columns:
        if pa.types.is_binary(column.type) or pa.types.is_string(column.type):
            total += _lengths(column)
        elif pa.types.is_list(column.type) and len(column.flatten()):
            entries = column.flatten()
            each = sum(_lengths(part) for part in entries.flatten())
            parents = pc.list_parent_indices(column).to_numpy(zero_copy_only=False)
            total += np.bincount(parents, weights=each, minlength=len(total)).astype(np.int64)
    return total


def _lengths(column: pa.Array) -> np.ndarray[Any, Any]:
    import pyarrow.compute as pc  # noqa: PLC0415

    lengths = pc.fill_null(pc.binary_length(column), 0)
    found: np.ndarray[Any, Any] = lengths.to_numpy(zero_copy_only=False).astype("int64")
    return found
