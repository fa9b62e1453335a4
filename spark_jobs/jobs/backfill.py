"""Appends a bounded part of a stream's history to a table, each record once.

The table holds the progress of the backfill: a watermark per partition, under the backfill's own
application id. So a backfill may be killed, started again, or run twice at once; a run that loses a
race goes on after the winner. If an ingest appends to the same table, or is set up to, the backfill
stops at the offset where the ingest begins, so no offset is in a table twice. A lease keeps the
records that are not read yet. After SIGTERM the current chunk is finished, and the exit status says
that the job has to be run again, if records remain. The file is not split: it is one job, and its
range is a module already.
"""

from __future__ import annotations

import argparse
import random
import sys
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from functools import partial
from typing import TYPE_CHECKING, Final

from broker.errors import (
    HeadwaterError,
    InvalidRequestError,
    SchemaMismatchError,
    StreamRecreatedError,
)
from broker.model.offsets import Offset, OffsetRange
from headwater.reads.lease_keeper import KEEPER, LEASE_TTL_MS_DEFAULT
from spark_jobs.clients import client_of
from spark_jobs.decode.pins import Pin, Pins, agreed, continued, grow, newest_pins
from spark_jobs.decode.spec import DecodeSpec
from spark_jobs.decode.transform import DecodeTransform, added_fields
from spark_jobs.jobs import backfill_range, begun, ingest_setup
from spark_jobs.jobs.job import Facts, Report, parser, run_job
from spark_jobs.source.lookup import BrokerLookup
from spark_jobs.tables import Appended, Appender, Source, Target, Watermarks, plan
from spark_jobs.tables.redecode import Redecoded, Redecoder
from tiering.store.opening import open_store

if TYPE_CHECKING:
    import pyarrow as pa
    from pyspark.sql import SparkSession

    from headwater.client import Client

NAME: Final = "backfill"
RECORDS_PER_CHUNK: Final = 4_000_000
_FAILURES_MAX: Final = 8  # in a row, without any progress
_BACKOFF_S: Final = 0.25
_GROWTHS_MAX: Final = 1000  # pins that one run may add; each adds at least one column


def _parser() -> argparse.ArgumentParser:
    made = parser(
        NAME,
        "Append a bounded part of a stream's history to a Delta table, each record once, in chunks "
        "of one commit each. It is safe to run this job twice, to run two at once, to kill and to "
        "resume it: the table holds its progress. Without arguments for decoding, rows are decoded "
        "like those of the ingest into the same table; without an ingest they are the stream's.",
    )
    made.add_argument("--stream", required=True, help="the stream to read")
    made.add_argument(
        "--table", required=True, metavar="URI", help="the Delta table: s3://…, file://… or a path"
    )
    backfill_range.add_arguments(made)
    made.add_argument(
        "--records-per-chunk",
        type=int,
        metavar="N",
        default=RECORDS_PER_CHUNK,
        help=f"about how many records go into one commit (default: {RECORDS_PER_CHUNK})",
    )
    made.add_argument(
        "--partition-by",
        metavar="NAMES",
        default=None,
        help="partition columns of a new table, chosen from its columns after decoding",
    )
    made.add_argument(
        "--app",
        default=NAME,
        help="name of the appender; runs with one name share the work, another name is for another "
        f"range (default: {NAME})",
    )
    made.add_argument(
        "--like",
        metavar="APP",
        default=backfill_range.INGEST,
        help="decode like the ingest of this name, if it has set up the table (default: ingest)",
    )
    made.add_argument(
        "--instead-of",
        action="append",
        metavar="APP",
        default=[],
        help="append also the records that are left to the ingest of this name, which is set up "
        "but has appended nothing; it cannot append them any more",
    )
    made.add_argument(
        "--redecode",
        action="store_true",
        help="read no records of the stream; decode the records in <table>__rejected again, with "
        "the arguments given here or as pinned, and move those that decode now into the table",
    )
    ingest_setup.add_arguments(made)
    return made


PARSER: Final = _parser()


@dataclass(slots=True, kw_only=True)
class _Totals:
    version: int = -1
    ends: dict[int, int] = field(default_factory=dict)
    records_count: int = 0
    gone_count: int = 0  # records that key compaction had removed
    rows_count: int = 0
    rejected_count: int = 0
    bytes_count: int = 0
    chunks_count: int = 0

    def add(self, done: Appended) -> None:
        self.version = max(self.version, done.version)
        self.records_count += done.records_count
        self.gone_count += done.gone_count
        self.rows_count += done.rows_count
        self.rejected_count += done.rejected_count
        self.bytes_count += done.bytes_count
        self.chunks_count += bool(done.ranges)


