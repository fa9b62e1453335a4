"""What the JVM may read of a cut, and what it tells Python of a scan, both as metadata of a schema.

A table of the catalog reads the files of a cut by Spark's own Parquet reader. Which files and which
offsets these are is decided here, after the table's version was proved; the JVM gets numbers and
paths. It tells Python whether it reads them, and which partitions and offsets the statement's
filters let through; what is left to Python is decided here, too. Spark's interface for Python
sources has one way for values in each direction: the schema. So both are metadata of its first
field.

The JVM gets no files if it could not read each row of the cut exactly. Python reads the cut then,
and the plan says why, for EXPLAIN.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from operator import attrgetter
from typing import TYPE_CHECKING, Any, Final

from pyspark.sql.types import (
    ArrayType,
    BinaryType,
    DataType,
    IntegerType,
    LongType,
    StringType,
    StructField,
    StructType,
    TimestampType,
)

from broker.errors import InvalidRequestError
from broker.model.cut import Cut
from broker.model.offsets import Offset, OffsetRange
from spark_jobs.source.batch_plan import StreamPlan
from spark_jobs.source.columns import READ_COLUMNS, ROW_COLUMNS
from spark_jobs.source.partitions import table_path

if TYPE_CHECKING:
    from headwater.client import Client
    from tiering.store.location import StoreConfig
    from tiering.table.table import DataFile, TableSnapshot

KEY: Final = "headwater"  # of the metadata, in both directions
FILES_MAX: Final = 100_000  # ColdPlan.java has the same limit
_TIME_MIN_US: Final = -(2**63)
_TIME_MAX_US: Final = 2**63 - 1

_HEADER: Final = StructType([StructField("key", StringType()), StructField("value", BinaryType())])
_TYPES: Final[Mapping[str, DataType]] = {
    "int": IntegerType(),
    "bigint": LongType(),
    "timestamp": TimestampType(),
    "binary": BinaryType(),
    "string": StringType(),
    "array<struct<key:string,value:binary>>": ArrayType(_HEADER),
}


@dataclass(frozen=True, slots=True)
class Part:
    """The range of one partition: ``[start, seam)`` is in files, ``[seam, end)`` in the log."""

    partition: int
    start: Offset
    seam: Offset
    end: Offset

    @property
    def cold(self) -> OffsetRange:
        """The offsets that are in files."""
        return OffsetRange(self.start, self.seam)


@dataclass(frozen=True, slots=True)
class ScanBounds:
    """What the JVM tells of one scan. Bounds are the least and the greatest."""

    reads_files: bool  # those of the plan
    partitions: tuple[int, int]
    offsets: tuple[int, int]

    def left_of(self, part: Part) -> OffsetRange:
        """Return the offsets of a partition that are left to Python; perhaps none."""
        start = part.seam if self.reads_files else part.start
        if not self.partitions[0] <= part.partition <= self.partitions[1]:
            return OffsetRange(start, start)
        first = min(max(start, self.offsets[0]), part.end)
        end = max(first, min(part.end, self.offsets[1] + 1))
        return OffsetRange(Offset(first), Offset(end))


def schema_with_plan(
    columns: Sequence[str], cut: Cut, plan: StreamPlan, client: Client
) -> StructType:
    """Return the schema of a planned read, with what the JVM may read of it. Blocks.

    Args:
        columns: the columns of the read.
        cut: the cut, whose table version was proved.
        plan: the read's ranges.
        client: a client of the broker, which may give out keys for the table.
    """
    fields = [StructField(name, _TYPES[READ_COLUMNS[name]]) for name in columns]
    if plan.left is None:  # else there is no table, and a slice is read as it was counted
        fields[0].metadata = {KEY: _plan(columns, cut, plan, client)}
    return StructType(fields)


def told_of(schema: StructType) -> ScanBounds | None:
    """Return what the JVM tells with the schema of a scan; None if it tells nothing.

    Raises:
        InvalidRequestError: the metadata are anything else.
    """
    given = schema.fields[0].metadata if schema.fields else {}
    if KEY not in given:
        return None
    try:
        least, greatest = map(int, given[KEY]["partition"])
        first, last = map(int, given[KEY]["offset"])
        return ScanBounds(given[KEY]["files"] is True, (least, greatest), (first, last))
    except (KeyError, TypeError, ValueError) as cause:
        raise InvalidRequestError(f"the JVM told malformed bounds of a scan: {cause}") from cause


def left_to_python(plan: StreamPlan, cut: Cut | None, told: ScanBounds) -> StreamPlan:
    """Return the part of a plan that Python reads. Pure."""
    if plan.left is not None:
        kept = [
            (piece, counted)
            for piece, counted in plan.left
            if told.left_of(Part(piece.partition, piece.start, piece.start, piece.end))
        ]
        return replace(plan, left=tuple(kept))
    ranges = {part.partition: told.left_of(part) for part in parts_of(plan, cut)}
    return replace(plan, ranges=ranges)


def parts_of(plan: StreamPlan, cut: Cut | None) -> list[Part]:
    """Return the ranges of a plan, divided where the cut's files end."""
    cold = {} if cut is None else {part.partition: part.cold_end for part in cut.partitions}
    found = []
    for number, span in sorted(plan.ranges.items()):
        seam = min(max(span.start, cold.get(number, span.start)), span.end)
        found.append(Part(number, span.start, seam, span.end))
    return found


