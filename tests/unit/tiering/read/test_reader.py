"""Rows come complete and in order from rewritten files, with and without statistics."""

from __future__ import annotations

import io
from dataclasses import replace
from pathlib import Path

import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from broker.codec.checksum import crc32c
from broker.codec.schema import FILE_SCHEMA, ROW_SCHEMA
from broker.errors import GapError, ObjectCorruptError, OffsetOutOfRangeError, OverlapError
from broker.model.offsets import Offset, OffsetRange
from simkit.tier.faulty_store import FaultyStore
from simkit.tier.lab import TierLab
from tiering.read.parquet_source import ParquetObject
from tiering.read.reader import read_rows
from tiering.read.times import first_reaching
from tiering.store import arrow_file
from tiering.table.table import DataFile, TableSnapshot


class Rewritten:
    """Sixty records, whose files other software may rewrite."""

    def __init__(self, root: Path) -> None:
        self.lab = TierLab(root)
        self.lab.source.fill(3, 20)
        self.snapshot = self.lab.ship_all()
        self.truth = self.lab.source.truth()

    def file(self, *offsets: int) -> DataFile:
        """Write rows as a foreign file, in this order; its bounds are those of its rows."""
        rows = self.truth.take(pa.array(offsets)).select(FILE_SCHEMA.names)
        sink = io.BytesIO()
        pq.write_table(rows, sink)
        body = sink.getvalue()
        path = f"partition=0/{crc32c(body)}.parquet"
        self.lab.table.store.put_if_absent(path, body, crc32c=crc32c(body))
        stamps = rows.column("timestamp").cast(pa.int64()).to_pylist()
        return DataFile(
            path=path, size_bytes=len(body), partition=0, records_count=len(offsets),
            min_offset=Offset(min(offsets)), max_offset=Offset(max(offsets)),
            max_timestamp_us=max(stamps), min_timestamp_us=min(stamps),
        )  # fmt: skip

    def made_of(self, *files: DataFile) -> TableSnapshot:
        """Return the version with other files."""
        return replace(self.snapshot, files=files)

    def read(self, snapshot: TableSnapshot, start: int = 0, end: int = 60) -> pa.Table:
        """Read a range."""
        wanted = OffsetRange(Offset(start), Offset(end))
        batches = read_rows(snapshot, self.lab.table.store, 0, wanted)
        return pa.Table.from_batches(batches, ROW_SCHEMA)


@pytest.fixture
def table(tmp_path: Path) -> Rewritten:
    """Our own files."""
    return Rewritten(tmp_path / "lake")


RANGES = [(0, 60), (0, 1), (59, 60), (19, 21), (20, 40), (39, 40), (40, 41), (7, 7)]


@pytest.mark.parametrize("known", ["all", "none", "first", "last"])
def test_a_range_is_read_whatever_is_known_of_the_files(table: Rewritten, known: str) -> None:
    """Statistics save requests; without them files are opened."""
    bare = [
        replace(one, min_offset=None, max_offset=None, records_count=None)
        for one in table.snapshot.files
    ]
    files = list(table.snapshot.files)
    chosen = {"all": (), "none": (0, 1, 2), "first": (0,), "last": (2,)}[known]
    for at in chosen:
        files[at] = bare[at]
    for start, end in RANGES:
        assert table.read(table.made_of(*files), start, end).equals(
            table.truth.slice(start, end - start)
        )


def test_rows_of_interleaved_and_unsorted_files_come_in_order(table: Rewritten) -> None:
    """As after a Z-ORDER by others."""
    evens, odds = table.file(*range(0, 40, 2)), table.file(*range(39, 0, -2))
    tail = table.file(*range(59, 39, -1))
    for start, end in RANGES:
        found = table.read(table.made_of(tail, odds, evens), start, end)
        assert found.equals(table.truth.slice(start, end - start))


@pytest.mark.parametrize(("start", "end"), [(-1, 5), (0, 61), (30, 20), (61, 61)])
def test_a_range_that_the_version_does_not_hold_is_refused(
    table: Rewritten, start: int, end: int
) -> None:
    """It is refused by its bounds, before a file is opened."""
    wanted = OffsetRange.__new__(OffsetRange)
    object.__setattr__(wanted, "start", start)
    object.__setattr__(wanted, "end", end)
    with pytest.raises(OffsetOutOfRangeError):
        next(iter(read_rows(table.snapshot, table.lab.table.store, 0, wanted)))


def test_a_small_file_costs_one_request(table: Rewritten, monkeypatch: pytest.MonkeyPatch) -> None:
    """A small file is fetched whole and its size compared; a large one costs a HEAD request."""
    store = FaultyStore(table.lab.table.store)
    file = table.file(*range(60))
    ParquetObject(store, file)
    assert dict(store.calls) == {"get": 1}
    for bytes_max in (1 << 20, 1):  # fetched whole, and in ranges
        monkeypatch.setattr(arrow_file, "WHOLE_BYTES_MAX", bytes_max)
        with pytest.raises(ObjectCorruptError, match="the table's log says 7"):
            ParquetObject(store, replace(file, size_bytes=7))


def test_missing_and_doubled_rows_are_named(table: Rewritten) -> None:
    """Rows are missing at the front, within, at the end, or doubled in one file or two."""
    whole = list(range(60))
    for gone in (0, 30, 59):
        with pytest.raises(GapError) as caught:
            table.read(table.made_of(table.file(*[one for one in whole if one != gone])))
        assert (caught.value.start, caught.value.end) == (gone, gone + 1)
    for files in ([[*whole, 30]], [whole, [30]], [whole[:31], whole[30:]]):
        with pytest.raises(OverlapError):
            table.read(table.made_of(*(table.file(*one) for one in files)))


def test_a_time_in_interleaved_files_has_its_smallest_offset(table: Rewritten) -> None:
    """The answer need not be in the last file."""
    stamps = table.truth.column("timestamp").cast(pa.int64()).to_pylist()
    files = [table.file(*range(at, 60, 3)) for at in range(3)]
    bare = [replace(one, min_offset=None, max_offset=None) for one in files]
    for snapshot in (table.made_of(*files), table.made_of(*bare), table.made_of(*bare[::-1])):
        for stamp in stamps[::7]:
            wanted = OffsetRange(Offset(5), Offset(55))
            found = first_reaching(snapshot, table.lab.table.store, 0, wanted, stamp)
            assert found == next((n for n in range(5, 55) if stamps[n] >= stamp), None)
