"""Builds or advances a stream's key snapshot: ``<stream>__latest``, the newest record of each key.

The key snapshot covers an exact cut: the cold ends of the stream's table when the job began. The
job may run as often as needed. A run without new records changes nothing. Of two runs at the same
time one commits; the other ends with a typed error and changes nothing.
"""

from __future__ import annotations

import argparse
import sys
from typing import TYPE_CHECKING, Any, Final

from spark_jobs.clients import client_of
from spark_jobs.jobs.job import Facts, Report, parser, run_job
from spark_jobs.maintenance.held_stream import held_stream
from spark_jobs.maintenance.latest_build import advance
from spark_jobs.maintenance.latest_check import check_latest
from spark_jobs.read.scans import refuse_lossy
from tiering.keys.snapshot import latest_table
from tiering.read.certify import certify_counts

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

NAME: Final = "snapshot"
PARSER: Final = parser(NAME, "Build or advance <stream>__latest: the newest record of every key.")
PARSER.add_argument("--stream", required=True, help="the stream")
PARSER.add_argument(
    "--check", action="store_true", help="compare the table with the full history afterwards"
)


def run(spark: SparkSession, args: argparse.Namespace, report: Report) -> Facts:
    """Advance the key snapshot to the present cold ends; see the module docstring. Blocks."""
    refuse_lossy(spark)
    client = client_of(args.server)
    with held_stream(client, args.stream, what=NAME) as held:
        table = latest_table(held.lake, held.stream)
        base = None if held.snapshot is None else table.create()
    # This cut is taken after the key snapshot was read, so it is never behind the key snapshot.
    with held_stream(client, args.stream, what=NAME) as held:
        facts: dict[str, Any] = {"stream": held.stream.name, "stream_uuid": held.stream.uuid}
        if held.snapshot is None or base is None:
            report.progress("nothing was shipped yet", stream=args.stream)
            ends = {str(part.partition): int(part.cold_end) for part in held.cut.partitions}
            return {**facts, "ends": ends, "records": 0, "table_uri": None, "version": None}
        # Of a sparse range the newest record of each key is left, which is all that is used.
        certify_counts(held.snapshot, held.cut, held.table.store, sparse=True)
        done = advance(
            spark,
            table,
            base,
            held.snapshot,
            keys_from=held.cut.keys_from,
            progress=report.progress,
        )
        facts |= {
            "table_uri": table.uri,
            "version": done.version,
            "ends": {str(number): int(part.end) for number, part in done.ranges.items()},
            "records": done.records_count,
            "records_read": done.records_read,
            "files_added": done.files_added,
            "files_removed": done.files_removed,
            "files_kept": done.files_kept,
            "bytes_added": done.bytes_added,
        }
        if done.records_count == 0 and done.records_read > 0:
            report.progress("no records: a key snapshot leaves out records without a key")
        if args.check:
            report.progress("comparing with the full history")
            proof = check_latest(
                spark,
                table.snapshot(done.version),
                held.snapshot,
                keys_from=held.cut.keys_from,
            )
            facts |= {"checked_records": proof.history_count}
        return facts


def main(argv: list[str] | None = None) -> int:
    """Run the job from the command line; return the exit status."""
    return run_job(NAME, PARSER, run, argv)


if __name__ == "__main__":
    sys.exit(main())
