"""One batch of an ingest over an appender that fails as set: which errors are retried.

The fake appender keeps real watermarks and refuses gaps as the real one does; the real one is under
tests/integration/spark_jobs.
"""

from __future__ import annotations

import io
from collections.abc import Iterator, Mapping
from dataclasses import replace
from pathlib import Path
from types import SimpleNamespace
from typing import Any, Final

import pytest

from broker.errors import (
    GapError,
    HeadwaterError,
    OverlapError,
    SchemaMismatchError,
    StaleWatermarkError,
    StreamRecreatedError,
    UnavailableError,
)
from broker.model.offsets import Offset, OffsetRange
from spark_jobs.decode import ddl, types
from spark_jobs.decode.pins import Pin, Pins
from spark_jobs.decode.spec import DecodeSpec
from spark_jobs.decode.transform import DecodeTransform
from spark_jobs.jobs import begun, ingest_batches
from spark_jobs.jobs.ingest_batches import Batches
from spark_jobs.jobs.job import Report
from spark_jobs.tables import Appended, Source, Target, Watermarks, committing, plan
from tiering.store.opening import open_store

UUID: Final = "8ff10987-013b-4fdf-8f5d-3f093c1a7364"
NEW: Final = SchemaMismatchError("new fields", added=types.to_json(ddl.parse("x bigint")))


class Tables:
    """The watermarks of the table and of its rejected records, and errors for the next appends."""

    def __init__(self) -> None:
        self.ends: dict[str, dict[int, Offset]] = {"main": {}, "rejects": {}}
        self.errors: Iterator[HeadwaterError | None] = iter(())
        self.appends: list[tuple[dict[int, tuple[int, int]], int, bool]] = []
        self.number: int | None = None  # of the transform that rejected records

    def appender(
        self,
        _spark: Any,
        target: Target,
        _source: Source,
        transform: DecodeTransform | None = None,
        *,
        rejects: Target | None = None,
    ) -> Any:
        """Stand in for the class Appender."""
        assert rejects is not None
        assert rejects.uri == target.uri + "__rejected"
        assert transform is not None
        ends = self.ends["main"]

        def append(ranges: Mapping[int, OffsetRange], *, batch_id: str) -> Appended:
            assert batch_id
            given = {number: (int(r.start), int(r.end)) for number, r in ranges.items()}
            self.appends.append((given, len(transform.output_schema), transform._grow))
            error = next(self.errors, None) if transform._grow else None
            if error is not None:
                raise error
            claims = {
                n: plan.AppendClaim(start=Offset(0), end=e, rows_count=0) for n, e in ends.items()
            }
            new = plan.cut(ranges, claims)
            ends.update({number: offsets.end for number, offsets in new.items()})
            return Appended(version=1, ranges=new, rows_count=1)

        return SimpleNamespace(
            watermarks=lambda: Watermarks(version=0, ends=dict(ends), starts={}),
            append=append,
        )

    def begun(self, *_: object) -> list[plan.Begun]:
        """Stand in for the function of the same name: the rejected table is ahead."""
        ends = self.ends["main"]
        return [
            plan.Begun(
                app="ingest",
                began_by="ingest",
                partition=n,
                offsets=OffsetRange(ends.get(n, Offset(0)), end),
                transform=self.number,
                since=None if n in ends else Offset(0),
            )
            for n, end in self.ends["rejects"].items()
            if end > ends.get(n, 0)
        ]


@pytest.fixture
def tables(monkeypatch: pytest.MonkeyPatch) -> Tables:
    """Tables in memory instead of the appender."""
    made = Tables()
    monkeypatch.setattr(ingest_batches, "Appender", made.appender)
    monkeypatch.setattr(begun, "Appender", made.appender)
    monkeypatch.setattr(committing, "begun", made.begun)
    monkeypatch.setattr(ingest_batches, "_BACKOFF_S", 0.0)
    return made


@pytest.fixture
def pins(tmp_path: Path) -> Pins:
    """The pins of a table, the first of which is there: one column, partition 1 from 50 on."""
    made = Pins(open_store(Target.at(str(tmp_path / "t")).store), "ingest")
    spec = DecodeSpec(format="json", schema=types.to_json(ddl.parse("n bigint")))
    assert made.put(Pin(stream="s", stream_uuid=UUID, starts={1: Offset(50)}, spec=spec))
    return made


