"""Keeps a table of decoded records up to date with a stream, each record once.

Structured Streaming plans the batches: triggers, limits and AvailableNow. A batch has only offset
ranges. The appender's tasks read, decode and write the rows, and commit them with the table's
watermark. So a lost, copied or doubled checkpoint costs time, nothing else. After SIGTERM the
current batch is finished.
"""

from __future__ import annotations

import argparse
import hashlib
import json
import re
import sys
import threading
import uuid
from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING, Any, Final

from broker.errors import (
    HeadwaterError,
    InvalidRequestError,
    ShuttingDownError,
    StaleWatermarkError,
)
from spark_jobs.clients import client_of
from spark_jobs.decode.pins import Pin, Pins
from spark_jobs.failures import lost_process, typed
from spark_jobs.jobs import begun, ingest_setup
from spark_jobs.jobs.ingest_batches import Batches, starting_offsets
from spark_jobs.jobs.job import Facts, Report, Stop, parser, run_job
from spark_jobs.tables import Appender, Source, Target
from tiering.store.location import canonical_uri
from tiering.store.opening import open_store

if TYPE_CHECKING:
    from pyspark.sql import DataFrame, SparkSession
    from pyspark.sql.streaming.query import StreamingQuery

    from headwater.client import StreamDescription

NAME: Final = "ingest"
_INTERVAL: Final = re.compile(r"(\d{1,6})\s*(ms|s|m|h)\Z")
_CHECK_S: Final = 1  # how often the main thread checks for the query's end and for a stop
_CHECKPOINTS: Final = "_headwater/checkpoints"
_CONCURRENT: Final = "CONCURRENT_STREAM_LOG_UPDATE"  # Spark's name for two queries, one checkpoint


def _parser() -> argparse.ArgumentParser:
    made = parser(
        NAME,
        "Keep a Delta table of decoded records up to date with a stream, each record once. Records "
        "that do not decode are kept whole in <table>__rejected, with the reason. It is safe to "
        "run this job twice, to run two at once, to kill and to resume it: the table holds its "
        "progress.",
    )
    made.add_argument("--stream", required=True, help="the stream to read")
    made.add_argument(
        "--table", required=True, metavar="URI", help="the Delta table: s3://…, file://… or a path"
    )
    made.add_argument(
        "--from",
        dest="starting_offsets",
        metavar="WHERE",
        default=None,
        help="where a new table begins: earliest (default), latest or JSON such as '{\"0\": 100}'",
    )
    when = made.add_mutually_exclusive_group()
    when.add_argument(
        "--available-now",
        action="store_true",
        help="append the records that are committed now, then end (the default; for schedulers)",
    )
    when.add_argument(
        "--trigger",
        metavar="INTERVAL",
        default=None,
        help="run until stopped, with a batch every INTERVAL: 1s, 5m …",
    )
    made.add_argument(
        "--max-records-per-trigger",
        type=int,
        metavar="N",
        default=None,
        help="limit of the records in a batch (default: all records that there are)",
    )
    made.add_argument(
        "--partition-by",
        metavar="NAMES",
        default=None,
        help="partition columns of a new table, chosen from its columns after decoding",
    )
    made.add_argument(
        "--checkpoint",
        metavar="URI",
        default=None,
        help=f"Spark's checkpoint (default: <table>/{_CHECKPOINTS}/<app>-<stream uuid>, and a "
        "digest of the first offsets if --from gave any)",
    )
    made.add_argument(
        "--app",
        default=NAME,
        help="name of the appender; runs with one name share the work, and an appender with "
        "another name may not append the same offsets (default: ingest)",
    )
    ingest_setup.add_arguments(made)
    return made


PARSER: Final = _parser()


def check(args: argparse.Namespace) -> dict[str, Any]:
    """Return Spark's trigger; raises InvalidRequestError. Needs neither broker nor Spark."""
    ingest_setup.check(args)
    ingest_setup.begin(args.starting_offsets)
    return _trigger(args.trigger)


def run(spark: SparkSession, args: argparse.Namespace, report: Report) -> Facts:
    """Ingest until the table is up to date, or until a stop; see the module docstring. Blocks.

    Raises:
        HeadwaterError: typed, see :func:`spark_jobs.jobs.ingest_setup.settle` and
            :class:`spark_jobs.jobs.ingest_batches.Batches`.
    """
    trigger = check(args)
    client = client_of(args.server)
    described = client.describe(args.stream)
    stream = described.stream
    source = Source(stream=stream.name, stream_uuid=stream.uuid, server=client.address.url)
    target = Target.at(args.table, app=args.app, partition_by=_names(args.partition_by))
    pins = Pins(open_store(target.store), target.app)
    firsts = {part.partition: part.start for part in described.partitions}
    finished = begun.finish(spark, target, source, report, firsts=firsts)
    watermarks = Appender(spark, target, source).watermarks()
    pin = ingest_setup.settle(
        args, pins, described=described, watermarks=watermarks, client=client, job=NAME
    )
    batches = Batches(
        spark,
        target,
        source,
        pins=pins,
        pin=pin,
        grow=args.evolve == "add",
        firsts=firsts,
        report=report,
        behind=lambda ends: _behind(client.describe(source.stream), ends, pin.starts),
    )
    for done in begun.of_target(finished, target):
        batches.totals.add(done)
    runner = _BatchRunner(batches, report.stop)
    behind = _behind(described, batches.totals.ends, pin.starts)
    report.progress("reading", stream=source.stream, table=target.uri, behind=behind)
    query = _started(
        spark,
        args,
        runner,
        source=source,
        trigger=trigger,
        starting=starting_offsets(batches.totals.ends, pin, firsts),
        checkpoint=args.checkpoint or default_checkpoint(target, pin),
    )
    _finish(query, runner, report)
    totals = batches.totals
    return {
        "stream": source.stream,
        "stream_uuid": source.stream_uuid,
        "table": target.uri,
        "rejected_table": begun.rejects_of(target).uri,
        "ends": {str(number): end for number, end in sorted(totals.ends.items())},
        "records": totals.records_count,
        "compacted": totals.gone_count,
        "rows": totals.rows_count,
        "rejected": totals.rejected_count,
        "counts": dict(sorted(totals.counts.items())),
        "bytes": totals.bytes_count,
        "batches": totals.batches_count,
        "version": totals.version,
        "behind": _behind(client.describe(source.stream), totals.ends, pin.starts),
        "pin": batches.pin.number,
        "stopped_by": report.stop.signal,
    }


