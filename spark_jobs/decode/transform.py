"""A spec as the transform that the appender's tasks run: plain text when pickled, built when used.

With ``grow`` a batch that has new JSON fields is not written at all: the fields are raised as a
typed error with their guessed types, the driver pins and adds them, and does the append again. So
growing costs nothing while nothing is new, and no record is written without a field that a later
one of the same batch made known.
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

# Names of what a transform counts.
UNKNOWN: Final = "unknown_fields"  # records with fields that have no column
REJECTED: Final = "rejected_"  # before a reason: records rejected for it

_SAMPLE_ROWS: Final = 1000  # of a batch with new fields, to guess their types from


class DecodeTransform:
    """Decodes payloads; sets aside, with a reason, what does not decode."""

    def __init__(self, spec: DecodeSpec, *, grow: bool = False) -> None:
        self._text = spec.to_text()
        self._grow = grow and spec.format == "json"

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
            SchemaMismatchError: it has new fields that should become columns. Facts: added, a
                schema in Spark's JSON.
        """
        from spark_jobs.tables.model import Transformed  # noqa: PLC0415  (kept light for workers)

        decoder = _decoder(self._text)
        made = decoder.decode(rows)
        if self._grow and made.unknown_count:
            _raise_new_fields(decoder, rows)
        return Transformed(
            rows=made.decoded,
            kept=made.kept,
            rejected=made.rejected if made.rejected.num_rows else None,
            counts={UNKNOWN: made.unknown_count, **_named(made.reasons)},
        )


def added_fields(error: HeadwaterError | None) -> pa.Schema | None:
    """Return the fields that a failed append asks for, None when it failed for another cause."""
    if not isinstance(error, SchemaMismatchError) or "added" not in error.facts:
        return None
    return types.from_json(str(error.facts["added"]))


def _named(reasons: Mapping[str, int]) -> dict[str, int]:
    return {f"{REJECTED}{reason}": count for reason, count in reasons.items()}


@lru_cache(maxsize=8)
def _decoder(text: str) -> RowDecoder:
    """Build a decoder once per process and spec; it has no state between batches."""
    return RowDecoder(DecodeSpec.from_text(text))


def _raise_new_fields(decoder: RowDecoder, rows: pa.RecordBatch) -> None:
    from spark_jobs.decode import json_inference  # noqa: PLC0415  (only when a field is new)

    known = decoder.decoder
    assert known is not None, "raw knows no unknown fields"
    bodies = json_inference.objects(rows.column("value").to_pylist())
    fresh = [body for body in bodies if any(known.schema.get_field_index(n) < 0 for n in body)]
    added = json_inference.new_fields(fresh[:_SAMPLE_ROWS], known.schema, decoder.spec.bounds)
    if len(added) == 0:
        return  # only inside structs, only nulls, or no room left: left out and counted
    text = types.to_json(added)
    names = ", ".join(added.names)
    raise annotate(SchemaMismatchError(f"records have new fields: {names}", added=text))
