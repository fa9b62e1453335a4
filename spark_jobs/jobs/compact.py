"""OPTIMIZE and VACUUM that respect readers: no certificate changes, no reader loses a file.

With ``--stream`` small files of the stream's table are joined; each new file is proved against the
ledger first. With ``--vacuum`` the files that no reader can need any more are deleted, in the key
snapshot too. With ``--table URI``, for any other Delta table, delta-rs joins and deletes files, by
their age alone: leases are for streams, not for tables of jobs.
"""

from __future__ import annotations

import argparse
import sys
import time
from dataclasses import replace
from typing import TYPE_CHECKING, Any, Final

from broker.errors import InvalidRequestError
from spark_jobs.clients import client_of
from spark_jobs.jobs.job import Facts, Report, parser, run_job
from spark_jobs.maintenance.held_stream import held_stream
from spark_jobs.maintenance.table_compaction import compact
from tiering.keys.snapshot import latest_table
from tiering.proof.proofs import prove
from tiering.read.lake import Lake, storage_options_of
from tiering.ship.compaction import TARGET_BYTES
from tiering.store.opening import open_store
from tiering.table.delta_maintenance import RETAIN_HOURS_FLOOR, MaintainedTable, retention_hours

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

    from headwater.client import Client
    from tiering.table.delta_table import DeltaStreamTable

NAME: Final = "compact"
_MIB: Final = 1024 * 1024
_DEADLINE_S: Final = 4 * 3600.0  # for one whole OPTIMIZE or VACUUM
_SHOWN: Final = 100

PARSER: Final = parser(
    NAME, "Join small files; with --vacuum also delete files that no reader can need."
)
PARSER.add_argument("--stream", default=None, help="the stream whose table it is")
PARSER.add_argument(
    "--table", default=None, metavar="URI", help="a Delta table of jobs instead of the stream's own"
)
PARSER.add_argument(
    "--target-mib", type=int, default=TARGET_BYTES // _MIB, help="size of files (default: 128)"
)
PARSER.add_argument("--vacuum", action="store_true", help="also delete files no longer needed")
PARSER.add_argument(
    "--retain-hours",
    type=int,
    default=None,
    help="keep the files of every version that was current in the last so many hours (default: "
    f"{RETAIN_HOURS_FLOOR}, or more if a lease needs more)",
)
PARSER.add_argument(
    "--dry-run", action="store_true", help="change nothing; print what would be changed"
)


def check(args: argparse.Namespace) -> None:
    """Refuse wrong arguments; raises InvalidRequestError."""
    if args.stream is None and args.table is None:
        raise InvalidRequestError("give --stream or --table")
    if args.target_mib < 1:
        raise InvalidRequestError("--target-mib must be at least 1")
    if args.retain_hours is not None and not args.vacuum:
        raise InvalidRequestError("--retain-hours needs --vacuum")


def run(spark: SparkSession, args: argparse.Namespace, report: Report) -> Facts:
    """Compact one table; see the module docstring. Blocks."""
    check(args)
    if args.table is not None:
        return _compact_table(args)
    return _compact_stream(spark, args, report)


def _compact_stream(spark: SparkSession, args: argparse.Namespace, report: Report) -> Facts:
    client = client_of(args.server)
    if args.vacuum:  # refuse a wrong retention before any file is changed
        _retention(client, args)
    with held_stream(client, args.stream, what=NAME) as held:
        facts: dict[str, Any] = {
            "stream": held.stream.name,
            "stream_uuid": held.stream.uuid,
            "ends": {str(part.partition): int(part.cold_end) for part in held.cut.partitions},
            "records": 0,
            "dry_run": args.dry_run,
        }
        if held.snapshot is None:
            return facts
        # After a foreign change, neither compact nor VACUUM: a RESTORE needs the old files.
        prove(held.snapshot, held.table.store)
        done = compact(
            spark,
            held.table,
            held.snapshot,
            target_bytes=args.target_mib * _MIB,
            dry_run=args.dry_run,
            progress=report.progress,
        )
        facts |= {
            "records": sum(map(held.snapshot.records_count, held.snapshot.ranges)),
            "files_before": done.files_before,
            "files_after": done.files_after,
            "bytes_rewritten": done.bytes_rewritten,
            "bins_lost": done.bins_lost,
            "version": done.version,
        }
        tables = [held.table]
        latest = latest_table(held.lake, held.stream)
        if latest.find() is not None:
            tables.append(latest)
    # Our own lease has ended by now: it must not hold the files that this run replaced.
    if args.vacuum:
        hours = _retention(client, args)
        gone = [vacuum_proved(table, hours, args, report) for table in tables]
        facts |= {"retain_hours": hours, "vacuumed": gone}
    return facts


def _compact_table(args: argparse.Namespace) -> Facts:
    lake = Lake.open(args.table).with_deadline(_DEADLINE_S)
    table = MaintainedTable(lake.store, storage_options_of(lake.store))
    if owner := table.stream():
        # The table may have lost its newest commits. Then VACUUM would take their objects for
        # orphans, so the table has to be proved first.
        raise InvalidRequestError(
            f"{table.uri} is a table of the stream {owner}: leave --table out and give --stream "
            f"{owner}; then the table is proved to be whole first"
        )
    facts: dict[str, Any] = {"table_uri": table.uri, "dry_run": args.dry_run}
    if args.stream is not None:
        stream = client_of(args.server).stream(args.stream)
        facts |= {"stream": stream.name, "stream_uuid": stream.uuid}
    if not args.dry_run:
        done = table.optimize(target_bytes=args.target_mib * _MIB)
        facts |= {
            "files_removed": done.get("numFilesRemoved"),
            "files_added": done.get("numFilesAdded"),
        }
    if args.vacuum:
        hours = retention_hours(args.retain_hours, [], now_us=_now_us())
        vacuumed = table.vacuum(retain_hours=hours, dry_run=args.dry_run)
        facts |= {"retain_hours": hours, "vacuumed": [_shown(table.uri, vacuumed.paths)]}
    return {**facts, "version": table.version()}


def _retention(client: Client, args: argparse.Namespace) -> int:
    return retention_hours(args.retain_hours, client.leases(args.stream), now_us=_now_us())


def vacuum_proved(
    table: DeltaStreamTable, hours: int, args: argparse.Namespace, report: Report
) -> dict[str, Any]:
    """Delete what no version of the last ``hours`` needs; return what is told about it. Blocks.

    The newest version is proved first: a RESTORE after a foreign change needs the old files, and
    the change may have been made after this job began.

    Raises:
        TableMismatchError: somebody changed the table; nothing was deleted.
    """
    prove(table.snapshot(), table.store)
    patient = open_store(replace(table.store.config, upload_deadline_s=_DEADLINE_S))
    maintained = MaintainedTable(patient, storage_options_of(patient))
    done = maintained.vacuum(retain_hours=hours, dry_run=args.dry_run)
    report.progress(
        "would delete" if args.dry_run else "deleted", table=table.uri, objects=len(done.paths)
    )
    return _shown(table.uri, done.paths)


def _shown(uri: str, paths: tuple[str, ...]) -> dict[str, Any]:
    return {"table_uri": uri, "objects": len(paths), "first": list(paths[:_SHOWN])}


def _now_us() -> int:
    return time.time_ns() // 1000


def main(argv: list[str] | None = None) -> int:
    """Run the job from the command line; return the exit status."""
    return run_job(NAME, PARSER, run, argv, check=check)


if __name__ == "__main__":
    sys.exit(main())
