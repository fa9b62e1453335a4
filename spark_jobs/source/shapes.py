"""The rows of a slice for Spark: the stored columns, the added columns, or only the range.

pyarrow is imported when rows are shaped, not when Spark imports this module.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from typing import TYPE_CHECKING, Any, Final

from spark_jobs.source.columns import ADDED_COLUMNS, RANGE_COLUMNS, ROW_COLUMNS, STREAMS_COLUMNS

if TYPE_CHECKING:
    import pyarrow as pa

    from spark_jobs.source.partitions import SliceTask

_CREATE_TIME: Final = 0  # Kafka's TimestampType 0: the producer's time, not the log's


def stored(names: Sequence[str]) -> tuple[str, ...]:
    """Return the columns to fetch for a projection; at least one, so that rows can be counted."""
    return tuple(name for name in names if name in ROW_COLUMNS) or ("offset",)


def add_columns(
    batches: Iterable[pa.RecordBatch], names: Sequence[str], stream: str
) -> Iterator[pa.RecordBatch]:
    """Yield the batches with exactly the columns ``names``, including added columns."""
    if all(name in ROW_COLUMNS for name in names):
        yield from batches
        return
    import pyarrow as pa  # noqa: PLC0415  (see the module docstring)

    schema = arrow_schema(names)
    for batch in batches:
        arrays = [
            batch.column(batch.schema.get_field_index(name))
            if name in ROW_COLUMNS
            else pa.repeat(
                pa.scalar(_CREATE_TIME if name == "timestampType" else stream, _type_of(name)),
                batch.num_rows,
            )
            for name in names
        ]
        yield pa.RecordBatch.from_arrays(arrays, schema=schema)


def range_row(task: SliceTask, names: Sequence[str]) -> pa.RecordBatch:
    """Return the one row that names the slice's range; ``names`` gives the order of columns."""
    import pyarrow as pa  # noqa: PLC0415  (see the module docstring)

    values: dict[str, Any] = {
        "stream": task.stream,
        "stream_uuid": task.stream_uuid,
        "partition": task.piece.partition,
        "start": int(task.piece.start),
        "end": int(task.piece.end),
    }
    fields = [pa.field(name, _type_of(name)) for name in names]
    arrays = [pa.array([values[field.name]], field.type) for field in fields]
    return pa.RecordBatch.from_arrays(arrays, schema=pa.schema(fields))


def stream_rows(streams: Sequence[tuple[str, str, int]]) -> pa.RecordBatch:
    """Return a row for each stream: its name, its uuid and its number of partitions."""
    import pyarrow as pa  # noqa: PLC0415  (see the module docstring)

    columns = zip(*streams, strict=True) if streams else [()] * len(STREAMS_COLUMNS)
    fields = [pa.field(name, _type_of(name)) for name in STREAMS_COLUMNS]
    arrays = [
        pa.array(list(values), field.type) for values, field in zip(columns, fields, strict=True)
    ]
    return pa.RecordBatch.from_arrays(arrays, schema=pa.schema(fields))


def arrow_schema(columns: Sequence[str]) -> pa.Schema:
    """Return the Arrow schema that Spark requires for a projection."""
    import pyarrow as pa  # noqa: PLC0415  (see the module docstring)

    from broker.codec.schema import ROW_SCHEMA  # noqa: PLC0415

    return pa.schema(
        [
            ROW_SCHEMA.field(name) if name in ROW_COLUMNS else pa.field(name, _type_of(name))
            for name in columns
        ]
    )


def _type_of(name: str) -> pa.DataType:
    import pyarrow as pa  # noqa: PLC0415  (see the module docstring)

    spark = {**RANGE_COLUMNS, **STREAMS_COLUMNS, **ADDED_COLUMNS}[name]
    return {"string": pa.string(), "int": pa.int32(), "bigint": pa.int64()}[spark]
