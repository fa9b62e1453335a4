"""Files of one slice: their rows, their entries in the log, and their objects in the store."""

from __future__ import annotations

import json
from dataclasses import asdict
from datetime import UTC, date, datetime
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from broker.codec.checksum import crc32c
from broker.errors import ObjectCorruptError, SchemaMismatchError
from broker.model.secret import Secret
from simkit.tier.faulty_store import Fault, FaultyStore
from spark_jobs.tables import file_writer, schema_match
from spark_jobs.tables.file_stats import WrittenStats
from spark_jobs.tables.file_writer import FileWriter, Output, WrittenFile
from tiering.store.location import Credentials, StoreConfig
from tiering.store.object_store import ObjectStore
from tiering.store.opening import open_store

ROWS = pa.schema([("offset", pa.int64()), ("g", pa.string()), ("v", pa.binary())])


def batch(start: int, groups: list[str | None]) -> pa.RecordBatch:
    """Return rows with these groups."""
    count = len(groups)
    return pa.RecordBatch.from_pydict(
        {"offset": range(start, start + count), "g": groups, "v": [b"x"] * count}, schema=ROWS
    )


def output(folder: Path, *partition_by: str, table: pa.Schema = ROWS) -> Output:
    """Return an output into a local table."""
    fit = schema_match.match(ROWS, table, partition_columns=partition_by, evolve="none")
    return Output(
        store=StoreConfig.from_env(str(folder)),
        folder="appended/1",
        fit=fit,
        stats_columns=tuple(each.name for each in fit.columns),
        note={"app": "t"},
    )


def write(out: Output, *batches: pa.RecordBatch) -> tuple[ObjectStore, list[WrittenFile]]:
    """Write batches; return the store and the files."""
    store = open_store(out.store)
    writer = FileWriter(store, out, "0")
    for each in batches:
        writer.add(each)
    return store, writer.finish()


def rows_of(store: ObjectStore, file: WrittenFile) -> list[dict[str, Any]]:
    """Return the rows of a file."""
    found: list[dict[str, Any]] = pq.read_table(pa.BufferReader(store.get(file.path))).to_pylist()
    return found


def test_rows_keep_their_order_within_their_partition(tmp_path: Path) -> None:
    """One file per value, null and empty text are both Delta's null, the column is not inside."""
    out = output(tmp_path, "g")
    store, files = write(out, batch(0, ["a", None, "b", "a"]), batch(4, ["", "a", "b"]))

    found = {
        file.partition_values["g"]: [row["offset"] for row in rows_of(store, file)]
        for file in files
        if file.partition_values["g"] is not None
    }
    nulls = [file for file in files if file.partition_values["g"] is None]
    assert found == {"a": [0, 3, 5], "b": [2, 6]}
    assert sorted(row["offset"] for file in nulls for row in rows_of(store, file)) == [1, 4]
    assert all(list(row) == ["offset", "v"] for file in files for row in rows_of(store, file))
    assert sum(file.rows_count for file in files) == 7


def test_many_partition_values_are_many_files_not_much_memory(tmp_path: Path) -> None:
    """More values than files may be open at a time: some get more than one file."""
    groups: list[str | None] = [str(number % 100) for number in range(400)]
    store, files = write(output(tmp_path, "g"), batch(0, groups[:200]), batch(200, groups[200:]))

    offsets = sorted(row["offset"] for file in files for row in rows_of(store, file))
    assert offsets == list(range(400))
    assert {file.partition_values["g"] for file in files} == set(groups)


