"""Splits rows of a stream into rows of two tables: decoded rows, and rejected rows with a reason.

Together the two tables have every row once. A tombstone (a null value) decodes to null columns.
Both tables keep partition and offset, so that a check can show that no row is missing.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping
from dataclasses import dataclass, field

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from broker.codec.schema import ROW_SCHEMA
from broker.errors import SchemaMismatchError
from spark_jobs.decode.bounds import Reason
from spark_jobs.decode.outcome import Decoder
from spark_jobs.decode.spec import DecodeSpec

REJECTED_SCHEMA = pa.schema(
    [*ROW_SCHEMA, pa.field("reason", pa.string()), pa.field("detail", pa.string())]
)


@dataclass(frozen=True, slots=True, kw_only=True)
class DecodedRows:
    """The two halves of a batch of rows."""

    decoded: pa.RecordBatch
    kept: pa.Array | None  # which rows were decoded, int64; None: all of them
    rejected: pa.RecordBatch  # REJECTED_SCHEMA
    unknown_count: int = 0
    reasons: Mapping[str, int] = field(default_factory=dict)


class RowDecoder:
    """Applies a spec to batches of rows. Built in the process that uses it."""

    def __init__(self, spec: DecodeSpec) -> None:
        self.spec = spec
        self.decoder: Decoder | None = spec.decoder()
        self.schema = spec.table_schema(None if self.decoder is None else self.decoder.schema)

    def decode(self, rows: pa.RecordBatch) -> DecodedRows:
        """Split a batch that has every row column.

        Raises:
            SchemaMismatchError: the batch lacks a row column, which is a bug of the caller.
        """
        if rows.schema.names != ROW_SCHEMA.names:
            raise SchemaMismatchError(
                f"rows have columns {rows.schema.names}, not {ROW_SCHEMA.names}"
            )
        if self.decoder is None:
            kept = [rows.column(name).cast(kind) for name, kind in _typed(self.schema)]
            return DecodedRows(
                decoded=pa.RecordBatch.from_arrays(kept, schema=self.schema),
                kept=None,
                rejected=_none(),
            )
        values = rows.column("value")
        present = pc.indices_nonzero(values.is_valid()).to_numpy().astype(np.int64)
        outcome = self.decoder.decode(values.drop_null() if values.null_count else values)
        bad = {int(present[at]): reason for at, reason in outcome.rejected.items()}
        # For each row, the index of its decoded payload; -1 for a tombstone.
        payload_of = np.full(rows.num_rows, -1, np.int64)
        good = np.delete(present, list(outcome.rejected))
        payload_of[good] = np.arange(len(good))
        places = np.delete(np.arange(rows.num_rows, dtype=np.int64), list(bad))
        payload_of = payload_of[places]
        kept_rows = rows if not bad else rows.take(pa.array(places))
        columns = outcome.columns.flatten()
        if len(payload_of) != len(outcome.columns):
            picked = pa.array(payload_of, mask=payload_of < 0)
            columns = [column.take(picked) for column in columns]
        beside = [
            kept_rows.column(name).cast(self.schema.field(name).type)
            for name in self.spec.row_columns
        ]
        return DecodedRows(
            decoded=pa.RecordBatch.from_arrays([*beside, *columns], schema=self.schema),
            kept=pa.array(places) if bad else None,
            rejected=_rejected(rows, bad),
            unknown_count=outcome.unknown_count,
            reasons=Counter(reason.code for reason in bad.values()),
        )


def _typed(schema: pa.Schema) -> list[tuple[str, pa.DataType]]:
    return [(each.name, each.type) for each in schema]


def _none() -> pa.RecordBatch:
    return pa.RecordBatch.from_pylist([], schema=REJECTED_SCHEMA)


def _rejected(rows: pa.RecordBatch, bad: Mapping[int, Reason]) -> pa.RecordBatch:
    if not bad:
        return _none()
    places = sorted(bad)
    taken = rows.take(pa.array(places, pa.int64()))
    columns = [taken.column(each.name).cast(each.type) for each in ROW_SCHEMA]
    columns.append(pa.array([bad[at].code for at in places], pa.string()))
    columns.append(pa.array([bad[at].detail for at in places], pa.string()))
    return pa.RecordBatch.from_arrays(columns, schema=REJECTED_SCHEMA)
