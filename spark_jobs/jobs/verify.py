"""Recomputes a stream's certificate on the executors: every byte of both tiers, or of ``__latest``.

The result lists the ranges that were read, and the damage that was found. Exit status 0: all
records are as committed. 1: damage was found; the result has each typed error. 3: a part could not
be reached, so the state is not known.
"""

from __future__ import annotations

import argparse
import hashlib
import json
import sys
from collections.abc import Iterable
from dataclasses import asdict
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final

from broker.errors import CorruptDataError, InvalidRequestError
from broker.model.cut import Cut
from spark_jobs.clients import client_of
from spark_jobs.jobs.job import Facts, Report, parser, run_job
from spark_jobs.maintenance.held_stream import held_stream
from spark_jobs.maintenance.latest_check import check_latest
from spark_jobs.maintenance.table_verify import TableVerdict, verify_held
from spark_jobs.read.scans import refuse_lossy
from tiering.keys.snapshot import latest_table
from tiering.proof.range_proof import RangeProof

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

    from headwater.client import Client

NAME: Final = "verify"
_FINDINGS_SHOWN: Final = 100
PARSER: Final = parser(
    NAME, "Read every byte of a stream again, in parallel, and compare with what was committed."
)
PARSER.add_argument("--stream", required=True, help="the stream")
PARSER.add_argument(
    "--latest", action="store_true", help="verify its key snapshot against the full history instead"
)
PARSER.add_argument("--cut", default=None, help="a saved cut to verify (default: a new cut)")
PARSER.add_argument(
    "--report",
    type=Path,
    default=None,
    metavar="FILE",
    help="write every range with its digest as JSON to FILE",
)


def check(args: argparse.Namespace) -> Cut | None:
    """Return the cut that is given; raises InvalidRequestError and InvalidCutError."""
    saved = None if args.cut is None else Cut.load(args.cut)
    if saved is not None and saved.stream != args.stream:
        raise InvalidRequestError(
            f"the cut belongs to stream {saved.stream!r}, not to {args.stream!r}"
        )
    if saved is not None and args.latest:
        raise InvalidRequestError(
            "--latest verifies the present key snapshot, so it takes no --cut"
        )
    return saved


def run(spark: SparkSession, args: argparse.Namespace, report: Report) -> Facts:
    """Verify a stream or its key snapshot; see the module docstring. Blocks."""
    refuse_lossy(spark)
    saved = check(args)
    client = client_of(args.server)
    if args.latest:
        return _verify_latest(spark, client, args.stream, report)
    with held_stream(client, args.stream, what=NAME, cut=saved) as held:
        facts: dict[str, Any] = {
            "stream": held.stream.name,
            "stream_uuid": held.stream.uuid,
            "table_version": held.cut.table_version,
        }
        verdict = verify_held(spark, held, server=client.address.url)
        _tell(verdict, report)
        done: dict[str, Any] = {
            **facts,
            "ok": verdict.ok,
            "ends": {str(part.partition): int(part.hot_end) for part in held.cut.partitions},
            "records": sum(one.records_count for one in (*verdict.ranges, *verdict.tails)),
            "files": verdict.files_count,
            "bytes": verdict.files_bytes,
            "digest": digest_of(verdict.ranges),
            "ranges_proved": sum(one.proved for one in verdict.ranges),
            "findings": [asdict(one) for one in verdict.findings[:_FINDINGS_SHOWN]],
        }
        if args.report is not None:
            args.report.write_text(json.dumps(done | _details(verdict), indent=1))
        return done


def digest_of(ranges: Iterable[RangeProof]) -> str:
    """Return one digest over the digests of all ledger ranges, which no OPTIMIZE changes."""
    whole = hashlib.sha256()
    for one in ranges:
        whole.update(f"{one.partition} {one.start} {one.end} {one.digest}\n".encode())
    return whole.hexdigest()


def _details(verdict: TableVerdict) -> dict[str, Any]:
    return {
        "ranges": [asdict(one) for one in verdict.ranges],
        "tails": [asdict(one) for one in verdict.tails],
        "findings": [asdict(one) for one in verdict.findings],
    }


def _verify_latest(spark: SparkSession, client: Client, name: str, report: Report) -> Facts:
    with held_stream(client, name, what=NAME) as held:
        latest = None if held.snapshot is None else latest_table(held.lake, held.stream).find()
    if latest is None:
        raise InvalidRequestError(
            f"stream {name!r} has no key snapshot; build one with 'headwater job snapshot'",
            stream=name,
        )
    facts = {
        "stream": name,
        "stream_uuid": latest.stream_uuid,
        "ends": {str(number): int(part.end) for number, part in latest.ranges.items()},
    }
    try:
        # This cut is taken after the key snapshot was read, so it is never behind the key snapshot.
        with held_stream(client, name, what=NAME) as held:
            assert held.snapshot is not None, "a missing table raises an error"
            proof = check_latest(spark, latest, held.snapshot, keys_from=held.cut.keys_from)
    except CorruptDataError as error:
        finding = {"error": type(error).__name__, "message": error.message, "facts": error.facts}
        report.progress(f"{type(error).__name__}: {error.message}")
        return {"ok": False, **facts, "records": 0, "findings": [finding]}
    return {
        **facts,
        "ok": True,
        "latest_version": latest.version,
        "records": proof.records_count,
        "history_records": proof.history_count,
        "findings": [],
    }


def _tell(verdict: TableVerdict, report: Report) -> None:
    for one in verdict.findings:
        report.progress(f"{one.error}: {one.message}")
    report.progress(
        "read again" if verdict.ok else "DAMAGED",
        ranges=len(verdict.ranges),
        proved=sum(one.proved for one in verdict.ranges),
        tails=len(verdict.tails),
        findings=len(verdict.findings),
    )


def main(argv: list[str] | None = None) -> int:
    """Run the job from the command line; return the exit status."""
    return run_job(NAME, PARSER, run, argv, check=check)


if __name__ == "__main__":
    sys.exit(main())
