"""The steps of the guided tour and their checks; the exit code is not 0 if a step fails.

NATS, broker, tiering and an S3 endpoint run as one ``headwater up`` child in a temporary folder.
The tour publishes real flights through NATS, while the broker ships segments to S3. Spark then
reads table and tail as one DataFrame, while more records arrive, and a streaming query reads from
the first record, first from the table, then from the log. Jobs keep a decoded table and the newest
record of each key; Airflow lists the DAGs that would run these jobs. Every number is checked
against the data set. At the end no process is left running, and no file is left on disk.
"""

from __future__ import annotations

import argparse
import os
import shutil
import tempfile
import time
from collections.abc import Callable, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final

import pyarrow as pa
import pyarrow.compute as pc

import headwater
from broker.errors import HeadwaterError
from headwater.cli import console
from headwater.cli.interrupts import ends_in_one_line
from headwater.cli.parsing import format_age, format_bytes
from headwater.client import Client
from headwater.demo import pipeline, queries
from headwater.demo.flights import FLIGHTS_COUNT, SUBJECTS, load_flights, messages
from headwater.demo.live import LivePublisher
from headwater.demo.processes import adopt_orphans, kill_children, wait_for_children
from headwater.local import embedded
from headwater.local.runtime_file import RuntimeFile
from headwater.nats_publisher import NatsPublisher

if TYPE_CHECKING:
    from collections.abc import Iterator

    from broker.model.certificate import Certificate
    from broker.model.cut import Cut

_STREAM: Final = "flights"
_MIB: Final = 1024 * 1024
_SEGMENT_BYTES: Final = 8 * _MIB  # small, so that the tour shows many files and some hot records
_LOCAL_BYTES: Final = 16 * _MIB
_TOP: Final = 8
_END_TIMEOUT_S: Final = 20.0


class DemoError(Exception):
    """A number differs from the data set."""


@dataclass(frozen=True, slots=True)
class _Scene:
    """The objects that the steps share."""

    server: RuntimeFile
    client: Client
    flights: pa.Table


def main(arguments: Sequence[str] | None = None) -> int:
    """Run the tour; return the exit code."""
    parser = argparse.ArgumentParser(prog="headwater.demo", description=__doc__)
    parser.add_argument(
        "--flights", type=int, default=FLIGHTS_COUNT, help="publish only the first N flights"
    )
    chosen = parser.parse_args(arguments)
    adopt_orphans()
    folder = Path(tempfile.mkdtemp(prefix="headwater-demo-"))
    remove = partial(shutil.rmtree, folder, ignore_errors=True)
    with ends_in_one_line(partial(kill_children, _END_TIMEOUT_S), remove):
        return _run(folder, chosen.flights, remove)


def _run(folder: Path, flights_count: int, remove: Callable[[], None]) -> int:
    started = time.monotonic()
    try:
        _tour(folder, flights_count)
    except (HeadwaterError, DemoError, pipeline.PipelineError, OSError) as error:
        console.note(f"[bold red]{type(error).__name__}[/bold red]: {console.plain(str(error))}")
        return 1
    finally:
        left = wait_for_children(_END_TIMEOUT_S)
        remove()
    if left:
        console.note(f"[bold red]Left running:[/bold red] {console.plain(', '.join(left))}")
        return 1
    console.say(
        f"\n[bold green]All checks passed[/bold green] in {time.monotonic() - started:.0f} s; "
        "nothing is left running, the folder is gone."
    )
    return 0


def _tour(folder: Path, flights_count: int) -> None:
    with _step("Start NATS, broker with tiering, and S3 (moto), all on the loopback"):
        up = embedded.start_up(
            folder / "data", "--s3", "moto", "--nats-port", "0", "--flight-port", "0",
            "--http-port", "0",
        )  # fmt: skip
    with up:
        server = RuntimeFile.read(folder / "data")
        assert server.moto is not None, "it was started with moto"
        embedded.use_moto(server.moto, os.environ)
        with Client(server.flight) as client:
            scene = _Scene(server, client, load_flights(flights_count))
            _publish(scene)
            with (
                LivePublisher(
                    server.nats,
                    scene.client.stream(_STREAM),
                    scene.flights,
                    first_number=flights_count,
                ) as live,
                queries.spark_session(folder) as spark,
            ):
                _read_while_live(scene, spark, live)
                _stream_across_the_seam(scene, spark, live, folder)
                live_count = _read_at_the_end(scene, spark, live)
                _run_jobs(scene, spark, folder, records=scene.flights.num_rows + live_count)
            _list_dags(folder)


