"""The plan of a batch of a cut: its range is that of the cut, whatever the stream has by then."""

from __future__ import annotations

from collections.abc import Iterator
from types import SimpleNamespace
from typing import Any, Self

import pytest

from broker.errors import InvalidRequestError, OffsetOutOfRangeError, UnknownPartitionError
from broker.model.cut import Cut, Lease, PartitionCut
from broker.model.epochs import LeaderEpoch
from broker.model.ids import LeaseId, StreamUuid
from broker.model.offsets import Offset
from headwater.client import Client
from spark_jobs.source.batch_plan import make_plan
from spark_jobs.source.options import parse_batch

UUID = StreamUuid("0f0e0d0c-0b0a-4908-8706-050403020100")
NOW = {0: (20, 105), 1: (0, 60)}  # the first offset and the high watermark of each partition


def cut(until: int | None = None) -> Cut:
    """Return the cut of a moment before: of [10, 100) and [0, 50)."""
    return Cut(
        cluster="c",
        stream="s",
        stream_uuid=UUID,
        subject="s",
        table_uri="/lake/default/s",
        table_version=None,
        partitions=tuple(
            PartitionCut(
                partition=number,
                start=Offset(start),
                cold_end=Offset(start),
                hot_end=Offset(end),
                leader_epoch=LeaderEpoch(1),
                until=None if until is None else Offset(until),
            )
            for number, (start, end) in enumerate(((10, 100), (0, 50)))
        ),
        taken_us=1,
        lease=Lease(lease_id=LeaseId("lease"), expires_us=2),
    )


class Answer:
    """An open read, which begins at some offset or has no record."""

    def __init__(self, base_offset: int | None) -> None:
        self._base_offset = base_offset

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        pass

    def __iter__(self) -> Iterator[Any]:
        if self._base_offset is not None:
            yield SimpleNamespace(base_offset=Offset(self._base_offset))


class Busy(Client):
    """A client of a stream that has got records since the cut, and lost its first ones.

    ``times`` has the first offset of a time, per partition.
    """

    def __init__(self, times: dict[int, int | None] | None = None) -> None:
        self._times = times or {}

    def call(self, *_: Any, **__: Any) -> list[dict[str, Any]]:
        """Answer the first contact."""
        return []

    def check_cut(self, cut: Cut) -> None:
        """Find the cut in the stream's history."""

    def renew_lease(self, lease_id: LeaseId, **_: Any) -> Lease:
        """Renew the cut's lease."""
        return Lease(lease_id=lease_id, expires_us=3)

    def drop_lease(self, lease_id: LeaseId) -> None:
        """End the lease of a plan that was refused."""

    def stream(self, name: str) -> Any:
        """Describe a stream that keeps each record."""
        config = SimpleNamespace(compact=False, history="keep")
        return SimpleNamespace(name=name, uuid=UUID, config=config, ever_compacted=False)

    def describe(self, name: str) -> Any:
        """Return where the stream begins and ends now."""
        parts = [
            SimpleNamespace(partition=number, start=Offset(start), high_watermark=Offset(end))
            for number, (start, end) in NOW.items()
        ]
        return SimpleNamespace(stream=self.stream(name), partitions=parts)

    def fetch(self, stream: str, partition: int = 0, *args: Any, **options: Any) -> Any:
        """Look a time up."""
        del stream, args, options
        return Answer(self._times[partition])


def ranges(given: dict[str, str], client: Busy, until: int | None = None) -> dict[int, Any]:
    """Plan a batch as of the cut; return the bounds of each partition."""
    options = parse_batch({"stream": "s", "asOf": "now", **given}).of_cut(cut(until))
    [plan] = make_plan(options, client, patience_s=0)
    return {number: (span.start, span.end) for number, span in plan.ranges.items()}


@pytest.mark.parametrize(
    ("given", "expected"),
    [
        ({}, {0: (10, 100), 1: (0, 50)}),
        ({"startingOffsets": "earliest"}, {0: (10, 100), 1: (0, 50)}),
        ({"startingOffsets": "latest"}, {0: (100, 100), 1: (50, 50)}),
        ({"startingOffsets": '{"0": -1, "1": -2}'}, {0: (100, 100), 1: (0, 50)}),
        ({"startingOffsets": '{"0": 30, "1": -1}'}, {0: (30, 100), 1: (50, 50)}),
        ({"startingOffsets": '{"0": 30, "1": 50}'}, {0: (30, 100), 1: (50, 50)}),
    ],
)
def test_a_word_means_an_offset_of_the_cut(
    given: dict[str, str], expected: dict[int, tuple[int, int]]
) -> None:
    """The end of the stream, which is later by then, was taken for a start beyond the end."""
    assert ranges(given, Busy()) == expected


def test_a_cut_of_an_earlier_moment_is_read_up_to_that_moment() -> None:
    """Earliest and latest are those of what is read of the cut."""
    assert ranges({"startingOffsets": "latest"}, Busy(), until=40) == {0: (40, 40), 1: (40, 40)}
    assert ranges({}, Busy(), until=40) == {0: (10, 40), 1: (0, 40)}


def test_a_time_is_looked_up_within_the_cut() -> None:
    """A first record of that time after the cut begins an empty range at the cut's end."""
    given = {"startingTimestamp": "5"}
    assert ranges(given, Busy({0: 44, 1: 57})) == {0: (44, 100), 1: (50, 50)}
    lenient = {**given, "startingOffsetsByTimestampStrategy": "latest"}
    assert ranges(lenient, Busy({0: 103, 1: None})) == {0: (100, 100), 1: (50, 50)}
    with pytest.raises(OffsetOutOfRangeError, match="no record with a timestamp"):
        ranges(given, Busy({0: 44, 1: None}))


@pytest.mark.parametrize("text", ['{"0": 101, "1": 0}', '{"0": 101, "1": -1}'])
def test_an_offset_beyond_the_cut_is_an_error(text: str) -> None:
    """The caller has named it, so it is not moved."""
    with pytest.raises(OffsetOutOfRangeError, match="endingOffsets 100 is below startingOffsets"):
        ranges({"startingOffsets": text}, Busy())


def test_a_start_names_each_partition_of_the_cut() -> None:
    """A stream that has grown since has more; they are not of the cut."""
    with pytest.raises(InvalidRequestError, match="name"):
        ranges({"startingOffsets": '{"0": -1}'}, Busy())


def test_partitions_that_the_cut_lacks_cannot_be_assigned() -> None:
    """As for a read without a moment."""
    given = parse_batch({"assign": '{"s": [0, 1, 7]}', "asOf": "now"}).of_cut(cut())
    with pytest.raises(UnknownPartitionError):
        make_plan(given, Busy(), patience_s=0)
