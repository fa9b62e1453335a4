"""One batch of an ingest: appends ranges as decoded rows, and as rejected rows to a second table.

The watermark in the table decides which offsets are new; the ranges from the checkpoint are only a
hint. Offsets below the watermark are skipped, and a gap is refused. A run that loses a race appends
the rest. New JSON fields stop an append before any row is written; they are pinned, and then the
append is repeated.
"""

from __future__ import annotations

import json
import random
from collections import Counter
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field, replace
from typing import TYPE_CHECKING, Final

import pyarrow as pa

from broker.errors import (
    GapError,
    HeadwaterError,
    InvalidRequestError,
    OverlapError,
    StaleWatermarkError,
    StreamRecreatedError,
)
from broker.model.offsets import Offset, OffsetRange
from spark_jobs.decode.pins import Pin, Pins, grow
from spark_jobs.decode.transform import DecodeTransform, added_fields
from spark_jobs.jobs import begun
from spark_jobs.jobs.job import Report
from spark_jobs.tables import Appended, Appender, Source, Target
from tiering.store.opening import open_store

if TYPE_CHECKING:
    from pyspark.sql import DataFrame, SparkSession

_ATTEMPTS_MAX: Final = 6  # per batch, if another run is quicker or the store does not answer
_BACKOFF_S: Final = 0.5
_GROWTHS_MAX: Final = 1000  # pins that one batch may add; each adds at least one column


@dataclass(slots=True, kw_only=True)
class Totals:
    """The counters of a run, and the ends that its table has reached."""

    ends: dict[int, int] = field(default_factory=dict)
    records_count: int = 0
    gone_count: int = 0  # records that key compaction had removed
    rows_count: int = 0
    rejected_count: int = 0
    bytes_count: int = 0
    batches_count: int = 0
    counts: Counter[str] = field(default_factory=Counter)  # the transform's, see transform.py
    version: int = -1

    def add(self, done: Appended) -> None:
        """Count an append."""
        self.ends |= {number: int(offsets.end) for number, offsets in done.ranges.items()}
        self.records_count += done.records_count
        self.gone_count += done.gone_count
        self.rows_count += done.rows_count
        self.rejected_count += done.rejected_count
        self.bytes_count += done.bytes_count
        self.counts.update(done.counts)
        self.batches_count += 1 if done.ranges else 0
        self.version = max(self.version, done.version)


