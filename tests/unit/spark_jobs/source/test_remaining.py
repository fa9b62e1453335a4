"""The records that a slice still has, whatever key compaction removes while it is read."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import Any

import pyarrow as pa
import pytest

from broker.errors import FencedError, GapError
from broker.model.epochs import LeaderEpoch
from broker.model.offsets import Offset
from headwater.client import Fetched
from spark_jobs.source.partitions import OffsetSlice
from spark_jobs.source.remaining import RemainingRecords

PIECE = OffsetSlice(0, Offset(10), Offset(30))


def part(start: int, end: int, offsets: Sequence[int]) -> Fetched:
    """Return the rows that are left of a range."""
    rows = pa.RecordBatch.from_pydict({"offset": pa.array(offsets, pa.int64())})
    return Fetched(rows, Offset(start), Offset(end), Offset(end), LeaderEpoch(1))


class Broker:
    """Answers the n-th read with the n-th list of parts; an error ends an answer."""

    def __init__(self, *answers: Sequence[Fetched | Exception]) -> None:
        self.starts: list[int] = []
        self._answers = iter(answers)

    def fetch(self, stream: str, partition: int, start: int, end: int, **_: Any) -> Any:
        """Open a read."""
        self.starts.append(start)
        return Answer(next(self._answers))

    def tier_status(self, _stream: str) -> list[object]:
        """Have no table of which this process knows."""
        return []


class Answer:
    """An open read."""

    def __init__(self, parts: Sequence[Fetched | Exception]) -> None:
        self._parts = parts

    def __iter__(self) -> Iterator[Fetched]:
        for one in self._parts:
            if isinstance(one, Exception):
                raise one
            yield one

    def close(self) -> None:
        """End the read."""


def read(broker: Any) -> tuple[list[int], int]:
    """Return the offsets of the slice that are read, and how many are told to be gone."""
    remaining = RemainingRecords(broker, PIECE, stream="s", stream_uuid="u", columns=("offset",))
    offsets = [at for rows in remaining for at in rows.column("offset").to_pylist()]
    return offsets, remaining.gone_count


WHOLE = part(10, 30, range(10, 30))
THINNED = part(10, 20, [12, 19])
ABOVE = part(20, 30, range(20, 30))


def test_a_slice_with_each_record_is_read_once() -> None:
    """Nothing is asked twice."""
    broker = Broker([WHOLE])
    assert read(broker) == ([*range(10, 30)], 0)
    assert broker.starts == [10]


def test_what_is_left_of_a_slice_is_read_and_the_rest_is_counted() -> None:
    """Of the compacted range what is there; above it each record, as ever."""
    broker = Broker([THINNED, ABOVE], [THINNED], [ABOVE])
    assert read(broker) == ([12, 19, *range(20, 30)], 8)
    assert broker.starts == [10, 10, 20]


def test_a_compaction_during_the_read_doubles_nothing() -> None:
    """The first rows were whole; then another broker leads, whose table is compacted."""
    begun: list[Fetched | Exception] = [part(10, 14, range(10, 14)), FencedError("another leader")]
    broker = Broker(begun, [THINNED, ABOVE], [THINNED], [ABOVE])
    assert read(broker) == ([12, 19, *range(20, 30)], 8)
    assert broker.starts == [10, 10, 10, 20]


def test_a_lost_row_is_not_taken_for_a_compacted_one() -> None:
    """Only a range that the broker says is compacted may lack rows."""
    with pytest.raises(GapError):
        read(Broker([part(10, 14, range(10, 14)), part(15, 30, range(15, 30))]))
    with pytest.raises(GapError):
        read(Broker([THINNED, ABOVE], [THINNED], [part(20, 29, range(20, 29))]))