@contextmanager
def _step(title: str) -> Iterator[None]:
    console.say(f"\n[bold]▸ {title}[/bold]")
    started = time.monotonic()
    yield
    console.say(f"  [dim]{time.monotonic() - started:.1f} s[/dim]")


def _publish(scene: _Scene) -> None:
    count = scene.flights.num_rows
    with _step(f"Publish {count:,} flights through NATS, every one acknowledged once on disk"):
        stream = scene.client.create_stream(
            _STREAM,
            subject=SUBJECTS,
            puback=True,
            segment_bytes_max=_SEGMENT_BYTES,
            local_retention_bytes=_LOCAL_BYTES,
        )
        started = time.monotonic()
        with NatsPublisher(scene.server.nats, stream=stream) as publisher:
            for group in messages(scene.flights):
                publisher.publish(group)
            counts = publisher.finish()
        seconds = time.monotonic() - started
        _require(counts.acked, count, "acknowledged records")
        console.say(
            f"  {counts.acked:,} acknowledged, {count / seconds:,.0f}/s with JSON encoding; "
            f"{counts.retried} sent again"
        )


def _read_while_live(scene: _Scene, spark: Any, live: LivePublisher) -> None:
    with _step("Read everything with Spark while records arrive: Delta table ∪ live tail"):
        acked_before = live.acked
        rows = headwater.read(spark, _STREAM, server=scene.client)
        sent_after = live.sent
        cut, certificate = headwater.cut_of(rows), headwater.certificate(rows)
        queries.view(spark, rows, keep=True)
        found = queries.proof(spark)
        history = scene.flights.num_rows
        _require(found.records, cut.records_count, "rows of the DataFrame")
        _require(certificate.records_count, cut.records_count, "certified records")
        _require_each_once(found)
        if not acked_before <= found.live <= sent_after:
            raise DemoError(
                f"{found.live} live records in the cut; {acked_before} were acknowledged before "
                f"it, {sent_after} sent after it"
            )
        _require(found.records, history + found.live, "flights and live records")
        _show_tiers(scene, cut, certificate)
        console.say(
            f"  [green]Exact:[/green] {found.records:,} rows = {history:,} flights + "
            f"{found.live:,} live ones, each number once"
        )
    with _step("Flights per carrier (of the rows that Spark has just read)"):
        _show_carriers(scene, queries.carriers(spark))
    with _step("The last known flight of each aircraft"):
        _show_latest(scene, *queries.latest_flights(spark, _TOP))
    queries.forget(spark)


def _stream_across_the_seam(scene: _Scene, spark: Any, live: LivePublisher, folder: Path) -> None:
    with _step("Stream from the first record with readStream: table, then log, one sequence"):
        wanted = scene.flights.num_rows + live.acked
        seam = pipeline.stream_until(spark, scene.server.flight, _STREAM, wanted, folder)
        (status,) = scene.client.tier_status(_STREAM)
        _require(seam.records, seam.end, "rows of the streaming query")
        started_cold = seam.batches[0][0] < status.cold.end
        if not started_cold or seam.end <= status.cold.end:
            raise DemoError(
                f"the query read [0, {seam.end}), not both table and log: the table ends at "
                f"{status.cold.end}"
            )
        console.say(
            f"  [green]Exact:[/green] {seam.records:,} rows in {len(seam.batches)} batches, each "
            f"begins where the one before ended; the table ends at offset {status.cold.end:,}, "
            f"what came later was read from the log"
        )


def _run_jobs(scene: _Scene, spark: Any, folder: Path, *, records: int) -> None:
    where = ("--stream", _STREAM, "--server", scene.server.flight)
    with _step("Keep a table with decoded columns: headwater job ingest"):
        table = str(folder / "curated" / "flights")
        done = pipeline.run_job(["ingest", *where, "--table", table])
        rows = spark.read.format("delta").load(table)
        found = queries.curated(rows)
        _require(done["records"], records, "records that ingest appended")
        _require(found.records, records, "rows of the curated table")
        _require(found.numbers, records, "different numbers in the curated table")
        console.say(f"  {', '.join(rows.columns)}")
        console.table(("origin", "flights", "miles"), queries.by_origin(rows))
    with _step("The newest record of each aircraft: headwater job snapshot, latest=True"):
        done = pipeline.run_job(["snapshot", *where])
        latest = headwater.read(spark, _STREAM, latest=True, server=scene.client)
        aircraft = len(scene.flights.column("tailnum").drop_null().unique())
        _require(latest.count(), aircraft, "rows of the latest view")
        console.say(
            f"  {aircraft:,} aircraft, one row each; {done['records']:,} of them from the key "
            "snapshot, the rest from what came after it"
        )


