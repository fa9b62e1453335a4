"""Planning: words become offsets, ranges become slices, no offset is lost or doubled."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from broker.errors import InvalidRequestError, OffsetOutOfRangeError
from broker.model.offsets import Offset, OffsetRange
from spark_jobs.source.options import parse_batch
from spark_jobs.source.partitions import (
    PACK_RECORDS_MAX,
    PACK_SLICES_MAX,
    PACKS_MIN,
    OffsetSlice,
    SliceTask,
    pack,
    plan,
    resolve,
)
from spark_jobs.source.positions import is_explicit, of_stream

RETAINED = {
    0: OffsetRange(Offset(10), Offset(100)),
    1: OffsetRange(Offset(0), Offset(0)),
}


def found(**options: str) -> dict[int, tuple[int, int]]:
    """Resolve options against RETAINED, as the source does."""
    parsed = parse_batch({"stream": "s", **options})
    assert parsed.starting is not None
    starting = of_stream(parsed.starting, "s", option="startingOffsets")
    ending = of_stream(parsed.ending, "s", option="endingOffsets")
    explicit = is_explicit(starting) and is_explicit(ending)
    ranges = resolve("s", starting, ending, None if explicit else RETAINED)
    return {partition: (span.start, span.end) for partition, span in ranges.items()}


def test_words_are_what_is_retained() -> None:
    """The default is everything that the stream holds."""
    assert found() == {0: (10, 100), 1: (0, 0)}
    assert found(startingOffsets="latest") == {0: (100, 100), 1: (0, 0)}


def test_explicit_bounds_read_the_named_partitions_only() -> None:
    """If both sides name partitions, no other one is read; the broker checks the bounds."""
    assert found(startingOffsets='{"7": 5}', endingOffsets='{"7": 9}') == {7: (5, 9)}


@pytest.mark.parametrize(
    ("options", "says"),
    [
        ({"startingOffsets": '{"0": 20}'}, "name each"),
        ({"endingOffsets": '{"0": 20, "1": 0, "2": 0}'}, "name each"),
        ({"startingOffsets": '{"0": 1}', "endingOffsets": '{"1": 1}'}, "must name the same"),
    ],
)
def test_a_partition_is_never_left_out_by_accident(options: dict[str, str], says: str) -> None:
    """Bounds that name some partitions, or different ones, are refused."""
    with pytest.raises(InvalidRequestError, match=says):
        found(**options)


def test_an_end_below_its_start_is_refused() -> None:
    """It would otherwise read as an empty range."""
    with pytest.raises(OffsetOutOfRangeError) as caught:
        found(startingOffsets='{"0": 5}', endingOffsets='{"0": 4}')
    assert (caught.value.start, caught.value.end) == (5, 4)


def test_nothing_to_read_is_no_slice() -> None:
    """Empty ranges plan to an empty list, which the reader must cope with."""
    assert plan(RETAINED | {0: RETAINED[1]}, partitions_min=8, records_max=10) == []


def test_big_ranges_take_more_slices() -> None:
    """`minPartitions` is shared by length."""
    ranges = {0: OffsetRange(Offset(0), Offset(900)), 1: OffsetRange(Offset(5), Offset(105))}

    slices = plan(ranges, partitions_min=10, records_max=1_000_000)

    assert [piece.partition for piece in slices] == [0] * 9 + [1]
    assert slices[0] == OffsetSlice(0, Offset(0), Offset(100))


@given(
    ends=st.lists(st.tuples(st.integers(0, 2**40), st.integers(0, 5000)), min_size=1, max_size=5),
    partitions_min=st.integers(0, 50),
    records_max=st.integers(100, 10_000),
)
def test_slices_cover_each_range_exactly(
    ends: list[tuple[int, int]], partitions_min: int, records_max: int
) -> None:
    """With any options slices are in order, not empty, not too long, and join to the range."""
    ranges = {
        number: OffsetRange(Offset(start), Offset(start + length))
        for number, (start, length) in enumerate(ends)
    }

    slices = plan(ranges, partitions_min=partitions_min, records_max=records_max)

    for number, span in ranges.items():
        due = span.start
        for piece in (piece for piece in slices if piece.partition == number):
            assert piece.start == due
            assert 0 < piece.records_count <= records_max
            due = piece.end
        assert due == span.end


@given(
    lengths=st.lists(
        st.one_of(st.integers(1, 50), st.integers(1, 2 * PACK_RECORDS_MAX)), max_size=300
    ),
    packs_min=st.integers(0, 40),
    records_max=st.integers(1, 2 * PACK_RECORDS_MAX),
)
def test_packs_are_the_slices_in_order_and_within_bounds(
    lengths: list[int], packs_min: int, records_max: int
) -> None:
    """No slice is lost or moved; a pack is bounded, and there are as many as were asked for."""
    tasks = [
        SliceTask("s", None, OffsetSlice(number, Offset(7), Offset(7 + length)))
        for number, length in enumerate(lengths)
    ]

    packs = pack(tasks, packs_min=packs_min, records_max=records_max)

    assert [task for one in packs for task in one] == tasks
    assert all(packs)
    for one in packs:
        assert len(one) <= PACK_SLICES_MAX
        bound = min(PACK_RECORDS_MAX, records_max)
        assert len(one) == 1 or sum(t.piece.records_count for t in one) <= bound
    assert len(packs) >= min(packs_min or PACKS_MIN, len(tasks))


def test_a_thousand_small_partitions_are_few_tasks() -> None:
    """A Spark task for each of them took longer than all of their rows."""
    tasks = [SliceTask("s", None, OffsetSlice(n, Offset(0), Offset(40))) for n in range(1000)]
    assert len(pack(tasks, packs_min=0, records_max=2_000_000)) == 16


def test_a_range_that_was_cut_is_not_joined_again() -> None:
    """`maxRecordsPerPartition` bounds what a Spark task reads, so packs keep to it, too."""
    ranges = {0: OffsetRange(Offset(0), Offset(1000)), 1: OffsetRange(Offset(0), Offset(301))}
    slices = plan(ranges, partitions_min=0, records_max=100)
    tasks = [SliceTask("s", None, piece) for piece in slices]

    assert len(pack(tasks, packs_min=0, records_max=100)) == 10 + 4
    assert len(pack(tasks, packs_min=1, records_max=200)) == 5 + 2


def test_few_slices_stay_work_for_several_cores() -> None:
    """A few records may be many bytes; `minPartitions` allows fewer tasks, as it allows more."""
    tasks = [SliceTask("s", None, OffsetSlice(n, Offset(0), Offset(100))) for n in range(64)]

    assert len(pack(tasks, packs_min=0, records_max=2_000_000)) == PACKS_MIN
    assert len(pack(tasks, packs_min=1, records_max=2_000_000)) == 1
    assert len(pack(tasks, packs_min=32, records_max=2_000_000)) == 32
