"""What the JVM may read of a cut: each reason that it may not, and what it leaves to Python."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import replace
from typing import TYPE_CHECKING, Any, cast

import pytest
from pyspark.sql.types import LongType, StructField, StructType

from broker.errors import InvalidRequestError
from broker.model.ids import StreamUuid
from broker.model.offsets import Offset, OffsetRange
from spark_jobs.source import jvm_plan
from spark_jobs.source.batch_plan import StreamPlan
from spark_jobs.source.columns import ROW_COLUMNS
from spark_jobs.source.jvm_plan import KEY, Part, files_of, left_to_python, require_within
from tiering.store.location import StoreConfig
from tiering.table.table import ENCRYPTION_PROPERTY, DataFile, SparsePrefix, TableSnapshot

if TYPE_CHECKING:
    from headwater.client.table_credentials import VendedKeys

UUID = StreamUuid("0" * 32)
PARTS = (Part(0, Offset(5), Offset(20), Offset(30)), Part(1, Offset(0), Offset(0), Offset(7)))


def _file(start: int, end: int, partition: int = 0) -> DataFile:
    return DataFile(
        path=f"partition={partition}/{start}.parquet",
        size_bytes=1000,
        partition=partition,
        records_count=end - start,
        min_offset=Offset(start),
        max_offset=Offset(end - 1),
    )


SNAPSHOT = TableSnapshot(
    uri="file:///lake/default/s",
    version=3,
    stream_uuid=UUID,
    cluster="c",
    properties={},
    files=(_file(0, 5), _file(5, 12), _file(12, 25), _file(0, 9, partition=1)),
    ranges={0: OffsetRange(Offset(0), Offset(25)), 1: OffsetRange(Offset(0), Offset(9))},
)
LOCATION = StoreConfig(uri="file:///lake/default/s")


def _why(
    snapshot: TableSnapshot = SNAPSHOT,
    *,
    location: StoreConfig = LOCATION,
    columns: Sequence[str] = tuple(ROW_COLUMNS),
) -> str:
    return jvm_plan.why_python(columns, snapshot, location, PARTS, files_of(snapshot, PARTS))


def test_only_the_files_of_the_cold_ranges_are_named() -> None:
    """A file that ends where a range begins has no row of it; partition 1 is all in the log."""
    assert [file.path for file in files_of(SNAPSHOT, PARTS)] == [
        "partition=0/5.parquet",
        "partition=0/12.parquet",
    ]
    assert _why() == ""


@pytest.mark.parametrize(
    ("snapshot", "says"),
    [
        (replace(SNAPSHOT, properties={ENCRYPTION_PROPERTY: "ciphertext"}), "encrypted"),
        (replace(SNAPSHOT, sparse={0: SparsePrefix(Offset(6), 3)}), "lacks records"),
        (replace(SNAPSHOT, ranges={0: OffsetRange(Offset(6), Offset(25))}), "lacks records"),
        (replace(SNAPSHOT, files=(replace(_file(5, 20), min_offset=None),)), "no statistics"),
        (replace(SNAPSHOT, files=(replace(_file(5, 20), records_count=None),)), "no statistics"),
        (replace(SNAPSHOT, files=(replace(_file(5, 20), max_offset=None),)), "no statistics"),
    ],
    ids=["encrypted", "compacted", "expired", "no first", "no count", "no last"],
)
def test_python_reads_what_the_jvm_could_not_read_exactly(
    snapshot: TableSnapshot, says: str
) -> None:
    """The reason is for EXPLAIN."""
    assert says in _why(snapshot)


def test_python_reads_with_its_keys_and_its_own_columns(monkeypatch: pytest.MonkeyPatch) -> None:
    """Keys that the broker gives out are Python's, as are columns that no file has."""
    vended = replace(LOCATION, vended=cast("VendedKeys", object()))
    assert "gives out" in _why(location=vended)
    assert "column topic" in _why(columns=("value", "topic"))
    monkeypatch.setattr(jvm_plan, "FILES_MAX", 1)
    assert "2 files" in _why()


def _told(metadata: Mapping[str, Any]) -> StructType:
    return StructType([StructField("offset", LongType(), metadata=dict(metadata))])


def test_what_the_jvm_leaves_is_a_part_of_the_plan() -> None:
    """Nothing said means everything; anything else must be ranges within those planned."""
    plan = StreamPlan("s", UUID, {0: OffsetRange(Offset(5), Offset(30))}, None)
    assert left_to_python(_told({})) is None
    ranges = left_to_python(_told({KEY: {"partition": [0], "start": [20], "end": [30]}}))
    assert ranges == {0: OffsetRange(Offset(20), Offset(30))}
    require_within(ranges, plan)
    for wrong in ({0: OffsetRange(Offset(4), Offset(6))}, {1: OffsetRange(Offset(5), Offset(6))}):
        with pytest.raises(InvalidRequestError, match="not within"):
            require_within(wrong, plan)


@pytest.mark.parametrize(
    "given",
    [
        {},
        {"partition": [0], "start": [1], "end": []},
        {"partition": [0], "start": [2], "end": [1]},
        {"partition": [0], "start": ["x"], "end": [1]},
        [],
    ],
)
def test_malformed_ranges_are_refused(given: object) -> None:
    """Bounded and checked, although the JVM is ours."""
    with pytest.raises(InvalidRequestError, match="malformed"):
        left_to_python(_told({KEY: given}))
