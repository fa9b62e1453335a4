"""Columns of one value are shared between batches, and nobody sees a difference."""

from __future__ import annotations

import pyarrow as pa
import pytest

from broker.codec.constant_columns import repeated
from broker.codec.schema import ROW_SCHEMA


@pytest.mark.parametrize("rows", [0, 1, 2, 16, 17, 1_000])
@pytest.mark.parametrize(
    ("name", "value"),
    [
        ("partition", 7),
        ("leader_epoch", 1 << 40),
        ("subject", "orders.eu.7"),
        ("subject", None),
        ("key", None),
        ("headers", None),
    ],
)
def test_a_shared_column_is_what_arrow_makes(name: str, value: int | str | None, rows: int) -> None:
    """In its values, its type, and its bytes on the wire: nothing of a longer column is sent."""
    kind = ROW_SCHEMA.field(name).type
    wanted = pa.array([value] * rows, kind)
    for _ in range(2):
        found = repeated(name, value, rows)
        assert found.equals(wanted)
        assert found.type == kind
        found.validate(full=True)
        assert sent(found) == sent(wanted)


def sent(column: pa.Array) -> int:
    """Return how many bytes of a message a column takes."""
    return int(pa.RecordBatch.from_arrays([column], ["column"]).serialize().size)
