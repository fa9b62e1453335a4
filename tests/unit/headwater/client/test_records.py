"""Records as people write them become one Arrow batch, or an error that says what is wrong."""

from __future__ import annotations

from typing import Any

import pyarrow as pa
import pytest

from broker.codec.record_batch import prepare
from broker.errors import InvalidRequestError, SchemaMismatchError
from headwater.client.records import to_batch


def test_plain_values_are_one_column() -> None:
    """Bytes and tombstones need no other column."""
    batch = to_batch([b"a", None, b""])
    assert batch.schema.names == ["value"]
    assert batch.column(0).to_pylist() == [b"a", None, b""]


def test_text_is_encoded() -> None:
    """A str is its UTF-8, as value and as key."""
    batch = to_batch(["\N{GREEK SMALL LETTER PI}", {"key": "k", "value": "v"}])
    assert batch.to_pylist() == [
        {"key": None, "value": "\N{GREEK SMALL LETTER PI}".encode()},
        {"key": b"k", "value": b"v"},
    ]


@pytest.mark.parametrize("headers", [{"a": "1", "b": b"2"}, [("a", b"1"), ("b", b"2")]])
def test_headers_are_a_mapping_or_pairs(headers: Any) -> None:
    """Pairs keep their order and may repeat a name."""
    (row,) = to_batch([{"value": b"v", "headers": headers}]).to_pylist()
    assert row["headers"] == [{"key": "a", "value": b"1"}, {"key": "b", "value": b"2"}]


@pytest.mark.parametrize(
    "records",
    [
        pa.table({"value": pa.array([b"a", b"b"], pa.binary())}),
        pa.concat_tables([pa.table({"value": pa.array([b"a"], pa.binary())})] * 2),
        pa.RecordBatch.from_pydict({"value": pa.array([b"a", b"b"], pa.binary())}),
    ],
)
def test_arrow_data_is_taken_as_it_is(records: Any) -> None:
    """A table becomes one batch, whatever its chunks are."""
    assert to_batch(records).num_rows == 2


def test_what_comes_out_can_be_stored() -> None:
    """Every field together is a batch that the log takes."""
    record = {
        "value": b"v",
        "key": b"k",
        "headers": {"h": "x"},
        "timestamp": 5,
        "subject": "s",
        "reply_subject": "r",
        "correlation_id": "c",
    }
    assert prepare(to_batch([record]), now_us=1).first_timestamp_us == 5


@pytest.mark.parametrize("records", [[], pa.table({"value": pa.array([], pa.binary())})])
def test_nothing_is_not_a_batch(records: Any) -> None:
    """An empty send is a mistake of the caller."""
    with pytest.raises(InvalidRequestError):
        to_batch(records)


@pytest.mark.parametrize("record", [1, 1.5, ["value"], object()])
def test_what_is_no_record_is_refused(record: Any) -> None:
    """The error names the type."""
    with pytest.raises(InvalidRequestError, match=type(record).__name__):
        to_batch([record])


@pytest.mark.parametrize(
    "record",
    [
        {"offset": 1},
        {"value": 1},
        {"timestamp": "now"},
        {"timestamp": 2**70},
        {"subject": b"\xff"},
    ],
)
def test_a_field_of_a_wrong_kind_is_refused(record: dict[str, Any]) -> None:
    """Unknown fields and wrong types are told before anything is sent."""
    with pytest.raises(SchemaMismatchError):
        to_batch([record])
