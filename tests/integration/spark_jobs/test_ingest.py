"""Ingest: a stream's records in a decoded table, each once, also over crashes of the job."""

from __future__ import annotations

import io
import json
import shutil
import uuid
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pyarrow as pa
import pytest
from deltalake import DeltaTable
from pyspark.errors import StreamingQueryException

from broker.errors import GapError, HeadwaterError, SchemaMismatchError, StreamRecreatedError
from broker.model.offsets import Offset
from headwater.client import Client
from simkit.tier.lake_broker import Served
from spark_jobs.jobs import ingest
from spark_jobs.jobs.job import Report, Stop
from spark_jobs.tables import Appender
from tiering.store.location import StoreConfig

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

pytestmark = [pytest.mark.spark, pytest.mark.integration]

Ingest = Callable[..., dict[str, Any]]
SCHEMA = "n bigint, name string"


def publish(served: Served, *values: bytes | None, partition: int = 0) -> None:
    """Store records with these values."""
    rows = pa.record_batch({"key": [b"k"] * len(values), "value": pa.array(values, pa.binary())})
    with Client(served.server) as client, client.producer("s", partition) as producer:
        producer.send(rows)


def numbered(start: int, end: int) -> list[bytes]:
    """Return JSON values whose ``n`` is their number."""
    return [json.dumps({"n": n, "name": f"name {n}"}).encode() for n in range(start, end)]


@pytest.fixture
def table(tmp_path: Path) -> Path:
    """Where the decoded table goes."""
    return tmp_path / "curated" / "s"


@pytest.fixture
def run(spark: SparkSession, served: Served, table: Path) -> Ingest:
    """Return a function that runs the job on stream ``s``, whose two partitions exist."""
    Client(served.server).create_stream("s", partitions=2)

    def ingested(*words: str) -> dict[str, Any]:
        common = ["--server", served.server, "--stream", "s", "--table", str(table)]
        args = ingest.PARSER.parse_args([*common, *words])
        return dict(ingest.run(spark, args, Report("ingest", io.StringIO())))

    return ingested


def rows(table: Path, *columns: str) -> list[tuple[Any, ...]]:
    """Return columns of a table's rows, by partition and offset."""
    found = DeltaTable(str(table)).to_pyarrow_table()
    found = found.sort_by([("partition", "ascending"), ("offset", "ascending")])
    return list(zip(*(found.column(name).to_pylist() for name in columns), strict=True))


def rejected(table: Path) -> list[tuple[Any, ...]]:
    """Return the rejected records' places, reasons and values."""
    place = table.with_name(f"{table.name}__rejected")
    return rows(place, "partition", "offset", "reason", "value")


def test_json_arrives_decoded_and_poison_beside_it(
    run: Ingest, served: Served, table: Path
) -> None:
    """Good records have columns, a tombstone nulls, bad ones stay whole with a reason; all once."""
    publish(served, *numbered(0, 30), b"no json", None, b'{"n":"five"}')
    publish(served, *numbered(0, 5), partition=1)
    done = run("--schema", SCHEMA, "--max-records-per-trigger", "10")

    assert done["ends"] == {"0": 33, "1": 5}
    assert (done["records"], done["rows"], done["rejected"], done["behind"]) == (38, 36, 2, 0)
    assert done["counts"] == {"rejected_malformed": 1, "rejected_wrong_type": 1}
    assert done["batches"] >= 3
    assert rows(table, "partition", "offset", "n", "name", "key") == [
        *((0, n, n, f"name {n}", b"k") for n in range(30)),
        (0, 31, None, None, b"k"),
        *((1, n, n, f"name {n}", b"k") for n in range(5)),
    ]
    assert rejected(table) == [
        (0, 30, "malformed", b"no json"),
        (0, 32, "wrong_type", b'{"n":"five"}'),
    ]


def test_runs_go_on_where_the_last_one_ended(run: Ingest, served: Served, table: Path) -> None:
    """With its checkpoint, without it, and with an older copy of it: each record once."""
    publish(served, *numbered(0, 10))
    first = run("--schema", SCHEMA)
    (checkpoint,) = (table / "_headwater" / "checkpoints").iterdir()
    shutil.copytree(checkpoint, old := table.with_name("old-checkpoint"))

    publish(served, *numbered(10, 20))
    assert run()["records"] == 10
    assert run()["records"] == 0

    shutil.rmtree(checkpoint)
    publish(served, *numbered(20, 30))
    assert run()["records"] == 10

    publish(served, *numbered(30, 40))
    assert run("--checkpoint", str(old))["records"] == 10
    assert first["pin"] == 1
    assert rows(table, "offset", "n") == [(n, n) for n in range(40)]


