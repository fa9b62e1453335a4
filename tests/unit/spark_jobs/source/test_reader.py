"""The reader of an executor, without Spark: exact schema, every offset once, typed errors."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import Any, cast

import pyarrow as pa
import pytest

from broker.codec.schema import ROW_SCHEMA
from broker.errors import (
    CompactedRangeError,
    GapError,
    OffsetOutOfRangeError,
    OverlapError,
    SchemaMismatchError,
)
from broker.model.offsets import Offset
from spark_jobs.failures import typed
from spark_jobs.source.columns import ROW_COLUMNS, check_types, ddl
from spark_jobs.source.partitions import OffsetSlice
from spark_jobs.source.reader import conform, join_small, read_slice
from spark_jobs.source.shapes import arrow_schema

TASK = OffsetSlice(0, Offset(10), Offset(20))


@dataclass
class Part:
    """A part of a read, as the client gives it."""

    batch: pa.RecordBatch
    base_offset: Offset
    end_offset: Offset


def part(start: int, end: int, offsets: Sequence[int] | None = None) -> Part:
    """Return rows of ``[start, end)``, or rows that only claim to be that."""
    numbers = list(range(start, end)) if offsets is None else list(offsets)
    batch = pa.RecordBatch.from_pydict(
        {"offset": pa.array(numbers, pa.int64()), "value": pa.array([b"v"] * len(numbers))}
    )
    return Part(batch, Offset(start), Offset(end))


class FakeClient:
    """Answers one read with prepared parts, or an error at the end of them."""

    def __init__(self, *parts: Part, error: Exception | None = None) -> None:
        self._parts = parts
        self._error = error
        self.asked: dict[str, Any] = {}
        self.closed = False

    def fetch(self, *args: Any, **options: Any) -> FakeClient:
        """Note the request."""
        self.asked = {"args": args, **options}
        return self

    def tier_status(self, stream: str) -> list[Any]:
        """Return a status without a table."""
        return []

    def __iter__(self) -> Iterator[Part]:
        yield from self._parts
        if self._error is not None:
            raise self._error

    def close(self) -> None:
        """Note it."""
        self.closed = True


def rows(client: FakeClient) -> list[int]:
    """Read TASK and return its offsets."""
    batches = read_slice(
        cast("Any", client), TASK, stream="s", stream_uuid="u", columns=("offset", "value")
    )
    return [offset for batch in batches for offset in batch.column(0).to_pylist()]


def test_a_slice_is_asked_for_by_its_bounds() -> None:
    """Stream, partition, range, projection and incarnation reach the broker; the read is closed."""
    client = FakeClient(part(10, 13), part(13, 20))

    assert rows(client) == list(range(10, 20))
    assert client.asked == {
        "args": ("s", 0, 10, 20),
        "columns": ["offset", "value"],
        "stream_uuid": "u",
    }
    assert client.closed


@pytest.mark.parametrize(
    ("parts", "kind"),
    [
        ([], GapError),
        ([part(10, 19)], GapError),
        ([part(11, 20)], GapError),
        ([part(10, 14), part(15, 20)], GapError),
        ([part(10, 14, [10, 11, 13])], CompactedRangeError),
        ([part(10, 14, [10, 11, 12, 14])], GapError),
        ([part(10, 14), part(13, 20)], OverlapError),
        ([part(9, 20)], OverlapError),
        ([part(10, 21)], OverlapError),
    ],
)
def test_a_gapped_or_doubled_answer_fails(parts: list[Part], kind: type[Exception]) -> None:
    """Spark cannot know how many rows are due, so the reader counts."""
    with pytest.raises(kind) as caught:
        rows(FakeClient(*parts))
    assert getattr(caught.value, "partition") == 0  # noqa: B009  (a fact, not an attribute)


def test_an_error_of_the_broker_keeps_its_class_in_text() -> None:
    """What Spark turns into text can be turned back."""
    client = FakeClient(part(10, 12), error=OffsetOutOfRangeError("gone", offset=12, start=15))

    with pytest.raises(OffsetOutOfRangeError) as caught:
        rows(client)

    text = "\n".join(["Traceback: OffsetOutOfRangeError: gone", *caught.value.__notes__])
    again = typed(RuntimeError(text))
    assert isinstance(again, OffsetOutOfRangeError)
    assert (again.offset, again.start) == (12, 15)
    assert client.closed


def test_a_reader_that_stops_early_closes_the_read() -> None:
    """LIMIT ends the generator in the middle."""
    client = FakeClient(*(part(10 + n, 11 + n) for n in range(10)))
    batches = read_slice(
        cast("Any", client), TASK, stream="s", stream_uuid="u", columns=("offset",)
    )
    next(batches)
    batches.close()  # type: ignore[attr-defined]

    assert client.closed


def test_every_batch_gets_the_exact_schema() -> None:
    """Order, width and nullability are ours whatever came; rows are untouched."""
    wanted = arrow_schema(("value", "offset", "timestamp"))
    batch = pa.RecordBatch.from_arrays(
        [pa.array([1], pa.int32()), pa.array([5]), pa.array([b"x"], pa.large_binary())],
        schema=pa.schema(
            [
                pa.field("offset", pa.int32(), nullable=False),
                pa.field("timestamp", pa.int64()),
                pa.field("value", pa.large_binary()),
            ]
        ),
    )

    shaped = conform(batch, wanted)

    assert shaped.schema.equals(wanted)
    assert shaped.column("value").to_pylist() == [b"x"]
    assert shaped.column("timestamp").cast(pa.int64()).to_pylist() == [5]


@pytest.mark.parametrize(
    "column", [pa.array(["x"]), pa.array([2**40]), None], ids=["text", "too big", "absent"]
)
def test_a_batch_that_does_not_fit_is_refused(column: pa.Array | None) -> None:
    """The error names the column that is missing or has a wrong type."""
    batch = pa.RecordBatch.from_pydict({} if column is None else {"partition": column})
    with pytest.raises(SchemaMismatchError, match="partition"):
        conform(batch, arrow_schema(("partition",)))


def test_small_batches_are_joined_in_order() -> None:
    """Single records become large batches; the last, short one is not forgotten."""
    batches = [part(n, n + 1).batch for n in range(20_000)]

    joined = list(join_small(batches))

    assert len(joined) == 3
    assert [v for batch in joined for v in batch.column(0).to_pylist()] == list(range(20_000))


def test_spark_columns_are_the_row_schema() -> None:
    """Spark's schema text and the Arrow schema have the same columns in the same order."""
    spellings = {
        "int32": "int",
        "int64": "bigint",
        "timestamp[us, tz=UTC]": "timestamp",
        "binary": "binary",
        "string": "string",
    }
    for field in ROW_SCHEMA:
        if field.name != "headers":
            assert ROW_COLUMNS[field.name] == spellings[str(field.type)]
    assert list(ROW_COLUMNS) == ROW_SCHEMA.names
    assert ddl(["offset", "key"]) == "`offset` bigint, `key` binary"


def test_a_schema_of_other_types_is_refused() -> None:
    """A user's schema projects; it does not cast."""
    with pytest.raises(Exception, match="cast after the read"):
        check_types([("offset", "int")], where="the schema")
