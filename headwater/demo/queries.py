"""The demo's Spark queries: one view over history and tail, and plain SQL on this view."""

from __future__ import annotations

import contextlib
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Final

import headwater

_RECORD: Final = (
    "n BIGINT, carrier STRING, flight INT, tailnum STRING, origin STRING, dest STRING, "
    "distance BIGINT, time_hour STRING, live BOOLEAN"
)
_VIEW: Final = f"""
    SELECT offset, timestamp, CAST(key AS STRING) AS aircraft, subject,
           from_json(CAST(value AS STRING), '{_RECORD}') AS record
    FROM flights_rows
"""  # constants only
_PROOF: Final = """
    SELECT count(*) AS records, count(DISTINCT record.n) AS numbers, min(record.n) AS first,
           max(record.n) AS last, count_if(record.live) AS live, sum(record.distance) AS distance
    FROM flights
"""
_CARRIERS: Final = """
    SELECT record.carrier AS carrier, count(*) AS flights,
           count_if(record.live) AS live, count(DISTINCT aircraft) AS aircraft
    FROM flights GROUP BY 1 ORDER BY flights DESC
"""
_LATEST: Final = """
    SELECT aircraft, count(*) AS flights, max_by(record, offset) AS last, max(offset) AS offset
    FROM flights WHERE aircraft IS NOT NULL GROUP BY aircraft
"""
_AT_OFFSET: Final = """
    SELECT offset, subject, record, unix_micros(timestamp) AS timestamp_us
    FROM flights WHERE offset = {offset}
"""


@dataclass(frozen=True, slots=True, kw_only=True)
class Proof:
    """The counts of a full scan: every record has its own number, from 0 on without a hole."""

    records: int
    numbers: int
    first: int
    last: int
    live: int
    distance: int


@contextlib.contextmanager
def spark_session(scratch: Path) -> Iterator[Any]:
    """Start Spark; at the end stop it and wait until its JVM is gone."""
    conf = {"spark.sql.warehouse.dir": str(scratch / "warehouse")}
    spark = headwater.session("headwater-demo", conf=conf)
    gateway: Any = spark.sparkContext._gateway  # noqa: SLF001  # the only way to end the JVM
    try:
        yield spark
    finally:
        headwater.release_all()
        spark.stop()
        gateway.shutdown()
        gateway.proc.stdin.close()
        gateway.proc.wait(60)


def view(spark: Any, rows: Any, *, keep: bool = False) -> None:
    """Make the view ``flights`` of the unified rows; with ``keep``, cache the rows."""
    rows.createOrReplaceTempView("flights_rows")
    spark.sql(_VIEW).createOrReplaceTempView("flights")
    if keep:
        spark.catalog.cacheTable("flights")


def forget(spark: Any) -> None:
    """Drop the rows that :func:`view` cached."""
    spark.catalog.uncacheTable("flights")


def proof(spark: Any) -> Proof:
    """Run the query of all counts."""
    row = spark.sql(_PROOF).collect()[0]
    return Proof(**row.asDict())


def carriers(spark: Any) -> list[tuple[str, int, int, int]]:
    """Return for each carrier: its code, flights, live flights among them, aircraft."""
    return [tuple(row) for row in spark.sql(_CARRIERS).collect()]


def latest_flights(spark: Any, top: int) -> tuple[int, list[dict[str, Any]]]:
    """Return the number of aircraft, and the last known flight of the busiest aircraft."""
    rows = spark.sql(_LATEST)
    rows.createOrReplaceTempView("latest_flights")
    count = spark.sql("SELECT count(*) FROM latest_flights").collect()[0][0]
    busiest = spark.sql("SELECT * FROM latest_flights ORDER BY flights DESC, aircraft").limit(top)
    return int(count), [row.asDict(recursive=True) for row in busiest.collect()]


def at_offset(spark: Any, offset: int) -> dict[str, Any]:
    """Return the record at an offset; Spark skips files that do not have the offset."""
    (row,) = spark.sql(_AT_OFFSET.format(offset=offset)).collect()
    return dict(row.asDict(recursive=True))


@dataclass(frozen=True, slots=True, kw_only=True)
class Curated:
    """The counts of a scan of the decoded table."""

    records: int
    numbers: int


def curated(rows: Any) -> Curated:
    """Count the decoded table's rows and the different numbers in it."""
    row = rows.selectExpr("count(*) AS records", "count(DISTINCT n) AS numbers").collect()[0]
    return Curated(**row.asDict())


def by_origin(rows: Any) -> list[tuple[str, int, int]]:
    """Return flights and miles of each origin, from plain columns without parsing."""
    found = rows.groupBy("origin").agg({"*": "count", "distance": "sum"}).orderBy("origin")
    return [(row[0], int(row["count(1)"]), int(row["sum(distance)"])) for row in found.collect()]