def test_cold_and_hot_records_are_one_sequence(run: Ingest, served: Served, table: Path) -> None:
    """What was shipped to the stream's own table arrives as what only the broker has."""
    publish(served, *numbered(0, 50))
    served.broker.ship("s", 0, Offset(30), files=2)
    assert run("--schema", SCHEMA)["records"] == 50
    assert rows(table, "offset", "n") == [(n, n) for n in range(50)]


def test_an_inferred_schema_is_pinned(run: Ingest, served: Served, table: Path) -> None:
    """Later records cannot change a column; other arguments than the pin's are refused."""
    publish(served, b'{"n": 1, "tags": ["a"]}')
    run()
    publish(served, b'{"n": 2.5}', b'{"n": 3, "more": true}')
    done = run()
    assert (done["rows"], done["rejected"]) == (1, 1)
    assert rows(table, "offset", "n", "tags") == [(0, 1, ["a"]), (2, 3, None)]
    for words in (("--schema", "n double"), ("--format", "raw"), ("--row-columns", "offset")):
        with pytest.raises(HeadwaterError):
            run(*words)
    with pytest.raises(SchemaMismatchError, match="--evolve add"):
        run("--schema", "n bigint, tags array<string>, more boolean")


def test_new_fields_become_columns_when_asked(run: Ingest, served: Served, table: Path) -> None:
    """With --evolve add a new field is pinned, added, and known to every later run."""
    publish(served, *numbered(0, 3))
    run("--schema", SCHEMA)
    publish(served, b'{"n": 3, "more": 1.5}', b'{"n": 4, "other": {"x": 1}}', b'{"n": 5}')
    done = run("--evolve", "add")
    assert (done["rows"], done["rejected"]) == (3, 0)
    publish(served, b'{"n": 6, "more": "text", "newest": 1}', b'{"more": 2.5}')
    assert run()["rejected"] == 1
    assert rows(table, "offset", "n", "more", "other") == [
        (0, 0, None, None),
        (1, 1, None, None),
        (2, 2, None, None),
        (3, 3, 1.5, None),
        (4, 4, None, {"x": 1}),
        (5, 5, None, None),
        (7, None, 2.5, None),
    ]
    assert [row[:3] for row in rejected(table)] == [(0, 6, "wrong_type")]


def test_a_stream_made_again_is_refused(run: Ingest, served: Served, table: Path) -> None:
    """Records of a new stream with the old name do not get into the old one's table."""
    publish(served, *numbered(0, 3))
    run("--schema", SCHEMA)
    with Client(served.server) as client:
        client.delete_stream("s")
        client.create_stream("s", partitions=2)
    publish(served, *numbered(0, 5))
    with pytest.raises(StreamRecreatedError):
        run()
    assert len(rows(table, "offset")) == 3


def test_a_checkpoint_of_another_table_is_refused(run: Ingest, served: Served, table: Path) -> None:
    """Where the table has nothing, a batch must begin at the start: nothing is skipped."""
    publish(served, *numbered(0, 3))
    run("--schema", SCHEMA, "--checkpoint", str(other := table.with_name("checkpoint")))
    shutil.rmtree(table)
    publish(served, *numbered(3, 6))
    with pytest.raises(GapError, match="Remove the checkpoint"):
        run("--schema", SCHEMA, "--checkpoint", str(other))
    shutil.rmtree(other)
    assert run("--checkpoint", str(other))["records"] == 6
    assert rows(table, "offset", "n") == [(n, n) for n in range(6)]


