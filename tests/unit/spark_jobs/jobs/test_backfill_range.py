"""The range of a backfill, from arguments, the stream and what the table has."""

from __future__ import annotations

import io
from pathlib import Path
from typing import Any

import pytest

from broker.errors import (
    InvalidRequestError,
    OffsetOutOfRangeError,
    OverlapError,
    StreamRecreatedError,
)
from broker.model.offsets import Offset, OffsetRange
from spark_jobs.decode import ddl, types
from spark_jobs.decode.pins import Pin, Pins, newest_pins
from spark_jobs.decode.spec import DecodeSpec
from spark_jobs.jobs import backfill, backfill_range
from spark_jobs.jobs.job import Report
from spark_jobs.source.lookup import StreamPositions
from spark_jobs.source.positions import AtMs
from spark_jobs.tables import Target, Watermarks
from tiering.store.opening import open_store

UUID = "0f0e0d0c-0b0a-4908-8706-050403020100"


class Held:
    """A stream that holds [10, 100) of two partitions; its offset is its time in seconds."""

    def positions(self, name: str, selection: object) -> StreamPositions:
        """Return the positions of the stream."""
        span = OffsetRange(Offset(10), Offset(100))
        return StreamPositions(name, UUID, {0: span, 1: span})  # type: ignore[arg-type]

    def offset_at(self, stream: StreamPositions, partition: int, at: AtMs) -> Offset:
        """Return where a time is."""
        span = stream.ranges[partition]
        return Offset(min(max(-(-at.timestamp_ms // 1000), span.start), span.end))


def resolved(
    *words: str,
    starts: dict[int, int] | None = None,
    ends: dict[int, int] | None = None,
    others: tuple[tuple[str, int, OffsetRange], ...] = (),
    uuid: str = UUID,
    ingests: dict[str, dict[int, int]] | None = None,
) -> tuple[backfill_range.Resolved, Watermarks]:
    """Return what a command line asks for, and the watermarks of the table."""
    args = backfill.PARSER.parse_args(["--stream", "s", "--table", "t", *words])
    found: Any = Watermarks(version=1, starts=starts or {}, ends=ends or {}, others=others)  # type: ignore[arg-type]
    bounds, pinned = backfill_range.parse(args), ingests or {}
    made = backfill_range.resolve(bounds, Held(), "s", uuid, found, ingests=pinned)  # type: ignore[arg-type]
    return made, found


def resolve(*words: str, **table: Any) -> dict[int, tuple[int, int]]:
    """Return the ranges of a command line."""
    ranges = resolved(*words, **table)[0].ranges
    return {number: (int(one.start), int(one.end)) for number, one in ranges.items()}


def test_everything_by_default_and_on_where_it_was() -> None:
    """A new backfill takes everything; a repeated one keeps its start, even below today's start."""
    assert resolve() == {0: (10, 100), 1: (10, 100)}
    assert resolve(starts={0: 4}, ends={0: 50}) == {0: (4, 100), 1: (10, 100)}


def test_offsets_words_and_times() -> None:
    """Some partitions by JSON, all by words and times; an end below the start is an empty range."""
    assert resolve("--from", '{"1": 20}', "--to", '{"1": 30}') == {1: (20, 30)}
    assert resolve("--from", "latest") == {0: (100, 100), 1: (100, 100)}
    assert resolve("--from", '{"0": -2, "1": 90}', "--to-timestamp", "50000") == {
        0: (10, 50),
        1: (90, 90),
    }
    assert resolve("--from-timestamp", "1970-01-01T00:00:20Z")[0] == (20, 100)
    assert resolve("--from-timestamp", "1970-01-01T01:00:20+01:00")[0] == (20, 100)


def test_it_ends_where_another_appender_began() -> None:
    """An end by word or time ends there; an end by offset is kept, and refused later."""
    others = (("ingest", 0, OffsetRange(Offset(60), Offset(80))),)
    assert resolve(others=others) == {0: (10, 60), 1: (10, 100)}
    assert resolve("--to", '{"0": 70}', "--from", '{"0": 10}', others=others) == {0: (10, 70)}
    assert resolve("--from", '{"0": 80, "1": 10}', others=others)[0] == (80, 100)


def test_it_ends_where_an_ingest_will_begin() -> None:
    """The records from a pinned start on are the ingest's, although it has appended none yet."""
    ingests = {"ingest": {0: 60, 1: 100}}
    assert resolve(ingests=ingests) == {0: (10, 60), 1: (10, 100)}
    assert resolve("--from-timestamp", "80000", ingests=ingests) == {0: (80, 80), 1: (80, 100)}
    assert resolve(ingests={"ingest": {}}) == {0: (10, 10), 1: (10, 10)}, "at the first record"
    assert resolve(ingests={"ingest": {0: 4, 1: 70}}) == {0: (10, 10), 1: (10, 70)}
    assert resolve("--from", '{"0": 20}', "--to", '{"0": 60}', ingests=ingests) == {0: (20, 60)}
    for words in (
        ("--from", '{"0": 20}', "--to", '{"0": 61}'),
        ("--from", '{"0": 60}'),
        ("--from", '{"0": 80}', "--to-timestamp", "90000"),
    ):
        with pytest.raises(InvalidRequestError, match="'ingest', which begins at 60"):
            resolve(*words, ingests=ingests)


def test_an_ingest_that_has_appended_or_never_can_takes_nothing() -> None:
    """An ingest with records counts by these; one whose first record is in the table is past."""
    ingests = {"ingest": {0: 60}}
    others = (
        ("ingest", 0, OffsetRange(Offset(60), Offset(80))),
        ("front", 1, OffsetRange(Offset(10), Offset(30))),
    )
    begin = ("--from", '{"0": 80, "1": 30}')
    assert resolve(*begin, others=others, ingests=ingests) == {0: (80, 100), 1: (30, 100)}
    assert resolve(starts={0: 10, 1: 10}, ends={0: 61, 1: 11}, ingests=ingests) == {
        0: (10, 100),
        1: (10, 100),
    }
    assert resolve(starts={0: 10, 1: 10}, ends={0: 60, 1: 10}, ingests=ingests) == {
        0: (10, 60),
        1: (10, 10),
    }


def test_an_ingest_that_is_blocked_in_one_partition_takes_none() -> None:
    """A batch of the ingest has all partitions; the records of the others would be nobody's."""
    both = {0: (10, 100), 1: (10, 100)}
    assert resolve(starts={0: 10}, ends={0: 100}, ingests={"ingest": {}}) == both
    assert resolve(starts={0: 10}, ends={0: 80}, ingests={"ingest": {0: 60, 1: 10}}) == both
    others = (("ingest", 1, OffsetRange(Offset(20), Offset(50))),)
    apart = resolve(starts={0: 10}, ends={0: 80}, others=others, ingests={"ingest": {0: 60, 1: 20}})
    assert apart == {0: (10, 100), 1: (10, 20)}, "its records of the table stay its own"


def test_an_ingest_that_goes_on_gets_the_first_records_of_a_new_partition() -> None:
    """It is not judged by where it began the others, whatever retention has removed there since."""
    others = (("ingest", 0, OffsetRange(Offset(10), Offset(50))),)
    held = {"starts": {0: 0}, "ends": {0: 10}, "others": others}
    assert resolve(**held, ingests={"ingest": {}}) == {0: (0, 10), 1: (10, 10)}


def test_an_ingest_before_the_records_of_a_backfill_can_never_append_its_own() -> None:
    """It has no end. So the backfill goes on without being told to each time."""
    held = {"starts": {0: 40, 1: 40}, "ends": {0: 70, 1: 70}}
    assert resolve(**held, ingests={"ingest": {}}) == {0: (40, 100), 1: (40, 100)}


def test_a_backfill_goes_on_after_retention_removed_what_it_has() -> None:
    """The stream begins where the backfill ended, which is not where the ingest began."""
    held = {"starts": {0: 0}, "ends": {0: 10}}
    assert resolve(**held, ingests={"ingest": {1: 100}})[0] == (0, 100)
    assert resolve(**held, ingests={"ingest": {0: 4}})[0] == (0, 100)
    assert resolve(**held, ingests={"ingest": {0: 10}})[0] == (0, 10), "it began there itself"


def test_what_is_left_to_an_ingest_is_told() -> None:
    """Each partition whose end is lowered, with the first offset that is left; in a line, too."""
    left, _ = resolved(ingests={"ingest": {0: 60}, "late": {0: 70, 1: 90}})
    lines = io.StringIO()
    assert backfill_range.tell(left, Report("backfill", lines)) == {"ingest": {"0": 60, "1": 10}}
    assert lines.getvalue().endswith(" left_to=ingest, p0 from 60, p1 from 10\n")
    left, _ = resolved("--from", "latest", ingests={"ingest": {}})
    assert left.left == {}, "nothing was asked for"
    assert resolved(ingests={"ingest": {0: 100, 1: 100}})[0].left == {}


def test_to_leave_everything_to_an_ingest_without_rows_is_an_error() -> None:
    """No such backfill succeeds: the ingest may never come. The error names both ways out."""
    both = {0: 60, 1: 60}
    for made, found in (
        resolved(ingests={"ingest": {}}),
        resolved(ingests={"ingest": both}, starts={0: 10, 1: 10}, ends=both),
    ):
        with pytest.raises(OverlapError, match=r"'ingest'.* --instead-of ingest"):
            backfill_range.require_work(made, found)
    backfill_range.require_work(*resolved(ingests={"ingest": {0: 60, 1: 60}}))
    backfill_range.require_work(*resolved("--from", "latest", ingests={"ingest": {}}))
    others = (("ingest", 1, OffsetRange(Offset(20), Offset(50))),)
    made, found = resolved(others=others, ingests={"ingest": {1: 20}}, ends={1: 20}, starts={1: 10})
    assert made.left == {"ingest": {0: 10}}
    backfill_range.require_work(made, found)  # the ingest has rows


def test_whose_pins_are_an_ingests(tmp_path: Path) -> None:
    """A pin says which job stored it; an older one has starts or a name that is an ingest's."""
    store = open_store(Target.at(str(tmp_path / "t")).store)
    spec = DecodeSpec(format="json", schema=types.to_json(ddl.parse("n bigint")))
    other = "1f0e0d0c-0b0a-4908-8706-050403020100"
    for app, uuid, starts, job in (
        ("late", UUID, {0: Offset(60)}, None),
        ("ingest", UUID, {}, None),
        ("like", UUID, {}, None),
        ("front", UUID, {}, None),
        ("backfill", UUID, {}, None),
        ("history", UUID, {}, "backfill"),
        ("eu", UUID, {}, "ingest"),
        ("me", UUID, {}, None),
        ("stranger", other, {0: Offset(9)}, "ingest"),
    ):
        pin = Pin(stream="s", stream_uuid=uuid, starts=starts, spec=spec, job=job)
        assert Pins(store, app).put(pin)
    pins = newest_pins(store)

    def found(like: str, *instead_of: str) -> dict[str, backfill_range.Starts]:
        return backfill_range.ingests_of(pins, UUID, app="me", like=like, instead_of=instead_of)

    sure = {"late": {0: 60}, "ingest": {}, "eu": {}}
    assert found("like") == {**sure, "like": {}}
    assert found("backfill") == found("history") == sure
    assert found("ingest", "eu", "late") == {"ingest": {}}


def test_what_makes_no_sense_is_refused() -> None:
    """An earlier start of a begun one, offsets that are not held, unknown partitions, times."""
    with pytest.raises(InvalidRequestError, match="another --app"):
        resolve("--from", "earliest", starts={0: 40}, ends={0: 50})
    for words in (("--from", '{"0": 5}'), ("--to", '{"0": 101}')):
        with pytest.raises(OffsetOutOfRangeError):
            resolve(*words)
    for words in (
        ("--to", '{"9": 5}'),
        ("--from", '{"s": {"0": 5}}'),
        ("--from", "soon"),
        ("--to-timestamp", "yesterday"),
    ):
        with pytest.raises(InvalidRequestError):
            resolve(*words)
    with pytest.raises(StreamRecreatedError):
        resolve(uuid="1f0e0d0c-0b0a-4908-8706-050403020100")