@pytest.fixture
def batches(tables: Tables, pins: Pins, tmp_path: Path) -> Batches:
    """Batches that grow, of a stream that still holds everything from offset 5 on."""
    assert tables.ends["main"] == {}
    pin = pins.newest()
    assert pin is not None
    return Batches(
        None,  # type: ignore[arg-type]  # the fake appender runs no tasks
        Target.at(str(tmp_path / "t"), app="ingest"),
        Source(stream="s", stream_uuid=UUID),
        pins=pins,
        pin=pin,
        grow=True,
        firsts={0: Offset(5), 1: Offset(5)},
        report=Report("ingest", io.StringIO()),
        behind=lambda _ends: 0,
    )


def batch(*slices: tuple[int, int, int], uuid: str = UUID) -> Any:
    """Return what Spark hands over: one row per slice."""
    found = [
        {"stream_uuid": uuid, "partition": number, "start": start, "end": end}
        for number, start, end in slices
    ]
    return SimpleNamespace(collect=lambda: found)


def test_slices_become_one_range_per_partition(batches: Batches, tables: Tables) -> None:
    """The slices may come in any order; the reported ends and counts are the table's."""
    batches(batch((0, 20, 30), (1, 50, 60), (0, 5, 20)), 7)
    assert tables.appends == [({0: (5, 30), 1: (50, 60)}, 5, True)]
    assert batches.totals.ends == {0: 30, 1: 60}
    assert (batches.totals.records_count, batches.totals.batches_count) == (35, 1)
    batches(batch((0, 5, 30)), 8)  # an older checkpoint's
    assert (batches.totals.records_count, batches.totals.batches_count) == (35, 1)


@pytest.mark.parametrize(
    ("rows", "kind"),
    [
        (batch((0, 5, 20), (0, 21, 30)), GapError),
        (batch((0, 5, 20), (0, 19, 30)), OverlapError),
        (batch((0, 5, 20), uuid="00000000-013b-4fdf-8f5d-3f093c1a7364"), StreamRecreatedError),
        (batch((0, 6, 20)), GapError),
        (batch((1, 51, 60)), GapError),
        (batch((1, 40, 60)), GapError),
    ],
)
def test_a_batch_that_would_skip_or_mix_is_refused(
    batches: Batches, tables: Tables, rows: Any, kind: type[HeadwaterError]
) -> None:
    """Holes, another stream, and a partition that begins too late or too early append nothing."""
    with pytest.raises(kind):
        batches(rows, 0)
    assert tables.appends == []


def test_what_retention_has_removed_meanwhile_is_no_other_beginning(batches: Batches) -> None:
    """A partition without a pinned start begins where the stream began when the batch was cut."""
    batches(batch((0, 3, 20)), 0)
    assert batches.totals.ends == {0: 20}


def test_who_lost_a_race_appends_what_is_left(batches: Batches, tables: Tables) -> None:
    """Errors that a retry can cure are retried, the others raised at once, the count is bounded."""
    tables.errors = iter([StaleWatermarkError("lost"), UnavailableError("away"), None])
    batches(batch((0, 5, 20)), 0)
    assert len(tables.appends) == 3
    assert batches.totals.ends == {0: 20}
    for error, tries in ((GapError("x"), 1), (StreamRecreatedError("x"), 1)):
        tables.appends.clear()
        tables.errors = iter([error] * 100)
        with pytest.raises(type(error)):
            batches(batch((0, 20, 30)), 1)
        assert len(tables.appends) == tries
    tables.appends.clear()
    tables.errors = iter([UnavailableError("away")] * 100)
    with pytest.raises(UnavailableError):
        batches(batch((0, 20, 30)), 1)
    assert 1 < len(tables.appends) < 20


def test_another_run_may_begin_a_partition(batches: Batches, tables: Tables) -> None:
    """Its appended rows are passed over, and the rows after them are no gap."""
    tables.ends["main"] |= {0: Offset(20), 1: Offset(70)}
    batches(batch((0, 5, 20)), 0)
    assert batches.totals.records_count == 0
    batches(batch((0, 20, 30), (1, 60, 70)), 1)
    assert batches.totals.records_count == 10
    assert batches.totals.ends == {0: 30, 1: 70}


