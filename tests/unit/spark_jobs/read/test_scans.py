"""Where the table ends and the log begins: each offset of a cut is read from one of them, once."""

from __future__ import annotations

import itertools
import re
from collections import Counter
from types import SimpleNamespace
from typing import Any, cast

import pytest

from broker.model.cut import Cut, Lease, PartitionCut
from broker.model.epochs import LeaderEpoch
from broker.model.ids import LeaseId, StreamUuid
from broker.model.offsets import Offset, OffsetRange
from spark_jobs.read import scans
from spark_jobs.read.scans import cold_predicate, log_options, rows_of, seams
from spark_jobs.source.batch_plan import is_fixed
from spark_jobs.source.columns import ROW_COLUMNS
from spark_jobs.source.options import parse_batch
from spark_jobs.source.partitions import plan, resolve
from spark_jobs.source.positions import of_stream

_SPAN = re.compile(r"\(`partition` = (\d+) AND `offset` >= (\d+) AND `offset` < (\d+)\)")
UUID = StreamUuid("0f0e0d0c-0b0a-4908-8706-050403020100")


def cut_with(*partitions: tuple[int, int, int, int | None]) -> Cut:
    """Return a cut by (start, cold end, hot end, until) of each partition."""
    return Cut(
        cluster="c",
        stream="s",
        stream_uuid=UUID,
        subject="s",
        table_uri="/lake/default/s",
        table_version=3,
        partitions=tuple(
            PartitionCut(
                partition=number,
                start=Offset(start),
                cold_end=Offset(cold),
                hot_end=Offset(hot),
                leader_epoch=LeaderEpoch(1),
                until=None if until is None else Offset(until),
            )
            for number, (start, cold, hot, until) in enumerate(partitions)
        ),
        taken_us=1,
        lease=Lease(lease_id=LeaseId("lease"), expires_us=2),
    )


def test_spark_is_held_to_the_version_that_was_proved(monkeypatch: pytest.MonkeyPatch) -> None:
    """The files that Spark's snapshot lists are compared with those of the proof."""
    told = []

    class Rows:
        def select(self, *columns: str) -> Rows:
            del columns
            return self

    def table_at(*args: object, snapshot: object, **how: object) -> Rows:
        del args, how
        told.append(snapshot)
        return Rows()

    monkeypatch.setattr(scans, "table_at", table_at)
    proved: Any = SimpleNamespace(is_encrypted=False)
    cut = cut_with((0, 10, 10, None))
    rows_of(cast("Any", None), cut, ["offset"], server="grpc://h:1", proved=True, table=proved)
    assert told == [proved]


def table_rows(cut: Cut) -> list[tuple[int, int]]:
    """Return the rows of the cut's table version: its cold ranges."""
    return [
        (part.partition, offset)
        for part in cut.partitions
        for offset in range(part.start, part.cold_end)
    ]


def spans_of(predicate: str) -> dict[int, range]:
    """Return the offsets of each partition that a predicate lets through."""
    pieces = [_SPAN.fullmatch(one) for one in predicate.split(" OR ")]
    assert all(pieces), f"not a list of ranges: {predicate}"
    return {int(one[1]): range(int(one[2]), int(one[3])) for one in pieces if one}


def read(cut: Cut, above: dict[int, Offset], *, proved: bool) -> Counter[tuple[int, int]]:
    """Return the rows that both scans give, by the predicate and the options that Spark gets."""
    parts = seams(cut, above)
    rows: list[tuple[int, int]] = []
    if any(part.cold for part in parts):
        predicate = cold_predicate(cut, parts, proved=proved)
        within = None if predicate is None else spans_of(predicate)
        rows += [
            (partition, offset)
            for partition, offset in table_rows(cut)
            if within is None or offset in within.get(partition, ())
        ]
    hot = {part.partition: part.hot for part in parts}
    given = parse_batch(log_options(cut, list(ROW_COLUMNS), hot, server="grpc://h:1"))
    assert is_fixed(given)
    assert given.starting is not None
    bounds = [of_stream(side, "s", option="o") for side in (given.starting, given.ending)]
    ranges = resolve("s", bounds[0], bounds[1], None)
    for piece in plan(ranges, partitions_min=0, records_max=3):
        rows += [(piece.partition, offset) for offset in range(piece.start, piece.end)]
    return Counter(rows)


def cuts() -> list[Cut]:
    """Return small cuts of every shape: tiers empty or not, narrowed below, at and above a seam."""
    shapes = [
        (start, cold, hot, until)
        for start, cold, hot in itertools.combinations_with_replacement((0, 2, 3, 5), 3)
        for until in (None, *range(start, hot + 1))
    ]
    return [cut_with(shape) for shape in shapes] + [
        cut_with(one, two) for one, two in itertools.pairwise(shapes)
    ]


@pytest.mark.parametrize("proved", [True, False])
def test_every_offset_of_a_cut_is_read_once(proved: bool) -> None:
    """This holds for any split of the cut between table and log."""
    for cut in cuts():
        expected = Counter(
            (part.partition, offset)
            for part in cut.partitions
            for offset in range(part.start, part.end)
        )
        assert read(cut, {}, proved=proved) == expected, cut


@pytest.mark.parametrize("proved", [True, False])
def test_what_a_key_snapshot_holds_is_not_read_again(proved: bool) -> None:
    """A read that begins later begins exactly there, in either tier."""
    for cut in cuts():
        for wanted in range(cut.partitions[0].start, cut.partitions[0].end + 1):
            found = read(cut, {0: Offset(wanted)}, proved=proved)
            expected = Counter(
                (part.partition, offset)
                for part in cut.partitions
                for offset in range(wanted if part.partition == 0 else part.start, part.end)
            )
            assert found == expected, (cut, wanted)


def test_a_proved_table_that_is_read_whole_pays_for_no_filter() -> None:
    """An unproved table, or a part of one, is always filtered by its ranges."""
    whole, narrowed = cut_with((2, 5, 9, None)), cut_with((2, 5, 9, 4))
    assert cold_predicate(whole, seams(whole), proved=True) is None
    assert cold_predicate(whole, seams(whole), proved=False) is not None
    assert cold_predicate(narrowed, seams(narrowed), proved=True) is not None
    assert seams(whole)[0].hot == OffsetRange(Offset(5), Offset(9))