def check(args: argparse.Namespace) -> backfill_range.Bounds:
    """Return the range; raises InvalidRequestError. Needs neither broker nor Spark."""
    if args.records_per_chunk < 1:
        raise InvalidRequestError("--records-per-chunk must be at least 1")
    ingest_setup.check(args)
    return backfill_range.parse(args)


def run(spark: SparkSession, args: argparse.Namespace, report: Report) -> Facts:
    """Append the range, or the rest of it; see the module docstring. Blocks.

    Raises:
        InvalidRequestError: the range is not valid, or differs from the one that was begun.
        GapError: records of the range are gone already.
        OverlapError: another appender has appended a part of a range that was given by offsets, or
            everything is left to an ingest that has appended nothing yet.
        HeadwaterError: appending failed; retriable errors are raised after several attempts.
    """
    bounds = check(args)
    client = client_of(args.server)
    stream = client.stream(args.stream)
    source = Source(stream=stream.name, stream_uuid=stream.uuid, server=client.address.url)
    names = tuple(name.strip() for name in (args.partition_by or "").split(",") if name.strip())
    target = Target.at(args.table, app=args.app, partition_by=names)
    if args.redecode:
        return _redecode(args, target, source, report)
    lease = client.take_lease(stream.name, ttl_ms=LEASE_TTL_MS_DEFAULT)
    KEEPER.hold(
        lease,
        client=client,
        ttl_ms=LEASE_TTL_MS_DEFAULT,
        drop_at_end=True,
        what=f"backfill of {stream.name}",
    )
    try:
        totals = _Totals()
        resolved = partial(
            _resolved, args=args, bounds=bounds, client=client, source=source, target=target
        )
        finish = partial(
            _finish, spark, target, source, client=client, report=report, totals=totals
        )

        def finish_first() -> None:
            finish(resolved(Appender(spark, target, source).watermarks()).ranges)

        pin = _pin(spark, args, target, source, client=client, finish=finish_first)
        decoding = _Decoding(spark, target, source, pin=pin, grow=args.evolve == "add")
        found = decoding.appender.watermarks()
        asked = resolved(found)
        left_to, wanted = backfill_range.tell(asked, report), asked.ranges
        backfill_range.require_work(asked, found)
        total = sum(len(offsets) for offsets in wanted.values())
        version = "no table" if found.version < 0 else found.version
        report.progress("begins", records=total, table=target.uri, version=version)
        totals.version = found.version
        totals.ends = {number: int(end) for number, end in found.ends.items()}
        _append_all(
            decoding, wanted, totals, report, chunk_max=args.records_per_chunk, finish=finish
        )
    finally:
        KEEPER.release(lease.lease_id)
    return {
        "stream": source.stream,
        "stream_uuid": source.stream_uuid,
        "table": target.uri,
        "ends": {str(number): end for number, end in sorted(totals.ends.items())},
        "records": totals.records_count,
        "compacted": totals.gone_count,
        "rows": totals.rows_count,
        "rejected": totals.rejected_count,
        "bytes": totals.bytes_count,
        "chunks": totals.chunks_count,
        "version": totals.version,
        "remaining": sum(len(one) for one in _remaining(wanted, totals.ends).values()),
        "left_to": left_to,
        "stopped_by": report.stop.signal,
    }


def _resolved(
    found: Watermarks,
    *,
    args: argparse.Namespace,
    bounds: backfill_range.Bounds,
    client: Client,
    source: Source,
    target: Target,
) -> backfill_range.Resolved:
    """Return the ranges to append, which end where an ingest of the table begins."""
    uuid, pins = source.stream_uuid, newest_pins(open_store(target.store))
    ingests = backfill_range.ingests_of(
        pins, uuid, app=target.app, like=args.like, instead_of=args.instead_of
    )
    lookup = BrokerLookup(client)
    return backfill_range.resolve(bounds, lookup, source.stream, uuid, found, ingests=ingests)


