"""Finishes what a dead run has begun, before a job decides how it decodes.

If an append dies between its two commits, the rejected table is ahead of the decoded one. Which of
these records are rejected is decided; under other columns or limits other records would be, and
those would be in both tables or in neither. So the rest of such ranges is appended first, by the
pin that rejected their records: the claims of the rejected table name it. That holds for jobs of
other names, too: an ingest and a backfill that fill one table finish each other's appends.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import replace
from typing import TYPE_CHECKING, Final

from broker.errors import (
    HeadwaterError,
    InvalidRequestError,
    SchemaMismatchError,
    StaleWatermarkError,
)
from broker.model.offsets import Offset, OffsetRange
from spark_jobs.decode.pins import Pin, Pins
from spark_jobs.decode.transform import DecodeTransform
from spark_jobs.jobs.job import Report
from spark_jobs.tables import Appended, Appender, Source, Target, committing, plan
from spark_jobs.tables.committing import CommittingTable
from spark_jobs.tables.plan import Begun
from tiering.store.opening import open_store

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

_ATTEMPTS_MAX: Final = 6  # if other runs finish the same ranges


def rejects_of(target: Target) -> Target:
    """Return the table that holds a table's rejected records."""
    return target.beside("__rejected")


def is_of_begun(error: HeadwaterError) -> bool:
    """Tell whether an append was refused because :func:`finish` has to come first."""
    return isinstance(error, SchemaMismatchError) and bool(error.facts.get("begun"))


def finish(
    spark: SparkSession,
    target: Target,
    source: Source,
    report: Report,
    *,
    firsts: Mapping[int, Offset],
    begins: Mapping[int, Offset] | None = None,
) -> list[tuple[str, Appended]]:
    """Append the ranges whose rejected records are committed already, of every appender.

    Each range goes under the name of the appender that began it, decoded by the pin of that
    appender. Returns what was appended, with these names. Ranges that no pin has rejected are left
    alone: the appender refuses to go on with another decode. Blocks.

    A partition that the decoded table has no claim of was begun by its first append, or the table
    had records before the range, and was emptied. Then the range is no beginning. A table of an
    ingest has to begin at the pin's start, or else at the first record, so a range above that is
    left alone. A backfill may have begun anywhere, so it is asked where. Another appender's range
    is judged as that of an ingest: nobody can be asked.

    ``firsts`` has the first offset that each partition still holds. A partition's first append goes
    on from there: earlier records can be read no more. ``begins`` has the offsets at which a
    backfill would begin, and only the partitions that it wants; None: an ingest.

    Raises:
        InvalidRequestError: the backfill would begin below a range that may be the beginning.
        HeadwaterError: as for an append.
    """
    attempts = 1
    while True:
        try:
            return _finished(spark, target, source, report, firsts=firsts, begins=begins)
        except StaleWatermarkError as error:
            if attempts == _ATTEMPTS_MAX:
                raise
            attempts += 1
            report.progress("trying again", error=type(error).__name__)


def _finished(
    spark: SparkSession,
    target: Target,
    source: Source,
    report: Report,
    *,
    firsts: Mapping[int, Offset],
    begins: Mapping[int, Offset] | None,
) -> list[tuple[str, Appended]]:
    tables = CommittingTable(target, source), CommittingTable(rejects_of(target), source)
    ranges_of: dict[tuple[str, str, int | None], dict[int, OffsetRange]] = {}
    newest_of: dict[str, Pin | None] = {}  # of each appender, read once
    for each in committing.begun(*tables, source.stream_uuid):
        if each.began_by not in newest_of:
            newest_of[each.began_by] = _pins(target, each.began_by).newest()
        newest = newest_of[each.began_by]
        wanted: OffsetRange | None = each.offsets
        if newest is None:  # no run has decoded for this appender, or its pins are lost
            wanted = None
        elif each.since is not None:
            first = firsts.get(each.partition, Offset(0))
            if begins is None or each.app != target.app:
                is_beginning = each.since <= newest.starts.get(each.partition, first)
            else:
                is_beginning = _is_asked(each, begins, target)
            wanted = _held(each.offsets, first) if is_beginning else None
        if wanted is not None:
            ranges_of.setdefault((each.app, each.began_by, each.transform), {})[each.partition] = (
                wanted
            )
    found = []
    for (app, began_by, number), ranges in ranges_of.items():
        pin = _pin(_pins(target, began_by), newest_of[began_by], number)
        if pin is None:
            continue
        done = _appender(spark, replace(target, app=app), source, pin).append(
            ranges, batch_id="begun"
        )
        report.progress(
            "finished an interrupted append",
            app=app,
            records=done.records_count,
            pin=pin.number,
            version=done.version,
        )
        found.append((app, done))
    return found


def of_target(finished: Iterable[tuple[str, Appended]], target: Target) -> list[Appended]:
    """Return what :func:`finish` has appended under the name of this target."""
    return [done for app, done in finished if app == target.app]


def _is_asked(each: Begun, begins: Mapping[int, Offset], target: Target) -> bool:
    """Tell whether a backfill takes a range for the beginning of a partition that it wants."""
    assert each.since is not None, "the partition is new to the decoded table"
    number, offsets = each.partition, OffsetRange(each.since, each.offsets.end)
    if number not in begins:
        return False
    if offsets.start <= begins[number]:
        return True
    raise InvalidRequestError(
        f"partition {number}: {rejects_of(target).uri} has rejected records of {offsets}, but "
        f"{target.uri} has no record of the partition, and this run would begin at "
        f"{begins[number]}. If an earlier backfill began at {offsets.start} and was "
        f"interrupted, give --from '{{\"{number}\": {offsets.start}}}'. If {target.uri} was "
        "emptied, remove the table of rejected records, too, then run this job again"
    )


def _held(offsets: OffsetRange, first: Offset) -> OffsetRange | None:
    """Return the part of a range that the stream still holds; None: nothing."""
    start = max(offsets.start, first)
    return OffsetRange(start, offsets.end) if start < offsets.end else None


def _appender(spark: SparkSession, target: Target, source: Source, pin: Pin) -> Appender:
    grown = pin.number > 1  # then it may be ahead of the table
    return Appender(
        spark,
        replace(target, evolve="add") if grown else target,
        source,
        DecodeTransform(pin.spec),
        rejects=rejects_of(target),
    )


def _pins(target: Target, app: str) -> Pins:
    return Pins(open_store(target.store), replace(target, app=app).app)  # a name that is a name


def _pin(pins: Pins, newest: Pin | None, number: int | None) -> Pin | None:
    """Return the pin of a transform; None if no pin is of it."""
    if newest is None or number is None:  # an old build rejected the records, by the newest pin
        return newest
    for at in range(newest.number, 0, -1):
        pin = newest if at == newest.number else pins.at(at)
        if plan.transform_number(DecodeTransform(pin.spec)) == number:
            return pin
    return None