def _plan(columns: Sequence[str], cut: Cut, plan: StreamPlan, client: Client) -> dict[str, Any]:
    parts = [part for part in parts_of(plan, cut) if part.cold]
    if not parts:
        return {"why": ""}
    from headwater.reads.table_access import table_location  # noqa: PLC0415  (loads delta-rs)
    from tiering.read.lake import kept_table  # noqa: PLC0415

    location = table_location(client, cut)
    snapshot = kept_table(location).snapshot(cut.table_version)
    files = files_of(snapshot, parts)
    why = why_python(columns, snapshot, location, parts, files)
    if why:
        return {"why": why}
    names = ("path", "size_bytes", "partition", "records_count", "min_offset", "end_offset")
    return {
        "why": "",
        "lease": plan.lease_id or "",
        "root": table_path(snapshot.uri),
        "cold": _columns(parts, "partition", "start", "seam"),
        "files": _columns(files, *names)
        | {
            "min_us": [_or(file.min_timestamp_us, _TIME_MIN_US) for file in files],
            "max_us": [_or(file.max_timestamp_us, _TIME_MAX_US) for file in files],
        },
    }


def files_of(snapshot: TableSnapshot, parts: Iterable[Part]) -> list[DataFile]:
    """Return the files that may have rows of the cold ranges, in the order of the version."""
    cold = {part.partition: part.cold for part in parts if part.cold}
    return [
        file
        for file in snapshot.files
        if file.partition in cold
        and file.records_count != 0
        and file.may_have(cold[file.partition])
    ]


def why_python(
    columns: Sequence[str],
    snapshot: TableSnapshot,
    location: StoreConfig,
    parts: Sequence[Part],
    files: Sequence[DataFile],
) -> str:
    """Return why the JVM cannot read these files exactly; empty if it can."""
    if snapshot.is_encrypted:
        return "the table is encrypted, and Spark has no keys"
    if location.vended is not None:
        return "the broker gives out the table's keys, and Spark's file system has none"
    if any(part.start < snapshot.whole_start(part.partition) for part in parts):
        return "the table lacks records of the range: key compaction or retention removed them"
    if any(None in (file.records_count, file.min_offset, file.max_offset) for file in files):
        return "a file has no statistics"
    if len(files) > FILES_MAX:
        return f"{len(files)} files are more than a plan for the JVM may have"
    if "offset" not in columns:
        return "the read has no column offset, at which files are cut"
    added = [name for name in columns if name not in ROW_COLUMNS]
    return f"no file has column {added[0]}" if added else ""


def _columns(rows: Iterable[object], *names: str) -> dict[str, list[Any]]:
    kept = list(rows)
    return {name: list(map(attrgetter(name), kept)) for name in names}


def _or(value: int | None, default: int) -> int:
    return default if value is None else value