class Batches:
    """Appends the batches of one query. One thread at a time."""

    def __init__(
        self,
        spark: SparkSession,
        target: Target,
        source: Source,
        *,
        pins: Pins,
        pin: Pin,
        grow: bool,
        firsts: Mapping[int, Offset],
        report: Report,
        behind: Callable[[Mapping[int, int]], int],
    ) -> None:
        """Prepare the first appender and read the table's watermarks.

        Args:
            spark: runs the tasks.
            target: the decoded table; rejected records go to ``<table>__rejected``.
            source: the stream.
            pins: the table's pins; a grown spec is stored there.
            pin: the pin in force.
            grow: whether new JSON fields become columns.
            firsts: the first offset that each partition still holds; a partition that is new to
                the table must begin there, or at the pin's start.
            report: gets the progress of every batch.
            behind: returns the number of committed records above given ends.
        """
        self._spark = spark
        self._target = target
        self._source = source
        self._pins = pins
        self._grow = grow
        self._firsts = firsts
        self._report = report
        self._behind = behind
        self.pin = pin
        self.totals = Totals()
        self._appender = self._made()
        found = self._appender.watermarks()
        self.totals.ends |= {number: int(end) for number, end in found.ends.items()}
        self.totals.version = found.version

    def __call__(self, rows: DataFrame, batch_id: int) -> None:
        """Append one micro-batch of ranges; blocks.

        Raises:
            GapError: records between the table's watermark and the batch would be skipped.
            HeadwaterError: appending failed; retriable errors are raised after several attempts.
        """
        ranges = self.ranges(rows)
        self._require_beginning(ranges)
        done = self._appended(ranges, str(batch_id))
        self.totals.add(done)
        for number, offsets in ranges.items():  # including ranges that another run appended
            end = max(self.totals.ends.get(number, 0), int(offsets.end))
            self.totals.ends[number] = end
        if done.ranges:
            self._report.progress(
                "appended",
                batch=batch_id,
                records=done.records_count,
                rows=done.rows_count,
                rejected=done.rejected_count,
                version=done.version,
                behind=self._behind(self.totals.ends),
            )

    def ranges(self, rows: DataFrame) -> dict[int, OffsetRange]:
        """Collect the batch's slices into one range per partition.

        Raises:
            StreamRecreatedError: a slice belongs to another incarnation of the stream.
            GapError, OverlapError: the slices of a partition are not contiguous.
        """
        found: dict[int, OffsetRange] = {}
        for row in sorted(rows.collect(), key=lambda each: (each["partition"], each["start"])):
            if row["stream_uuid"] != self._source.stream_uuid:
                raise StreamRecreatedError(
                    f"the batch has records of stream {row['stream_uuid']}, but the table is "
                    f"filled from {self._source.stream} {self._source.stream_uuid}",
                    expected=self._source.stream_uuid,
                    found=row["stream_uuid"],
                )
            number, start, end = row["partition"], Offset(row["start"]), Offset(row["end"])
            before = found.get(number)
            if before is not None and start != before.end:
                kind = GapError if start > before.end else OverlapError
                text = f"partition {number}: slices {before} and [{start}, {end}) do not join"
                raise kind(text, partition=number, start=int(before.end), end=int(start))
            found[number] = OffsetRange(start if before is None else before.start, end)
        return found

    def _made(self) -> Appender:
        transform = DecodeTransform(self.pin.spec, grow=self._grow)
        # A pin that has grown may be ahead of the table: new columns are added with their first
        # rows.
        grown = self._grow or self.pin.number > 1
        return Appender(
            self._spark,
            replace(self._target, evolve="add" if grown else "none"),
            self._source,
            transform,
            rejects=begun.rejects_of(self._target),
        )

    def _require_beginning(self, ranges: Mapping[int, OffsetRange]) -> None:
        """Refuse another beginning of a partition than the pinned one.

        An old checkpoint of a lost table would begin in the middle; one of a run with another
        --from would begin too early.
        """
        for number, offsets in ranges.items():
            if number in self.totals.ends or number in self._begun_by_others():
                continue
            first = self.pin.starts.get(number, self._firsts.get(number, Offset(0)))
            if offsets.start > first or (number in self.pin.starts and offsets.start < first):
                raise GapError(
                    f"partition {number}: the table has no records of it, but the batch begins at "
                    f"{offsets.start} instead of {first}. The checkpoint belongs to another table, "
                    "to this table before it was emptied, or to a run with another --from. Remove "
                    "the checkpoint",
                    partition=number,
                    start=int(first),
                    end=int(offsets.start),
                )

    def _begun_by_others(self) -> Mapping[int, Offset]:
        return self._appender.watermarks().ends

    def _appended(self, ranges: Mapping[int, OffsetRange], batch_id: str) -> Appended:
        failures = growths = 0
        self._follow_pin()
        while True:
            try:
                return self._appender.append(ranges, batch_id=batch_id)
            except HeadwaterError as error:
                added = added_fields(error) if self._grow else None
                if added is not None and growths < _GROWTHS_MAX:
                    growths += 1
                    self._finish_begun()
                    self._grown(added)
                    continue
                failures += 1
                if begun.is_of_begun(error) and failures < _ATTEMPTS_MAX:
                    self._finish_begun()
                    continue
                if not error.retriable or failures == _ATTEMPTS_MAX:
                    raise
                if isinstance(error, StreamRecreatedError):
                    raise
                self._report.progress("trying again", error=type(error).__name__)
                pause_s = random.uniform(0, _BACKOFF_S * 2**failures)  # noqa: S311  (no secret)
                if self._report.stop.event.wait(pause_s):
                    raise
                self._follow_pin()  # it may be that another run decodes in another way by now

    def _follow_pin(self) -> None:
        """Use the newest pin: another run may have added columns."""
        newest = self._pins.newest()
        if newest is not None and newest.number != self.pin.number:
            self._use(newest)

    def _use(self, newest: Pin) -> None:
        if newest.starts != self.pin.starts or not newest.spec.grown_from(self.pin.spec):
            raise StaleWatermarkError("another run has set up the table anew; start this job again")
        self.pin = newest
        self._appender = self._made()

    def _finish_begun(self) -> None:
        """Append all that was begun, by the pin of that time; other batches' ranges, too.

        The new pin would judge the rest of these ranges in the next batch.
        """
        finished = begun.finish(
            self._spark, self._target, self._source, self._report, firsts=self._firsts
        )
        for done in begun.of_target(finished, self._target):
            self.totals.add(done)

    def _grown(self, added: pa.Schema) -> None:
        """Pin new columns and use that pin, or the pin that another run has stored meanwhile."""
        newest = grow(open_store(self._target.store), self._target.app, self.pin, added)
        self._report.progress("new columns", names=",".join(added.names), pin=newest.number)
        self._use(newest)


def starting_offsets(ends: Mapping[int, int], pin: Pin, firsts: Mapping[int, Offset]) -> str:
    """Return startingOffsets for a query without a checkpoint: the table's ends, or the starts."""
    if not firsts:
        raise InvalidRequestError(f"stream {pin.stream} has no partition")
    return json.dumps(
        {
            str(number): ends.get(number, int(pin.starts.get(number, first)))
            for number, first in sorted(firsts.items())
        }
    )
