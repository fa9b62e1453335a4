"""The Arrow schemas: of a batch body on disk, of a producer's input, of a row as readers see it.

Columns are named only here. The Delta table of a stream and every read have :data:`ROW_SCHEMA`. A
body holds a subset of :data:`OPTIONAL_COLUMNS`; the header's column mask says which columns.
"""

from __future__ import annotations

from typing import Final

import pyarrow as pa

HEADERS_TYPE: Final = pa.list_(
    pa.struct([pa.field("key", pa.string()), pa.field("value", pa.binary())])
)
TIMESTAMP_TYPE: Final = pa.timestamp("us", tz="UTC")

# Bit of the header's column mask -> field of the body. Frozen: a bit never changes its meaning.
# `timestamp` (and `offset_delta` in a sparse batch) are always there and have no bit.
OPTIONAL_COLUMNS: Final[tuple[tuple[int, pa.Field], ...]] = (
    (1 << 0, pa.field("key", pa.binary())),
    (1 << 1, pa.field("value", pa.binary())),
    (1 << 2, pa.field("headers", HEADERS_TYPE)),
    (1 << 3, pa.field("subject", pa.string())),
    (1 << 4, pa.field("reply_subject", pa.string())),
    (1 << 5, pa.field("correlation_id", pa.string())),
)
COLUMNS_MASK: Final = sum(bit for bit, _ in OPTIONAL_COLUMNS)
TIMESTAMP_FIELD: Final = pa.field("timestamp", pa.int64(), nullable=False)  # µs UTC
OFFSET_DELTA_FIELD: Final = pa.field("offset_delta", pa.uint32(), nullable=False)

# A producer may send any subset of these in any order. The broker stamps an absent timestamp.
PRODUCER_FIELDS: Final[dict[str, pa.Field]] = {
    "timestamp": pa.field("timestamp", pa.int64()),
    **{field.name: field for _, field in OPTIONAL_COLUMNS},
}

# One row of full history, in Delta, in Spark, in Flight replies. `partition` is a Delta partition
# column, so it is not inside the Parquet files.
ROW_SCHEMA: Final = pa.schema(
    [
        pa.field("partition", pa.int32()),
        pa.field("offset", pa.int64()),
        pa.field("timestamp", TIMESTAMP_TYPE),
        pa.field("key", pa.binary()),
        pa.field("value", pa.binary()),
        pa.field("headers", HEADERS_TYPE),
        pa.field("subject", pa.string()),
        pa.field("leader_epoch", pa.int64()),
        pa.field("reply_subject", pa.string()),
        pa.field("correlation_id", pa.string()),
    ]
)
FILE_SCHEMA: Final = pa.schema([field for field in ROW_SCHEMA if field.name != "partition"])


def body_schema(columns: int, *, sparse: bool) -> pa.Schema:
    """Return the schema of a version-1 body with this column mask."""
    cached = _BODY_SCHEMAS.get((columns, sparse))
    if cached is None:
        assert columns & ~COLUMNS_MASK == 0, f"unknown column bits {columns:#x}"
        fields = [TIMESTAMP_FIELD, *(field for bit, field in OPTIONAL_COLUMNS if columns & bit)]
        if sparse:
            fields.append(OFFSET_DELTA_FIELD)
        cached = _BODY_SCHEMAS[(columns, sparse)] = pa.schema(fields)
    return cached


_BODY_SCHEMAS: dict[tuple[int, bool], pa.Schema] = {}  # at most 128 entries