def test_a_large_slice_becomes_several_files(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A file is closed once it is large enough; nothing is lost between two."""
    monkeypatch.setattr(file_writer, "FILE_BYTES_MAX", 1)
    monkeypatch.setattr(file_writer, "ROW_GROUP_ROWS_MAX", 10)
    store, files = write(output(tmp_path), *(batch(start, ["a"] * 25) for start in (0, 25, 50)))

    assert len(files) == 3
    assert [row["offset"] for file in files for row in rows_of(store, file)] == list(range(75))


def test_what_the_store_has_is_looked_at(tmp_path: Path) -> None:
    """A store that confirms an object and loses or changes it is noticed."""
    out = output(tmp_path)
    store = FaultyStore(open_store(out.store))
    store.faults["get"].append(Fault.FLIPPED)
    writer = FileWriter(store, out, "0")
    writer.add(batch(0, ["a"]))
    with pytest.raises(ObjectCorruptError):
        writer.finish()


def test_a_null_where_none_may_be_is_named(tmp_path: Path) -> None:
    """The table's NOT NULL holds for values, too."""
    table = pa.schema([ROWS.field("offset"), ROWS.field("g").with_nullable(False), ROWS.field("v")])
    with pytest.raises(SchemaMismatchError) as refused:
        write(output(tmp_path, table=table), batch(0, ["a", None]))
    assert refused.value.column == "g"


def test_no_secret_travels() -> None:
    """The values in a plan have no credentials, in any printed form."""
    store = StoreConfig(
        uri="s3://bucket/x",
        credentials=Credentials(access_key_id="AKIA1", secret_access_key=Secret("hidden")),
    )
    fit = schema_match.match(ROWS, ROWS, partition_columns=(), evolve="none")
    out = Output(store=store, folder="f", fit=fit, stats_columns=(), note={})

    text = str(asdict(out.without_secrets().store)) + repr(out.without_secrets())

    assert "AKIA1" not in text
    assert "hidden" not in text


def test_statistics_are_never_tighter_than_the_values() -> None:
    """Times round outwards, long texts are cut below and left out above, NaN has no bounds."""
    schema = pa.schema(
        [
            ("n", pa.int32()), ("t", pa.timestamp("us", tz="UTC")), ("s", pa.string()),
            ("d", pa.date32()), ("f", pa.float64()), ("x", pa.float64()), ("b", pa.binary()),
            ("l", pa.list_(pa.int32())), ("none", pa.int32()),
        ]
    )  # fmt: skip
    stats = WrittenStats(schema.names)
    moment = datetime(2026, 1, 2, 3, 4, 5, 678_901, tzinfo=UTC)
    for number, text in ((7, "é" * 40), (-3, "a" * 40)):
        stats.add(
            pa.RecordBatch.from_pydict(
                {
                    "n": [number, None], "t": [moment, None], "s": [text, None],
                    "d": [date(2026, 1, 2), None], "f": [1.5, float("nan")],
                    "x": [float("inf"), 2.0], "b": [b"", None], "l": [[1], None],
                    "none": [None, None],
                },
                schema=schema,
            )
        )  # fmt: skip

    found = json.loads(stats.to_json())

    assert found["numRecords"] == 4
    assert found["minValues"] == {
        "n": -3, "t": "2026-01-02T03:04:05.678Z", "s": "a" * 32, "d": "2026-01-02", "x": 2.0,
    }  # fmt: skip
    assert found["maxValues"] == {"n": 7, "t": "2026-01-02T03:04:05.679Z", "d": "2026-01-02"}
    assert found["nullCount"] == {
        "n": 2, "t": 2, "s": 2, "d": 2, "f": 0, "x": 0, "b": 2, "none": 4,
    }  # fmt: skip


def test_a_footer_says_whose_rows_these_are(tmp_path: Path) -> None:
    """An object found alone can be placed."""
    store, (file,) = write(output(tmp_path), batch(0, ["a"]))
    body = store.get(file.path)

    metadata = pq.ParquetFile(pa.BufferReader(body)).metadata.metadata

    assert json.loads(metadata[b"headwater.append"]) == {"app": "t"}
    assert (file.size_bytes, crc32c(body)) == (len(body), crc32c(store.get(file.path)))


def test_dates_that_the_log_cannot_write_have_no_bounds(tmp_path: Path) -> None:
    """A transform may return any date of Arrow; such a date makes no partition either."""
    days = pa.array([-(2**31), 0, 2**31 - 1], pa.int32()).view(pa.date32())
    rows = pa.RecordBatch.from_arrays([days, days.view(pa.int32())], names=["d", "n"])
    stats = WrittenStats(["d"])
    stats.add(rows)
    found = json.loads(stats.to_json())
    assert (found["minValues"], found["maxValues"], found["nullCount"]) == ({}, {}, {"d": 0})

    fit = schema_match.match(rows.schema, rows.schema, partition_columns=("d",), evolve="none")
    store = StoreConfig.from_env(str(tmp_path))
    out = Output(store=store, folder="f", fit=fit, stats_columns=(), note={})
    with pytest.raises(SchemaMismatchError, match="years 1 to 9999"):
        write(out, rows)
