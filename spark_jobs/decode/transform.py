"""The transform that the appender's tasks run: it decodes rows by a spec.

A transform is pickled as the spec's text; each process builds its own decoder. With ``grow`` a
batch with new JSON fields is not written at all: the task raises a typed error with the fields and
their inferred types. The driver pins and adds them, and repeats the append. So growing costs
nothing while no field is new. And no record is written without a new field that only a later record
of the same batch showed.
"""

from __future__ import annotations

from collections.abc import Mapping
from functools import lru_cache
from typing import TYPE_CHECKING, Final

import pyarrow as pa

from broker.codec.schema import ROW_SCHEMA
from broker.errors import HeadwaterError, SchemaMismatchError
from spark_jobs.decode import types
from spark_jobs.decode.rows import REJECTED_SCHEMA, RowDecoder
from spark_jobs.decode.spec import DecodeSpec
from spark_jobs.failures import annotate

if TYPE_CHECKING:
    from spark_jobs.tables.model import Transformed

# Names of a transform's counters.
UNKNOWN: Final = "unknown_fields"  # records with fields that have no column
REJECTED: Final = "rejected_"  # followed by a reason: records that were rejected for it

_SAMPLE_ROWS: Final = 1000  # records with new fields, from which the types are inferred


class DecodeTransform:
    """Decodes payloads; records that cannot be decoded are rejected with a reason."""

    def __init__(self, spec: DecodeSpec, *, grow: bool = False) -> None:
        self._text = spec.to_text()
        self._grow = grow and spec.format == "json"

    @property
    def identity(self) -> str:
        """The spec as text: it decides which rows are rejected. Growing does not."""
        return self._text

    @property
    def output_schema(self) -> pa.Schema:
        """The columns of the decoded table."""
        return _decoder(self._text).schema

    @property
    def rejected_schema(self) -> pa.Schema:
        """The row columns, the reason and its detail."""
        return REJECTED_SCHEMA

    @property
    def columns(self) -> tuple[str, ...]:
        """Every row column: a rejected record is kept whole."""
        return tuple(ROW_SCHEMA.names)

    def __call__(self, rows: pa.RecordBatch) -> Transformed:
        """Decode a batch.

        Raises:
            SchemaMismatchError: records have new fields that become columns. The fact ``added``
                has them as a schema in Spark's JSON.
        """
        from spark_jobs.tables.model import Transformed  # noqa: PLC0415  (kept light for workers)

        decoder = _decoder(self._text)
        made = decoder.decode(rows)
        if self._grow and made.unknown_count:
            _raise_new_fields(decoder, rows if made.kept is None else rows.take(made.kept))
        return Transformed(
            rows=made.decoded,
            kept=made.kept,
            rejected=made.rejected if made.rejected.num_rows else None,
            counts={UNKNOWN: made.unknown_count, **_named(made.reasons)},
        )


def added_fields(error: HeadwaterError | None) -> pa.Schema | None:
    """Return the new fields that made an append fail; None if it failed for another cause."""
    if not isinstance(error, SchemaMismatchError) or "added" not in error.facts:
        return None
    return types.from_json(str(error.facts["added"]))


def _named(reasons: Mapping[str, int]) -> dict[str, int]:
    return {f"{REJECTED}{reason}": count for reason, count in reasons.items()}


@lru_cache(maxsize=8)
def _decoder(text: str) -> RowDecoder:
    """Build a decoder once per process and spec; a decoder keeps no state between batches."""
    return RowDecoder(DecodeSpec.from_text(text))


def _raise_new_fields(decoder: RowDecoder, rows: pa.RecordBatch) -> None:
    """Raise for new fields of rows that decode; a rejected record adds no column."""
    from spark_jobs.decode import json_inference  # noqa: PLC0415  (only when a field is new)

    known = decoder.decoder
    assert known is not None, "the format raw has no unknown fields"
    bodies = json_inference.objects(rows.column("value").to_pylist())
    fresh = [body for body in bodies if any(types.position(known.schema, n) < 0 for n in body)]
    added = json_inference.new_fields(fresh[:_SAMPLE_ROWS], known.schema, decoder.spec.bounds)
    if len(added) == 0:
        return  # the fields are inside structs, only null, or too many: dropped and counted
    text = types.to_json(added)
    names = ", ".join(added.names)
    raise annotate(SchemaMismatchError(f"records have new fields: {names}", added=text))