def test_everything_may_lie_on_s3(
    run: Ingest,
    served: Served,
    moto_env: dict[str, str],
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """Table, rejected table, pin and checkpoint are objects; a second run goes on from them."""
    for name, value in moto_env.items():
        monkeypatch.setenv(name, value)
    place = f"s3://headwater-tests/ingest-{uuid.uuid4().hex}"
    publish(served, *numbered(0, 3), b"poison")
    assert run("--table", place)["table"] == place
    publish(served, *numbered(4, 6))
    done = run("--table", place)
    assert (done["records"], done["ends"]["0"], done["pin"]) == (2, 6, 1)
    options = StoreConfig.from_env(place).storage_options()
    table = DeltaTable(place, storage_options=options)
    assert table.transaction_version(f"headwater-append/ingest/{done['stream_uuid']}/0") == 6


class StopsAfterTheFirstBatch(io.StringIO):
    """An output that asks the job to stop as soon as it tells of a batch."""

    stop: Stop

    def write(self, text: str) -> int:
        """Take a line of the output."""
        if "appended" in text:
            self.stop.signal = "SIGTERM"
            self.stop.event.set()
        return super().write(text)


def test_asked_to_stop_it_ends_after_the_batch_at_work(
    spark: SparkSession, run: Ingest, served: Served, table: Path
) -> None:
    """A run without an end finishes its batch, says who stopped it, and the next run goes on."""
    publish(served, *numbered(0, 20))
    args = ingest.PARSER.parse_args(
        ["--server", served.server, "--stream", "s", "--table", str(table), "--schema", SCHEMA,
         "--trigger", "500ms", "--max-records-per-trigger", "10"]
    )  # fmt: skip
    out = StopsAfterTheFirstBatch()
    report = Report("ingest", out)
    out.stop = report.stop
    done = ingest.run(spark, args, report)
    assert (done["records"], done["stopped_by"], done["behind"]) == (10, "SIGTERM", 10)
    assert len(rows(table, "offset")) == 10
    assert run()["records"] == 10
    assert rows(table, "offset", "n") == [(n, n) for n in range(20)]


def test_two_runs_at_once_share_the_work(run: Ingest, served: Served, table: Path) -> None:
    """Two copies with checkpoints of their own: one of them appends a range, never both."""
    publish(served, *numbered(0, 40), b"poison", *numbered(41, 60))
    words = ("--schema", SCHEMA, "--max-records-per-trigger", "15")
    places = [str(table.with_name(name)) for name in ("one", "two")]
    with ThreadPoolExecutor(2) as pool:
        done = list(pool.map(lambda place: run(*words, "--checkpoint", place), places))
    assert sum(each["records"] for each in done) == 60
    assert {each["ends"]["0"] for each in done} <= {60}
    assert [offset for (offset,) in rows(table, "offset")] == [n for n in range(60) if n != 40]
    assert [row[1] for row in rejected(table)] == [40]


class Died(Exception):  # noqa: N818  (it stands for the process's end)
    """The error with which a test ends an append."""


@pytest.fixture
def dies_between_commits(monkeypatch: pytest.MonkeyPatch) -> None:
    """In this test the first append dies when its rejected records are committed, and no more."""
    whole = Appender._commit
    calls = iter([True])

    def commit(self: Appender, *rest: Any, **named: Any) -> int:
        if next(calls, False):
            raise Died
        return whole(self, *rest, **named)

    monkeypatch.setattr(Appender, "_commit", commit)


@pytest.mark.usefixtures("dies_between_commits")
def test_death_between_the_two_tables_loses_and_doubles_nothing(
    run: Ingest, served: Served, table: Path
) -> None:
    """The rejected records are there once, and the others arrive with the next run.

    What that run learns about columns does not judge the half-committed records anew: under the
    new column, the record whose field is an empty list would be rejected, and be in neither table.
    """
    publish(served, *numbered(0, 1), b"poison", b'{"n": 2, "x": []}')
    with pytest.raises(StreamingQueryException):
        run("--schema", SCHEMA)
    assert [row[1] for row in rejected(table)] == [1]
    assert rows(table, "offset") == []

    shutil.rmtree(table / "_headwater" / "checkpoints")
    publish(served, b'{"n": 3, "x": 5}', b'{"n": 4, "x": []}')
    done = run("--evolve", "add")

    assert done["ends"]["0"] == 5
    assert rows(table, "offset", "n", "x") == [(0, 0, None), (2, 2, None), (3, 3, 5)]
    assert [row[1:3] for row in rejected(table)] == [(1, "malformed"), (4, "wrong_type")]


@pytest.mark.usefixtures("dies_between_commits")
def test_death_between_the_two_tables_and_another_schema_lose_nothing(
    run: Ingest, served: Served, table: Path
) -> None:
    """The half-committed records belong to the first schema, though no row of it is there yet."""
    publish(served, *numbered(0, 1), b"poison", b'{"n": 2, "x": []}')
    with pytest.raises(StreamingQueryException):
        run("--schema", SCHEMA)

    with pytest.raises(SchemaMismatchError, match="--evolve add"):
        run("--schema", f"{SCHEMA}, x bigint")

    assert rows(table, "offset") == [(0,), (2,)]
    done = run("--schema", f"{SCHEMA}, x bigint", "--evolve", "add")
    assert (done["ends"]["0"], done["pin"]) == (3, 2)
    assert [row[1:3] for row in rejected(table)] == [(1, "malformed")]