def _redecode(args: argparse.Namespace, target: Target, source: Source, report: Report) -> Facts:
    """Decode rejected records again; move those that decode now into the table."""
    pins = newest_pins(open_store(target.store))
    app = target.app if target.app in pins else args.like
    pin = pins.get(app)
    if pin is None:
        raise InvalidRequestError(
            f"{target.uri} was never set up for decoding, so it has no rejected records"
        )
    if pin.stream_uuid != source.stream_uuid:
        raise _other_stream(pin, source)
    # What is moved is deleted here as it was, so columns that another appender added count, too.
    same = [one.spec for one in pins.values() if one.stream_uuid == source.stream_uuid]
    known = continued(pin.spec, same)
    grows = args.evolve == "add"
    if grows or pin.number > 1 or known != pin.spec:
        target = replace(target, evolve="add")
    spec = ingest_setup.respecified(args, known)

    store, is_json = open_store(target.store), pin.spec.format == "json"

    def pinned(added: pa.Schema) -> pa.Schema:
        added, newest = agreed(spec, added, same), Pins(store, app).newest()
        if newest is not None and is_json:  # else the arguments ask for another format this once
            grow(store, app, newest, added)
        return added

    done = _decoded_again(target, source, spec, pinned=pinned if grows else None, report=report)
    return {
        "stream": source.stream,
        "stream_uuid": source.stream_uuid,
        "table": target.uri,
        "records": done.examined_count,
        "rows": done.rows_count,
        "rejected": done.rejected_count,
        "waiting": done.waiting_count,
    }


def _decoded_again(
    target: Target,
    source: Source,
    spec: DecodeSpec,
    *,
    pinned: Callable[[pa.Schema], pa.Schema] | None,
    report: Report,
) -> Redecoded:
    """Move what decodes now; with ``pinned``, pin new fields that were found, and begin again.

    A rejected record is deleted when it is moved, so a later run has to know the columns.
    """
    while True:
        transform = DecodeTransform(spec, grow=pinned is not None)
        redecoder = Redecoder(target, begun.rejects_of(target), source, transform)
        try:
            return _patiently(redecoder, report)
        except SchemaMismatchError as error:
            added = added_fields(error)
            if added is None or pinned is None:
                raise
            added = pinned(added)
        spec = spec.with_fields(added)
        report.progress("new columns", names=",".join(added.names))


def _patiently(redecoder: Redecoder, report: Report) -> Redecoded:
    failures = 0
    while True:
        try:
            return redecoder.run()
        except HeadwaterError as error:
            failures += 1
            if not error.retriable or failures == _FAILURES_MAX:
                raise
            report.progress("trying again", error=type(error).__name__)
            report.stop.event.wait(random.uniform(0, _BACKOFF_S * 2**failures))  # noqa: S311


def _other_stream(pin: Pin, source: Source) -> StreamRecreatedError:
    return StreamRecreatedError(
        f"the table is set up for stream {pin.stream} {pin.stream_uuid}, but this run reads "
        f"{source.stream} {source.stream_uuid}; use another table",
        expected=pin.stream_uuid,
        found=source.stream_uuid,
    )


def _append_all(
    decoding: _Decoding,
    wanted: Mapping[int, OffsetRange],
    totals: _Totals,
    report: Report,
    *,
    chunk_max: int,
    finish: Callable[[Mapping[int, OffsetRange]], bool],
) -> None:
    """Append chunk after chunk; another run of the same name may take some of them.

    If that run decodes by another pin, this run may meet the half of its append. It gets the time
    of a pause to commit the rest; then ``finish`` does, by that pin.
    """
    failures = growths = 0
    while not report.stop.event.is_set():
        remaining = _remaining(wanted, totals.ends)
        if not remaining:
            return
        try:
            piece = plan.chunk(remaining, chunk_max)
            done = decoding.appender.append(piece, batch_id=f"chunk-{totals.chunks_count}")
        except HeadwaterError as error:
            added = decoding.added(error)
            if added is not None and growths < _GROWTHS_MAX:
                growths += 1
                finish(wanted)  # what was begun ends by the pin that began it
                decoding.grow(added, report)
                totals.ends |= _ends(decoding.appender)
                continue
            failures += 1
            final = isinstance(error, StreamRecreatedError) or failures == _FAILURES_MAX
            is_begun = begun.is_of_begun(error)
            if final or not (error.retriable or is_begun):
                raise
            report.progress("trying again", error=type(error).__name__)
            pause_s = random.uniform(0, _BACKOFF_S * 2**failures)  # noqa: S311  (no secret)
            report.stop.event.wait(pause_s)
            finished = is_begun and finish(wanted)
            before = dict(totals.ends)
            totals.ends |= _ends(decoding.appender)
            if totals.ends != before or finished:
                failures = 0  # another run made progress, or what was begun is finished
            elif is_begun:
                raise  # no pin of the table can finish it
            continue
        failures = 0
        totals.add(done)
        totals.ends |= {number: int(offsets.end) for number, offsets in piece.items()}
        report.progress(
            "appended",
            records=done.records_count,
            rows=done.rows_count,
            rejected=done.rejected_count,
            version=done.version,
            remaining=sum(len(each) for each in _remaining(wanted, totals.ends).values()),
        )