def test_new_fields_are_pinned_before_they_are_written(
    batches: Batches, tables: Tables, pins: Pins
) -> None:
    """The append is repeated with one more column, and the pin has it."""
    tables.errors = iter([NEW, None])
    batches(batch((0, 5, 20)), 0)
    assert [columns for _, columns, _ in tables.appends] == [5, 6]
    newest = pins.newest()
    assert newest is not None
    assert (newest.number, batches.pin) == (2, newest)


def test_a_new_field_gets_the_type_that_a_backfill_gave_it(
    batches: Batches, tables: Tables, tmp_path: Path
) -> None:
    """The table has one type for a column, so another type in the pin would end each later run."""
    spec = batches.pin.spec.with_fields(ddl.parse("y string, x double"))
    backfill = Pins(open_store(Target.at(str(tmp_path / "t")).store), "backfill")
    assert backfill.put(Pin(stream="s", stream_uuid=UUID, starts={}, spec=spec))
    tables.errors = iter([NEW, None])
    batches(batch((0, 5, 20)), 0)
    assert batches.pin.spec.schema == types.to_json(ddl.parse("n bigint, x double"))


def test_what_was_begun_ends_by_the_old_pin(batches: Batches, tables: Tables) -> None:
    """All ranges whose rejected records are committed are appended with the columns of that time.

    Also those above the batch, and of other partitions: the next batch decodes by the new pin.
    """
    tables.ends["main"] |= {0: Offset(10), 1: Offset(50)}
    tables.ends["rejects"] |= {0: Offset(25), 1: Offset(60)}
    batches.totals.ends[0] = 10
    tables.errors = iter([NEW, None])
    batches(batch((0, 5, 20)), 0)
    assert tables.appends == [
        ({0: (5, 20)}, 5, True),
        ({0: (10, 25), 1: (50, 60)}, 5, False),
        ({0: (5, 20)}, 6, True),
    ]
    assert batches.totals.records_count == 25


def test_a_run_that_meets_what_was_begun_finishes_it_by_its_pin(
    batches: Batches, tables: Tables, pins: Pins
) -> None:
    """An older pin of the table rejected the records; a refusal for ever ends the run."""
    tables.number = plan.transform_number(DecodeTransform(batches.pin.spec))
    assert pins.put(replace(batches.pin, spec=batches.pin.spec.with_fields(ddl.parse("y string"))))
    tables.ends["rejects"][0] = Offset(15)
    refusal = SchemaMismatchError("decoded in another way", begun=True)
    tables.errors = iter([refusal, None])
    batches(batch((0, 5, 20)), 0)
    assert [columns for _, columns, _ in tables.appends] == [6, 5, 6]
    tables.errors = iter([refusal] * 100)
    with pytest.raises(SchemaMismatchError):
        batches(batch((0, 20, 30)), 1)


def test_columns_that_another_run_pinned_are_followed(
    batches: Batches, tables: Tables, pins: Pins
) -> None:
    """Each batch decodes by the newest pin; a table set up anew ends the run."""
    grown = pins.put(
        Pin(
            stream="s",
            stream_uuid=UUID,
            starts=batches.pin.starts,
            spec=batches.pin.spec.with_fields(ddl.parse("y string")),
            number=1,
        )
    )
    assert grown is not None
    batches(batch((0, 5, 20)), 0)
    assert tables.appends[0][1] == 6
    raw = DecodeSpec(format="raw")
    assert pins.put(
        Pin(stream="s", stream_uuid=UUID, starts=batches.pin.starts, spec=raw, number=2)
    )
    with pytest.raises(StaleWatermarkError, match="set up the table anew"):
        batches(batch((0, 20, 30)), 1)


def test_another_beginning_that_another_run_pinned_is_not_followed(
    batches: Batches, tables: Tables, pins: Pins
) -> None:
    """What lies between the two beginnings would be in the table never."""
    assert pins.put(replace(batches.pin, starts={1: Offset(20)}, number=1))
    with pytest.raises(StaleWatermarkError, match="start this job again"):
        batches(batch((1, 50, 60)), 0)
    assert tables.appends == []
