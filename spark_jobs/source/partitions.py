"""Which offsets a read covers, and how they are cut into Spark partitions. Pure.

The result depends on its arguments alone, so a plan that Spark makes again is the same plan. Slices
are in order, do not overlap and cover exactly the ranges; empty ranges have no slice.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

from broker.errors import InvalidRequestError, OffsetOutOfRangeError
from broker.model.ids import LeaseId, StreamUuid
from broker.model.offsets import Offset, OffsetRange
from spark_jobs.source.positions import EARLIEST, AtMs, Position, Positions, is_explicit


@dataclass(frozen=True, slots=True)
class OffsetSlice:
    """One Spark partition: ``[start, end)`` of one partition of the stream. Never empty."""

    partition: int
    start: Offset
    end: Offset

    @property
    def records_count(self) -> int:
        """Number of offsets in the slice."""
        return self.end - self.start


@dataclass(frozen=True, slots=True)
class TableRef:
    """Where a stream's table lies: what a task needs to read its files by itself."""

    uri: str
    cluster: str


@dataclass(frozen=True, slots=True)
class SliceTask:
    """All that a task must know: it runs in another process, where nothing else was said."""

    stream: str
    stream_uuid: StreamUuid | None  # None: whatever the name means when the slice is read
    piece: OffsetSlice
    table: TableRef | None = None  # None: not known when planning; the task asks the broker
    lease_id: LeaseId | None = None  # renewed while the task reads; None: somebody else does


def resolve(
    stream: str,
    starting: Positions,
    ending: Positions,
    known: Mapping[int, OffsetRange] | None,
) -> dict[int, OffsetRange]:
    """Turn words into offsets; return the range to read of each partition of one stream.

    Where both sides are explicit, exactly the partitions that they name are read. Otherwise every
    partition of the read must be named, or covered by a word: a read never loses a partition
    because somebody added one.

    Args:
        stream: for messages.
        starting: where to begin; a time was looked up before.
        ending: where to end, the same.
        known: ``[earliest, latest)`` of every partition of the read; None when nobody asked the
            server, which is only right for explicit bounds.

    Raises:
        InvalidRequestError: the two sides name different partitions, or not all of them.
        OffsetOutOfRangeError: an end is below its start.
    """
    named = _named_partitions(starting, ending)
    if is_explicit(starting) and is_explicit(ending):
        assert named is not None, "explicit bounds name their partitions"
        known = known or {}
    else:
        assert known is not None, "words need the server's answer"
        if named is not None and named != set(known):
            raise InvalidRequestError(
                f"offsets are given for partitions {sorted(named)}, but stream "
                f"{stream} has {sorted(known)}; name each of them"
            )
        named = set(known)
    found = {}
    for partition in sorted(named):
        start = offset_at(starting, partition, known)
        end = offset_at(ending, partition, known)
        if end < start:
            raise OffsetOutOfRangeError(
                f"partition {partition}: endingOffsets {end} is below startingOffsets {start}",
                offset=end,
                start=start,
                end=end,
            )
        found[partition] = OffsetRange(start, end)
    return found


def offset_at(side: Positions, partition: int, known: Mapping[int, OffsetRange]) -> Offset:
    """Return the offset that a bound means for one partition."""
    assert not isinstance(side, AtMs), "times are looked up before"
    position: Position = side if isinstance(side, str) else side[partition]
    if not isinstance(position, str):
        return position
    offsets = known[partition]
    return offsets.start if position == EARLIEST else offsets.end


def plan(
    ranges: Mapping[int, OffsetRange], *, partitions_min: int, records_max: int
) -> list[OffsetSlice]:
    """Cut ranges into slices of at most ``records_max``, about ``partitions_min`` or more of them.

    Each range is cut evenly; big ranges take more of ``partitions_min`` than small ones.
    """
    total = sum(len(offsets) for offsets in ranges.values())
    if total == 0:
        return []
    # An even share, so that a range of twice the length gets twice the slices.
    share = -(-total // partitions_min) if partitions_min else total
    limit = max(1, min(records_max, share))
    slices = []
    for partition, offsets in sorted(ranges.items()):
        pieces = -(-len(offsets) // limit)
        for piece in range(pieces):
            start = offsets.start + len(offsets) * piece // pieces
            end = offsets.start + len(offsets) * (piece + 1) // pieces
            slices.append(OffsetSlice(partition, Offset(start), Offset(end)))
    return slices


def _named_partitions(*sides: Positions) -> set[int] | None:
    """Return the partitions that the bounds name, None when both are words."""
    named = [set(side) for side in sides if isinstance(side, dict)]
    if len(named) == 2 and named[0] != named[1]:
        raise InvalidRequestError(
            f"startingOffsets names partitions {sorted(named[0])} and endingOffsets "
            f"{sorted(named[1])}; they must name the same"
        )
    return named[0] if named else None