def default_checkpoint(target: Target, pin: Pin) -> str:
    """Return where the checkpoint is; another beginning has another, and begins there."""
    name = f"{target.app}-{pin.stream_uuid}"
    if pin.starts:
        text = json.dumps({str(number): int(at) for number, at in sorted(pin.starts.items())})
        name += f"-{hashlib.sha256(text.encode()).hexdigest()[:16]}"
    return f"{target.uri}/{_CHECKPOINTS}/{name}"


class _BatchRunner:
    """Runs the batches one at a time; after a stop, the current batch ends and no other begins."""

    def __init__(self, batches: Batches, stop: Stop) -> None:
        self._batches = batches
        self._stop = stop
        self._busy = threading.Lock()
        self.error: HeadwaterError | None = None

    def __call__(self, rows: DataFrame, batch_id: int) -> None:
        with self._busy:
            try:
                if self._stop.event.is_set():  # a return would mean to Spark: the batch is done
                    raise ShuttingDownError("the job was asked to stop")
                self._batches(rows, batch_id)
            except HeadwaterError as error:
                self.error = error
                raise

    def wait(self) -> None:
        """Wait for the end of the current batch. Call it after a stop; then no other begins."""
        with self._busy:
            return


def _started(
    spark: SparkSession,
    args: argparse.Namespace,
    runner: _BatchRunner,
    *,
    source: Source,
    trigger: dict[str, Any],
    starting: str,
    checkpoint: str,
) -> StreamingQuery:
    reader = spark.readStream.format("headwater").options(
        server=source.server,
        subscribe=source.stream,
        streamUuid=source.stream_uuid,
        startingOffsets=starting,  # for a new checkpoint; an old checkpoint has its own offsets
        emit="ranges",
    )
    if args.max_records_per_trigger is not None:
        reader = reader.option("maxOffsetsPerTrigger", str(args.max_records_per_trigger))
    return (
        reader.load()
        .writeStream.queryName(f"headwater-ingest-{source.stream}-{uuid.uuid4().hex[:8]}")
        .foreachBatch(runner)
        .option("checkpointLocation", _spark_path(checkpoint))
        .trigger(**trigger)
        .start()
    )


def _finish(query: StreamingQuery, runner: _BatchRunner, report: Report) -> None:
    """Wait for the query's end, or stop the query on request; raise the error of a failed query."""
    from pyspark.errors import StreamingQueryException  # noqa: PLC0415  (--help needs no PySpark)

    try:
        while not query.awaitTermination(_CHECK_S):
            if report.stop.event.is_set():
                report.progress("stopping", signal=report.stop.signal)
                runner.wait()
                query.stop()
                break
    except StreamingQueryException as error:
        ours = runner.error or typed(error)
        if isinstance(ours, ShuttingDownError) and report.stop.event.is_set():
            return
        if ours is None and _CONCURRENT in str(error):
            ours = StaleWatermarkError(
                "another run uses the same checkpoint, so this run ends; the other run goes on"
            )
        ours = ours or lost_process(error)
        if ours is None:
            raise
        raise ours from error
    finally:
        if query.isActive:
            query.stop()
    if runner.error is not None and not isinstance(runner.error, ShuttingDownError):
        raise runner.error


def _behind(
    described: StreamDescription, ends: Mapping[int, int], starts: Mapping[int, int]
) -> int:
    """Return the number of committed records that the table should have and lacks.

    ``starts`` has the table's first offset of each partition whose beginning it does not have.
    """
    known = {**starts, **ends}
    return sum(
        max(0, part.high_watermark - known.get(part.partition, int(part.start)))
        for part in described.partitions
    )


def _trigger(text: str | None) -> dict[str, Any]:
    if text is None:
        return {"availableNow": True}
    found = _INTERVAL.match(text.strip())
    if found is None:
        raise InvalidRequestError(f"--trigger takes 500ms, 1s, 5m or 1h, not {text!r}")
    unit = {"ms": "milliseconds", "s": "seconds", "m": "minutes", "h": "hours"}[found.group(2)]
    return {"processingTime": f"{found.group(1)} {unit}"}


def _names(text: str | None) -> tuple[str, ...]:
    return () if text is None else tuple(name.strip() for name in text.split(","))


def _spark_path(uri: str) -> str:
    """Return a location in the spelling of Spark's file systems."""
    found = canonical_uri(uri)
    return f"s3a://{found.removeprefix('s3://')}" if found.startswith("s3://") else found


def main(argv: Sequence[str] | None = None) -> int:
    """Run the job from the command line; return the exit status."""
    return run_job(NAME, PARSER, run, argv, check=check)


if __name__ == "__main__":
    sys.exit(main())