def _list_dags(folder: Path) -> None:
    with _step("The DAGs that Airflow finds in airflow_dags/"):
        found = pipeline.airflow_dags(folder)
        if found is None:
            console.say("  [dim]Airflow has an environment of its own: run `make demo`[/dim]")
            return
        console.table(("DAG", "file"), found)
        _require(len(found), len(pipeline.JOBS), "DAGs")


def _read_at_the_end(scene: _Scene, spark: Any, live: LivePublisher) -> int:
    with _step("The newest record, and its age"):
        rows = headwater.read(spark, _STREAM, server=scene.client)
        queries.view(spark, rows)
        cut = headwater.cut_of(rows)
        row = queries.at_offset(spark, cut.partitions[0].hot_end - 1)
        answered_us = time.time_ns() // 1000
        console.say(
            f"  offset {row['offset']:,} on {row['subject']}, number {row['record']['n']:,}: "
            f"{format_age(cut.taken_us - row['timestamp_us'])} old when the cut was taken, "
            f"{format_age(answered_us - row['timestamp_us'])} when Spark had answered"
        )
    with _step("Stop publishing and count for the last time"):
        live_count = live.stop()
        rows = headwater.read(spark, _STREAM, server=scene.client)
        queries.view(spark, rows)
        found = queries.proof(spark)
        history = scene.flights.num_rows
        _require_each_once(found)
        _require(found.live, live_count, "live records")
        _require(found.records, history + live_count, "flights and live records")
        expected = pc.sum(scene.flights.column("distance")).as_py()
        live_rows = scene.flights.slice(0, 2000).column("distance").to_pylist()
        expected += sum(live_rows[n % len(live_rows)] for n in range(live_count))
        _require(found.distance, expected, "miles flown, over all records")
        console.say(
            f"  [green]Exact:[/green] {history:,} + {live_count:,} = {found.records:,} records, "
            f"each once; {found.distance:,} miles, as in the data set"
        )
    return live_count


def _show_tiers(scene: _Scene, cut: Cut, certificate: Certificate) -> None:
    (status,) = scene.client.tier_status(_STREAM)
    cold = sum(part.cold_count for part in certificate.partitions)
    hot = sum(part.hot_count for part in certificate.partitions)
    console.table(
        ("tier", "where", "files", "rows", "bytes"),
        [
            ("cold", cut.table_uri, certificate.files_count, cold,
             format_bytes(certificate.files_bytes)),
            ("hot", f"{scene.server.flight} (log)", "-", hot, format_bytes(status.unshipped_bytes)),
        ],
    )  # fmt: skip
    console.say(
        f"  certificate: table version {certificate.table_version}, form {certificate.form}"
    )
    for part in certificate.partitions:
        console.say(
            f"    partition {part.partition}: [{part.start}, {part.end}), {part.cold_count:,} cold "
            f"+ {part.hot_count:,} hot, holes: {len(part.holes)}"
        )
    if cold == 0 or hot == 0:
        raise DemoError(f"the tour should show both tiers; {cold} rows are cold, {hot} hot")


def _show_carriers(scene: _Scene, found: list[tuple[str, int, int, int]]) -> None:
    counted = scene.flights.column("carrier").value_counts().to_pylist()
    expected = {entry["values"]: entry["counts"] for entry in counted}
    actual = {carrier: flights - live for carrier, flights, live, _ in found}
    if actual != expected:
        raise DemoError(f"flights per carrier are {actual}, the data set has {expected}")
    console.table(("carrier", "flights", "of them live", "aircraft"), found)


def _show_latest(scene: _Scene, count: int, found: list[dict[str, Any]]) -> None:
    expected = len(scene.flights.column("tailnum").drop_null().unique())
    _require(count, expected, "aircraft")
    console.say(
        f"  {count:,} aircraft; the busiest of them (the live flights are January's, sent again):"
    )
    console.table(
        ("aircraft", "flights", "last", "flight", "hour", "offset"),
        [
            (row["aircraft"], row["flights"], f"{row['last']['origin']}→{row['last']['dest']}",
             f"{row['last']['carrier']}{row['last']['flight']}", row["last"]["time_hour"],
             row["offset"])
            for row in found
        ],
    )  # fmt: skip


def _require_each_once(found: queries.Proof) -> None:
    _require(found.first, 0, "first number")
    _require(found.numbers, found.records, "different numbers")
    _require(found.last + 1, found.records, "numbers without a hole")


def _require(found: int, expected: int, what: str) -> None:
    if found != expected:
        raise DemoError(f"{what}: {found:,}, expected {expected:,}")
