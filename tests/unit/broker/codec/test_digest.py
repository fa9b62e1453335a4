"""The content digest: what it must ignore, and what it must never ignore."""

from __future__ import annotations

import pyarrow as pa
import pytest

from broker.codec.digest import STREAMS, RangeDigest, digest_of
from broker.codec.schema import FILE_SCHEMA, HEADERS_TYPE, ROW_SCHEMA
from broker.errors import SchemaMismatchError


def rows(**columns: object) -> pa.RecordBatch:
    """Return two rows, with some columns replaced."""
    values = {
        "offset": [7, 8],
        "timestamp": [1_000_000, 2_000_000],
        "key": [b"k", None],
        "value": [b"ab", b"c"],
        "headers": [[{"key": "h", "value": b"1"}], None],
        "subject": ["s", "t"],
        "leader_epoch": [1, 1],
        "reply_subject": [None, "r"],
        "correlation_id": [None, None],
        **columns,
    }
    return pa.RecordBatch.from_pydict(values, schema=FILE_SCHEMA)


CHANGES = {
    "offset": [7, 9],
    "timestamp": [1_000_000, 2_000_001],
    "key": [b"k", b""],
    "value": [b"a", b"bc"],  # the same bytes, another boundary
    "headers": [[{"key": "h", "value": b"1"}], []],
    "subject": ["st", ""],
    "leader_epoch": [1, 2],
    "reply_subject": ["r", None],
    "correlation_id": [None, ""],
}


@pytest.mark.parametrize("name", CHANGES)
def test_a_change_in_any_column_changes_the_digest(name: str) -> None:
    """Null against empty, a moved boundary, a moved null, one bit."""
    assert digest_of(rows(**{name: CHANGES[name]})) != digest_of(rows())


@pytest.mark.parametrize(
    "headers",
    [
        [None, [{"key": "h", "value": b"1"}]],
        [[{"key": "h", "value": None}], None],
        [[{"key": "h", "value": b""}], None],
        [[{"key": None, "value": b"1"}], None],
        [[None], None],
        [[{"key": "", "value": b"h1"}], None],
        [[{"key": "h", "value": b"1"}, {"key": "h", "value": b"1"}], None],
    ],
)
def test_any_change_in_headers_changes_the_digest(headers: list[object]) -> None:
    """Entries, null entries, names and values all count."""
    assert digest_of(rows(headers=headers)) != digest_of(rows())


def test_every_column_of_the_file_is_digested() -> None:
    """A column added to the file schema without a digest stream fails here."""
    assert {name.split(".")[0] for name in STREAMS} == set(FILE_SCHEMA.names)


def test_the_row_schema_and_other_orders_give_the_same_digest() -> None:
    """Columns are found by name; the partition is not content."""
    batch = rows()
    with_partition = pa.RecordBatch.from_arrays(
        [pa.array([3, 3], pa.int32()), *batch.columns], schema=ROW_SCHEMA
    )
    assert digest_of(with_partition) == digest_of(batch)
    assert digest_of(batch.select(FILE_SCHEMA.names[::-1])) == digest_of(batch)


def test_bytes_under_a_null_are_not_content() -> None:
    """Arrow allows bytes behind a null slot; two spellings of the same rows digest equally."""
    data = pa.py_buffer(b"abXXc")
    bounds = pa.py_buffer(b"".join(int(x).to_bytes(4, "little") for x in (0, 2, 4)))
    valid = pa.py_buffer(bytes([0b01]))
    dirty = pa.Array.from_buffers(pa.binary(), 2, [valid, bounds, data])
    assert dirty.to_pylist() == [b"ab", None]
    batch = rows(value=[b"ab", None])
    index = batch.schema.get_field_index("value")
    dirty_batch = pa.RecordBatch.from_arrays(
        [dirty if at == index else batch.column(at) for at in range(batch.num_columns)],
        schema=FILE_SCHEMA,
    )
    assert digest_of(dirty_batch) == digest_of(batch)


def test_no_rows_have_a_digest_of_their_own() -> None:
    """An empty range differs from any other, and empty batches add nothing."""
    digest = RangeDigest()
    empty = digest.hexdigest()
    digest.update(rows().slice(0, 0))
    assert digest.hexdigest() == empty
    digest.update(rows())
    assert digest.hexdigest() == digest_of(rows())
    assert digest.records_count == 2


def test_missing_or_wrong_columns_are_refused() -> None:
    """A digest over other columns would look right and prove nothing."""
    with pytest.raises(SchemaMismatchError):
        digest_of(rows().drop_columns(["value"]))
    large = rows().drop_columns(["value"]).append_column("value", pa.array(["ab", "c"]))
    with pytest.raises(SchemaMismatchError):
        digest_of(large)


def test_headers_type_is_the_one_digested() -> None:
    """The digest reads lists of structs; another headers type needs another digest version."""
    assert FILE_SCHEMA.field("headers").type == HEADERS_TYPE