def _ends(appender: Appender) -> dict[int, int]:
    return {number: int(end) for number, end in appender.watermarks().ends.items()}


def _remaining(
    wanted: Mapping[int, OffsetRange], ends: Mapping[int, int]
) -> dict[int, OffsetRange]:
    """Return the ranges that are not appended yet; a begun partition goes on at its watermark."""
    found = {}
    for number, offsets in wanted.items():
        start = max(int(offsets.start), ends.get(number, 0))
        if start < offsets.end:
            found[number] = OffsetRange(Offset(start), offsets.end)
    return found


def _finish(
    spark: SparkSession,
    target: Target,
    source: Source,
    wanted: Mapping[int, OffsetRange],
    *,
    client: Client,
    report: Report,
    totals: _Totals,
) -> bool:
    """Finish what a run has begun, before this run appends what it wants; count its own part.

    Returns whether anything was appended, under any name.
    """
    described = client.describe(source.stream)
    finished = begun.finish(
        spark,
        target,
        source,
        report,
        firsts={part.partition: part.start for part in described.partitions},
        begins={number: offsets.start for number, offsets in wanted.items()},
    )
    for done in begun.of_target(finished, target):
        totals.add(done)
    return any(done.ranges for _, done in finished)


class _Decoding:
    """How the rows of one run are decoded; with ``grow``, new JSON fields are pinned."""

    def __init__(
        self, spark: SparkSession, target: Target, source: Source, *, pin: Pin | None, grow: bool
    ) -> None:
        self._spark = spark
        self._target = target
        self._source = source
        self._grows = grow
        self.pin = pin
        self.appender = self._made()

    def _made(self) -> Appender:
        """Return the appender; it decodes if the table is set up for decoding."""
        target, pin = self._target, self.pin
        if pin is None:
            return Appender(self._spark, target, self._source)
        if self._grows or pin.number > 1:  # a pin that has grown may be ahead of the table
            target = replace(target, evolve="add")
        return Appender(
            self._spark,
            target,
            self._source,
            DecodeTransform(pin.spec, grow=self._grows),
            rejects=begun.rejects_of(target),
        )

    def added(self, error: HeadwaterError) -> pa.Schema | None:
        """Return the new fields for which an append has to be repeated; None: another cause."""
        return added_fields(error) if self._grows else None

    def grow(self, added: pa.Schema, report: Report) -> None:
        """Pin new columns; if another run of this name stores a pin first, that pin is in force."""
        assert self.pin is not None, "only a decoder finds new fields"
        newest = grow(open_store(self._target.store), self._target.app, self.pin, added)
        report.progress("new columns", names=",".join(added.names), pin=newest.number)
        self.pin = newest
        self.appender = self._made()


def _pin(
    spark: SparkSession,
    args: argparse.Namespace,
    target: Target,
    source: Source,
    *,
    client: Client,
    finish: Callable[[], None],
) -> Pin | None:
    """Return the pin for decoding, or None for no decoding; finish what was begun before.

    That is the pin of an earlier run, else a new pin from the arguments, else the ingest's pin.
    """
    store = open_store(target.store)
    own = Pins(store, target.app)
    asked = ingest_setup.says_anything(args)
    is_pinned = own.newest() is not None
    if not is_pinned and not asked:
        like = Pins(store, args.like).newest()
        if like is None:
            return None
        if like.stream_uuid != source.stream_uuid:
            raise _other_stream(like, source)
        finish()
        made = replace(like, starts={}, job=NAME, number=0)
        return own.put(made) or own.newest()
    finish()
    return ingest_setup.settle(
        argparse.Namespace(**{**vars(args), "starting_offsets": None}),
        own,
        described=client.describe(source.stream),
        watermarks=Appender(spark, target, source).watermarks(),
        client=client,
        job=NAME,
    )


def main(argv: Sequence[str] | None = None) -> int:
    """Run from a command line; return the exit status."""
    return run_job(NAME, PARSER, run, argv, check=check)


if __name__ == "__main__":
    sys.exit(main())
