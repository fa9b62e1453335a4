"""A damaged data file, and a session set to go on without one: exact rows or an error by name."""

from __future__ import annotations

import random
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final

import pyarrow as pa
import pytest
from py4j.protocol import Py4JJavaError  # type: ignore[import-untyped]
from pyspark.errors import PySparkException

from broker.errors import ObjectCorruptError, ObjectMissingError
from broker.model.offsets import Offset
from headwater import cut, read
from headwater.client import Client
from simkit.tier.lake_broker import Served
from simkit.tier.parquet_parts import Part, parts_of
from spark_jobs.failures import translated, typed
from spark_jobs.read import table_scan
from spark_jobs.read.table_scan import STRICT, files_of
from spark_jobs.source.columns import ROW_COLUMNS

if TYPE_CHECKING:
    from pyspark.sql import DataFrame, SparkSession

pytestmark = [pytest.mark.spark, pytest.mark.integration]

RECORDS: Final = 400
_SEED: Final = 20_261_122
_WAYS: Final = ("planned by Delta", "named to Parquet")
_CATALOG: Final = "by a table of the catalog"
_LOSSY: Final = ("spark.sql.files.ignoreMissingFiles", "spark.sql.files.ignoreCorruptFiles")


def _batch(start: int, count: int) -> pa.RecordBatch:
    """Return records that have something in every column."""
    numbers = range(start, start + count)
    headers = pa.list_(pa.struct([("key", pa.string()), ("value", pa.binary())]))
    return pa.RecordBatch.from_pydict(
        {
            "key": pa.array([f"key-{number % 7}".encode() for number in numbers], pa.binary()),
            "value": pa.array([f"value {number:08}".encode() for number in numbers], pa.binary()),
            "headers": pa.array(
                [[{"key": f"h{number % 3}", "value": b"%d" % number}] for number in numbers],
                headers,
            ),
            "reply_subject": pa.array([f"_INBOX.{number}" for number in numbers], pa.string()),
            "correlation_id": pa.array([f"c{number}" for number in numbers], pa.string()),
        }
    )


@pytest.fixture
def stream(served: Served) -> Served:
    """Stream ``s``: 400 records in two files of the table, no tail."""
    client = Client(served.server)
    client.create_stream("s")
    with client.producer("s") as producer:
        for first in range(0, RECORDS, 10):
            producer.send(_batch(first, 10))
    served.broker.ship("s", 0, Offset(RECORDS), files=2)
    return served


def _files(stream: Served) -> list[Path]:
    return sorted(stream.broker.table("s").store.config.root.glob("partition=0/*.parquet"))


def _rows(rows: DataFrame) -> pa.Table:
    return pa.table(rows.select(*ROW_COLUMNS).toArrow()).sort_by("offset")


def _served(rows: DataFrame, file: Path) -> pa.Table | None:
    """Return what an action returns; None when it fails by the name of the damaged file."""
    try:
        return _rows(rows)
    except (PySparkException, Py4JJavaError) as error:
        ours = typed(error)
        if isinstance(ours, ObjectCorruptError) and file.name in str(ours):
            return None
        raise


@contextmanager
def _flipped(file: Path, position: int, bit: int) -> Iterator[None]:
    """Damage a file while the block runs."""
    whole = file.read_bytes()
    body = bytearray(whole)
    body[position] ^= 1 << bit
    file.write_bytes(body)
    try:
        yield
    finally:
        file.write_bytes(whole)


def _places(part: Part, rng: random.Random) -> list[tuple[int, int]]:
    """Choose bits of a part: more of the footer, which is long and has no checksum."""
    count = {"footer": 6}.get(part.what, 1)
    span = range(part.start, part.end)
    return [(rng.choice(span), rng.randrange(8)) for _ in range(count if span else 0)]


@dataclass(frozen=True, slots=True)
class Scan:
    """A way to read a table, and whether page headers are tried with it."""

    read: Callable[..., DataFrame]
    headers: bool


@pytest.fixture(params=_WAYS)
def scan(
    request: pytest.FixtureRequest,
    monkeypatch: pytest.MonkeyPatch,
    catalog_of: Callable[[str], str],
) -> Scan:
    """A read by one of the ways in which the table is scanned."""
    if request.param == _CATALOG:
        name = catalog_of("jvm")
        return Scan(lambda spark, stream, **_: spark.table(f"{name}.{stream}"), headers=True)
    named = request.param == "named to Parquet"
    if named:
        monkeypatch.setattr(table_scan, "is_connect", lambda _: True)
    return Scan(read, headers=named)  # the file's reader is the same; Delta plans slower


def test_a_flipped_bit_is_never_served(spark: SparkSession, stream: Served, scan: Scan) -> None:
    """Bits of every column's pages, their headers, footer and magic, flipped under a DataFrame.

    The DataFrame stands before the damage: nothing but the scan itself can find it.
    """
    rows = scan.read(spark, "s", server=stream.server)
    expected = _rows(rows)
    assert expected.num_rows == RECORDS
    file = _files(stream)[0]
    rng = random.Random(_SEED)
    silent, errors = [], 0
    parts = [part for part in parts_of(file) if scan.headers or part.what != "header"]
    for part in parts:
        for position, bit in _places(part, rng):
            with _flipped(file, position, bit):
                found = _served(rows, file)
            errors += found is None
            if found is None:
                continue
            if not found.equals(expected):
                silent.append((part, position, bit))
            assert part.what != "body" or not part.column, f"{part} {position} {bit}: not found"
    assert silent == []
    assert errors > 10


@pytest.mark.parametrize("scan", [*_WAYS, _CATALOG], indirect=True)
@pytest.mark.parametrize("setting", _LOSSY)
def test_settings_changed_after_the_read_lose_no_rows(
    spark: SparkSession, stream: Served, scan: Scan, setting: str
) -> None:
    """A session that begins to go on without files does not do so with ours."""
    rows = scan.read(spark, "s", server=stream.server)
    first, second = _files(stream)
    whole = first.read_bytes()
    spark.conf.set(setting, "true")
    spark.conf.set("parquet.page.verify-checksum.enabled", "false")
    try:
        first.unlink()
        with pytest.raises(ObjectMissingError, match=first.name), translated():
            rows.selectExpr("sum(offset)").collect()
        first.write_bytes(whole)
        body = next(p for p in parts_of(second) if (p.what, p.column) == ("body", "value"))
        with (
            _flipped(second, body.start + 5, 3),
            pytest.raises(ObjectCorruptError, match=second.name),
            translated(),
        ):
            rows.selectExpr("max(value)").collect()
    finally:
        spark.conf.unset(setting)
        spark.conf.unset("parquet.page.verify-checksum.enabled")
    assert _rows(rows).num_rows == RECORDS


def test_every_scan_of_a_table_is_strict(spark: SparkSession, stream: Served) -> None:
    """Both ways put the options into the scan itself, and Delta's still skips files."""
    saved = cut("s", server=stream.server)
    assert saved.table_version is not None
    made: list[Any] = [
        table_scan.table_at(spark, saved.table_uri, saved.table_version),
        files_of(spark, saved.table_uri, [f"partition=0/{file.name}" for file in _files(stream)]),
    ]
    for rows in made:
        options = rows._jdf.queryExecution().optimizedPlan().collectLeaves().apply(0)
        options = options.relation().options()
        assert {name: options.apply(name) for name in STRICT} == dict(STRICT)
    plan = made[0].where("offset < 5").select("offset")._jdf.queryExecution()
    assert "PreparedDeltaFileIndex" in plan.toString()
    assert len(made[0].where("offset < 5").inputFiles()) == 1
