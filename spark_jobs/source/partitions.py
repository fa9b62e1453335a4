"""Which offsets a read covers, and how they are cut into Spark partitions. Pure.

The result depends on its arguments alone, so a plan that Spark makes again is the same plan. Slices
are in order, do not overlap and cover exactly the ranges; empty ranges have no slice.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

from broker.errors import InvalidRequestError, OffsetOutOfRangeError
from broker.model.offsets import Offset, OffsetRange
from spark_jobs.source.options import EARLIEST, Position, Positions, SourceOptions


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


def resolve(
    options: SourceOptions, retained: Mapping[int, OffsetRange] | None
) -> dict[int, OffsetRange]:
    """Turn words into offsets; return the range to read of each partition.

    Where both sides are explicit, exactly the partitions that they name are read. Otherwise every
    partition of the stream must be named, or covered by a word: a read never loses a partition
    because somebody added one.

    Args:
        options: what was asked for.
        retained: ``[earliest, latest)`` of every partition; None when nobody asked the server,
            which is only right for explicit options.

    Raises:
        InvalidRequestError: the two sides name different partitions, or not all of them.
        OffsetOutOfRangeError: an end is below its start.
    """
    named = _named_partitions(options)
    if options.explicit():
        assert named is not None, "explicit bounds name their partitions"
        known: Mapping[int, OffsetRange] = retained or {}
    else:
        assert retained is not None, "words need the server's answer"
        known = retained
        if named is not None and named != set(known):
            raise InvalidRequestError(
                f"offsets are given for partitions {sorted(named)}, but stream "
                f"{options.stream} has {sorted(known)}; name each of them"
            )
        named = set(known)
    found = {}
    for partition in sorted(named):
        start = _offset(options.starting, partition, known)
        end = _offset(options.ending, partition, known)
        if end < start:
            raise OffsetOutOfRangeError(
                f"partition {partition}: endingOffsets {end} is below startingOffsets {start}",
                offset=end,
                start=start,
                end=end,
            )
        found[partition] = OffsetRange(start, end)
    return found


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


def _named_partitions(options: SourceOptions) -> set[int] | None:
    """Return the partitions that the options name, None when both sides are one word."""
    sides = [set(side) for side in (options.starting, options.ending) if isinstance(side, dict)]
    if len(sides) == 2 and sides[0] != sides[1]:
        raise InvalidRequestError(
            f"startingOffsets names partitions {sorted(sides[0])} and endingOffsets "
            f"{sorted(sides[1])}; they must name the same"
        )
    return sides[0] if sides else None


def _offset(side: Positions, partition: int, retained: Mapping[int, OffsetRange]) -> Offset:
    position: Position = side if isinstance(side, str) else side[partition]
    if not isinstance(position, str):
        return position
    offsets = retained[partition]
    return offsets.start if position == EARLIEST else offsets.end
