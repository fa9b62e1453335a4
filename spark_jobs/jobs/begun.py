"""Finishes what a dead run has begun, before a job decides how it decodes.

If an append dies between its two commits, the rejected table is ahead of the decoded one. Which of
these records are rejected is decided; under other columns or limits other records would be, and
those would be in both tables or in neither. So the rest of such ranges is appended first, by the
pin that rejected their records: the claims of the rejected table name it.
"""

from __future__ import annotations

from collections.abc import Mapping
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
from spark_jobs.tables import Appended, Appender, Source, Target, plan

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
    pins: Pins,
    report: Report,
    *,
    firsts: Mapping[int, Offset],
    begins: Mapping[int, Offset] | None = None,
) -> list[Appended]:
    """Append the ranges whose rejected records are committed already; return what was appended.

    A table without a pin is left alone: no run has decoded for it. Ranges that no pin of the table
    has rejected are left alone, too: the appender refuses to go on with another decode. Blocks.

    A partition that the decoded table has no claim of was begun by its first append, or the table
    had records before the range, and was emptied. Then the range is no beginning. A table of an
    ingest has to begin at the pin's start, or else at the first record, so a range above that is
    left alone. A backfill may have begun anywhere, so it is asked where.

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
            return _finished(spark, target, source, pins, report, firsts=firsts, begins=begins)
        except StaleWatermarkError as error:
            if attempts == _ATTEMPTS_MAX:
                raise
            attempts += 1
            report.progress("trying again", error=type(error).__name__)


def _finished(
    spark: SparkSession,
    target: Target,
    source: Source,
    pins: Pins,
    report: Report,
    *,
    firsts: Mapping[int, Offset],
    begins: Mapping[int, Offset] | None,
) -> list[Appended]:
    newest = pins.newest()
    if newest is None:
        return []
    looking = _appender(spark, target, source, newest)
    begun = looking.begun()
    held = looking.watermarks().ends if begun else {}
    ranges_of: dict[int | None, dict[int, OffsetRange]] = {}
    for partition, (offsets, number) in begun.items():
        wanted: OffsetRange | None = offsets
        if partition not in held:
            first = firsts.get(partition, Offset(0))
            if begins is None:
                is_beginning = offsets.start <= newest.starts.get(partition, first)
            else:
                is_beginning = _is_asked(partition, offsets, begins, target)
            wanted = _held(offsets, first) if is_beginning else None
        if wanted is not None:
            ranges_of.setdefault(number, {})[partition] = wanted
    found = []
    for number, ranges in ranges_of.items():
        pin = _pin(pins, newest, number)
        if pin is None:
            continue
        done = _appender(spark, target, source, pin).append(ranges, batch_id="begun")
        report.progress(
            "finished an interrupted append",
            records=done.records_count,
            pin=pin.number,
            version=done.version,
        )
        found.append(done)
    return found


def _is_asked(
    partition: int, offsets: OffsetRange, begins: Mapping[int, Offset], target: Target
) -> bool:
    """Tell whether a backfill takes a range for the beginning of a partition that it wants."""
    if partition not in begins:
        return False
    if offsets.start <= begins[partition]:
        return True
    raise InvalidRequestError(
        f"partition {partition}: {rejects_of(target).uri} has rejected records of {offsets}, but "
        f"{target.uri} has no record of the partition, and this run would begin at "
        f"{begins[partition]}. If an earlier backfill began at {offsets.start} and was "
        f"interrupted, give --from '{{\"{partition}\": {offsets.start}}}'. If {target.uri} was "
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


def _pin(pins: Pins, newest: Pin, number: int | None) -> Pin | None:
    """Return the pin of a transform; None if no pin is of it."""
    if number is None:  # an old build rejected the records, by the pin of that time
        return newest
    for at in range(newest.number, 0, -1):
        pin = newest if at == newest.number else pins.at(at)
        if plan.transform_number(DecodeTransform(pin.spec)) == number:
            return pin
    return None
