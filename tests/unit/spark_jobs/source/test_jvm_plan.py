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
from spark_jobs.source.jvm_plan import KEY, Part, ScanBounds, files_of, left_to_python, told_of
from spark_jobs.source.partitions import LeftRecords, OffsetSlice
from tiering.store.location import StoreConfig
from tiering.table.table import ENCRYPTION_PROPERTY, DataFile, SparsePrefix, TableSnapshot

if TYPE_CHECKING:
    from headwater.client.table_credentials import VendedKeys

UUID = StreamUuid("0" * 32)
PARTS = (Part(0, Offset(5), Offset(20), Offset(30)), Part(2, Offset(0), Offset(3), Offset(7)))


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
    """A file that ends where a range begins has no row of it; partition 1 is not read."""
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
    assert "column topic" in _why(columns=("offset", "topic"))
    assert "no column offset" in _why(columns=("value",))
    monkeypatch.setattr(jvm_plan, "FILES_MAX", 1)
    assert "2 files" in _why()


def _schema(metadata: Mapping[str, Any]) -> StructType:
    return StructType([StructField("offset", LongType(), metadata=dict(metadata))])


def _left(told: ScanBounds, plan: StreamPlan) -> dict[int, tuple[int, int]]:
    ranges = left_to_python(plan, None, told).ranges
    return {number: (span.start, span.end) for number, span in ranges.items() if span}


def test_python_reads_what_the_filters_let_through() -> None:
    """Bounds are inclusive and may lie anywhere; a filter that nothing passes leaves nothing."""
    plan = StreamPlan(
        "s",
        UUID,
        {0: OffsetRange(Offset(5), Offset(30)), 1: OffsetRange(Offset(0), Offset(7))},
        None,
    )
    every = (-(2**63), 2**63 - 1)
    assert told_of(_schema({})) is None
    told = told_of(_schema({KEY: {"files": False, "partition": [0, 0], "offset": [7, 9]}}))
    assert told == ScanBounds(reads_files=False, partitions=(0, 0), offsets=(7, 9))
    assert _left(told, plan) == {0: (7, 10)}
    assert _left(ScanBounds(False, every, every), plan) == {0: (5, 30), 1: (0, 7)}
    assert _left(ScanBounds(False, every, (-4, 6)), plan) == {0: (5, 7), 1: (0, 7)}
    assert _left(ScanBounds(False, every, (28, 90)), plan) == {0: (28, 30)}
    for nothing in (
        ScanBounds(False, (2, 9), every),
        ScanBounds(False, every, (9, 7)),
        ScanBounds(False, every, (50, 60)),
    ):
        assert _left(nothing, plan) == {}


def test_the_files_that_the_jvm_reads_are_not_read_twice() -> None:
    """The log begins where the files of the cut end, whatever a filter says."""
    (part, _) = PARTS
    every = (-(2**63), 2**63 - 1)
    assert ScanBounds(True, every, every).left_of(part) == OffsetRange(Offset(20), Offset(30))
    assert ScanBounds(True, every, (0, 24)).left_of(part) == OffsetRange(Offset(20), Offset(25))
    assert not ScanBounds(True, every, (0, 19)).left_of(part)


def test_what_key_compaction_left_is_read_by_whole_slices() -> None:
    """Such a slice is read as it was counted; one without an offset that passes is left out."""
    slices = tuple(OffsetSlice(0, Offset(start), Offset(start + 10)) for start in (0, 10, 20))
    plan = StreamPlan(
        "s",
        UUID,
        {0: OffsetRange(Offset(0), Offset(30))},
        None,
        left=tuple((piece, LeftRecords(3, 0)) for piece in slices),
    )
    kept = left_to_python(plan, None, ScanBounds(False, (0, 0), (12, 20))).left
    assert kept is not None
    assert [piece for piece, _ in kept] == [*slices[1:]]


@pytest.mark.parametrize(
    "given",
    [
        {},
        {"files": True, "partition": [0], "offset": [0, 1]},
        {"files": True, "partition": [0, 1], "offset": ["x", 1]},
        [],
    ],
)
def test_malformed_bounds_are_refused(given: object) -> None:
    """They are checked, although the JVM is ours."""
    with pytest.raises(InvalidRequestError, match="malformed"):
        told_of(_schema({KEY: given}))
