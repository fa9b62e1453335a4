"""What key compaction has left of a slice: counted when planned, the same when read, or refused."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import pyarrow as pa
import pytest

from broker.errors import CompactedRangeError, InvalidRequestError, NotLeaderError, OverlapError
from broker.model.epochs import LeaderEpoch
from broker.model.offsets import Offset, OffsetRange
from headwater.client import Fetched
from spark_jobs.source.left import Counted, count_left, from_text, read_left, to_text
from spark_jobs.source.partitions import LeftRecords, OffsetSlice

PIECE = OffsetSlice(0, Offset(10), Offset(30))


def part(start: int, end: int, *offsets: int) -> Fetched:
    """Return the rows that are left of a range."""
    rows = pa.RecordBatch.from_pydict(
        {"offset": pa.array(offsets, pa.int64()), "value": [b"%d" % one for one in offsets]}
    )
    return Fetched(rows, Offset(start), Offset(end), Offset(end), LeaderEpoch(1))


class Broker:
    """Answers each read with the parts from its start on; ``fails_at`` ends one answer early."""

    def __init__(self, *parts: Fetched, fails_at: int | None = None) -> None:
        self._parts = parts
        self._fails_at = fails_at

    def fetch(self, stream: str, partition: int, start: int, end: int, **_: Any) -> Any:
        """Open a read."""
        return Answer(self._answer(start, end))

    def _answer(self, start: int, end: int) -> Iterator[Fetched]:
        for one in self._parts:
            if one.base_offset == self._fails_at:
                self._fails_at = None
                raise NotLeaderError("it has just stopped to lead")
            if one.base_offset >= start:
                yield one


class Answer:
    """An open read."""

    def __init__(self, parts: Iterator[Fetched]) -> None:
        self._parts = parts

    def __iter__(self) -> Iterator[Fetched]:
        return self._parts

    def close(self) -> None:
        """End the read."""


THINNED = (part(10, 15, 11, 14), part(15, 20), part(20, 30, *range(20, 30)))


def counted(*parts: Fetched) -> Counted:
    """Count what a broker has left of the slice."""
    return count_left(Broker(*parts), "s", "u", PIECE)  # type: ignore[arg-type]


def read(left: LeftRecords, *parts: Fetched, **options: Any) -> list[int]:
    """Read the values of the slice from a broker."""
    client: Any = Broker(*parts, **options)
    found = read_left(client, PIECE, left, stream="s", stream_uuid="u", columns=("value",))
    batches = list(found)
    assert all(one.schema.names == ["value"] for one in batches)
    return [int(value) for one in batches for value in one.column(0).to_pylist()]


def test_what_was_counted_is_read() -> None:
    """Also after the broker that answered has stopped to lead in the middle."""
    found = counted(*THINNED)
    assert (found.left.rows, found.missing_count, found.thinned) == (12, 8, OffsetRange(
        Offset(10), Offset(20)
    ))  # fmt: skip
    assert read(found.left, *THINNED) == [11, 14, *range(20, 30)]
    assert read(found.left, *THINNED, fails_at=15) == [11, 14, *range(20, 30)]
    joined = (part(10, 30, 11, 14, *range(20, 30)),)
    assert counted(*joined).left == found.left, "how batches are cut does not matter"


def test_a_whole_slice_has_no_range_that_lacks_records() -> None:
    """A stream that compacts may still have every record."""
    found = counted(part(10, 30, *range(10, 30)))
    assert (found.left.rows, found.missing_count, found.thinned) == (20, 0, None)


@pytest.mark.parametrize(
    "other",
    [
        (part(10, 15, 11, 13), *THINNED[1:]),  # as many
        (part(10, 15, 14), *THINNED[1:]),  # fewer
        (part(10, 15, 11, 13, 14), *THINNED[1:]),  # more
    ],
)
def test_a_broker_with_other_records_is_refused(other: tuple[Fetched, ...]) -> None:
    """A row more or less would make two actions on one DataFrame differ."""
    left = counted(*THINNED).left
    with pytest.raises(CompactedRangeError, match="Begin the read anew") as caught:
        read(left, *other)
    assert caught.value.facts == {"partition": 0, "start": 10, "end": 30}


def test_batches_follow_one_another() -> None:
    """A hole between two batches is no work of key compaction."""
    with pytest.raises(OverlapError):
        counted(THINNED[0], THINNED[2])


def test_the_option_comes_back_and_nothing_else_is_taken() -> None:
    """It comes from outside of the process that reads."""
    found = counted(*THINNED)
    assert from_text(to_text([found])) == ((PIECE, found.left),)
    assert from_text("[]") == ()
    for text in (
        "", "{}", "[1]", "[[0,0,1,1]]", "[[0,0,1,2,0]]", "[[0,5,5,0,0]]", "[[0,0,1,1,4294967296]]",
        "[[0,0,1,1,0.5]]", "[[0,0,5,1,0],[0,4,9,1,0]]", "[[1,0,5,1,0],[0,0,5,1,0]]",
        "[[0,-1,5,1,0]]", "[[true,0,5,1,0]]",
    ):  # fmt: skip
        with pytest.raises(InvalidRequestError, match="leave it out"):
            from_text(text)
