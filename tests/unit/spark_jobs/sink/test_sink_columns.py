"""The columns that a write may have, and the partitions of its rows."""

from __future__ import annotations

import zlib
from datetime import UTC, datetime

import pyarrow as pa
import pytest

from broker.errors import InvalidRequestError, SchemaMismatchError, UnknownPartitionError
from spark_jobs.sink.columns import check_schema, targets, to_records
from spark_jobs.sink.options import parse


def test_every_column_of_records_is_taken() -> None:
    """Text counts as bytes for keys and values."""
    check_schema([("key", "string"), ("value", "string")])
    check_schema(
        [
            ("partition", "int"),
            ("subject", "string"),
            ("timestamp", "timestamp"),
            ("value", "binary"),
            ("headers", "array<struct<key:string,value:binary>>"),
            ("correlation_id", "string"),
        ]
    )


@pytest.mark.parametrize(
    ("fields", "column", "text"),
    [
        ([("key", "binary")], "value", "needs the column value"),
        ([("value", "bigint")], "value", "value has type bigint; cast it to binary or string"),
        ([("value", "binary"), ("offset", "bigint")], "offset", "no column 'offset'"),
        ([("value", "binary"), ("timestamp", "bigint")], "timestamp", "timestamp has type bigint"),
        (
            [("value", "binary"), ("headers", "map<string,binary>")],
            "headers",
            "headers has type map",
        ),
    ],
)
def test_other_columns_are_refused_by_name(
    fields: list[tuple[str, str]], column: str, text: str
) -> None:
    """They are refused at planning, before a task stores a row."""
    with pytest.raises(SchemaMismatchError, match=text) as caught:
        check_schema(fields)
    assert caught.value.column == column


def test_rows_become_producer_columns() -> None:
    """Exact types, the partition apart, null values kept: they are tombstones."""
    when = datetime(2026, 1, 2, tzinfo=UTC)
    rows = pa.record_batch(
        {
            "partition": pa.array([0, None], pa.int32()),
            "value": pa.array(["text", None], pa.large_string()),
            "timestamp": pa.array([when, None], pa.timestamp("us", tz="UTC")),
        }
    )
    records = to_records(rows)
    assert records.schema.names == ["timestamp", "value"]
    assert records.column("value").to_pylist() == [b"text", None]
    assert records.column("timestamp").to_pylist() == [int(when.timestamp()) * 1_000_000, None]


def test_a_row_goes_where_it_says_else_by_its_key_else_by_its_task() -> None:
    """The same key always goes to the same partition; a chosen number wins."""
    rows = pa.record_batch(
        {
            "partition": pa.array([4, None, None], pa.int64()),
            "key": pa.array([b"k", b"k", None]),
            "value": pa.array([b"", b"", b""]),
        }
    )
    found = targets(rows, partitions_count=5, turn=13)
    assert found.tolist() == [4, zlib.crc32(b"k") % 5, 3]


@pytest.mark.parametrize("number", [-1, 2, 2**40])
def test_a_partition_that_the_stream_does_not_have_is_refused(number: int) -> None:
    """It is not taken modulo the count: that would put records where no reader expects them."""
    rows = pa.record_batch({"partition": pa.array([0, number]), "value": pa.array([b"", b""])})
    with pytest.raises(UnknownPartitionError):
        targets(rows, partitions_count=2, turn=0)


def test_options_are_parsed_without_case() -> None:
    """Spark hands them over in lower case, and adds its own."""
    given = parse({"Stream": "s", "idempotencekey": "k", "owner": "x"}, streaming=False)
    assert (given.stream, given.idempotence_key, given.delivery_timeout_ms) == ("s", "k", 120_000)
    parse({"stream": "s", "checkpointLocation": "/x", "queryName": "q"}, streaming=True)


@pytest.mark.parametrize(
    ("options", "streaming", "text"),
    [
        ({}, False, "must be the name of the stream"),
        ({"stream": "../x"}, False, "must be the name of the stream"),
        ({"stream": "s", "idempotencyKey": "k"}, False, "did you mean idempotenceKey"),
        ({"stream": "s", "idempotenceKey": "k"}, True, "checkpoint"),
        ({"stream": "s", "idempotenceKey": ""}, False, "1 to 512"),
        ({"stream": "s", "streamUuid": "1"}, False, "not a uuid"),
        ({"stream": "s", "deliveryTimeoutMs": "0"}, False, "not a number"),
        ({"stream": "s", "deliveryTimeoutMs": "1e9"}, False, "not a number"),
    ],
)
def test_options_that_are_not_understood_are_refused(
    options: dict[str, str], streaming: bool, text: str
) -> None:
    """A misspelt key would silently store everything twice."""
    with pytest.raises(InvalidRequestError, match=text):
        parse(options, streaming=streaming)
