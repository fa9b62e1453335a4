"""The offsets that a read covers, and their division into Spark partitions. Pure.

The result depends only on the arguments, so if Spark plans again, it gets the same plan. Slices are
in order, do not overlap and cover exactly the ranges; empty ranges have no slice.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Final

from broker.errors import InvalidRequestError, OffsetOutOfRangeError
from broker.model.ids import LeaseId, StreamUuid
from broker.model.offsets import Offset, OffsetRange
from spark_jobs.source.positions import EARLIEST, AtMs, Position, Positions, is_explicit

# A Spark task costs milliseconds to start, a slice one call; a pack should cost both about equally.
PACK_RECORDS_MAX: Final = 100_000
PACK_SLICES_MAX: Final = 64
# Without `minPartitions`: a plan does not know the size of records, and large ones need many cores.
PACKS_MIN: Final = 8


@dataclass(frozen=True, slots=True)
class OffsetSlice:
    """``[start, end)`` of one partition of the stream. Never empty."""

    partition: int
    start: Offset
    end: Offset

    @property
    def records_count(self) -> int:
        """Number of offsets in the slice."""
        return self.end - self.start


@dataclass(frozen=True, slots=True)
class LeftRecords:
    """The records of a slice that key compaction has left: see ``left.py``."""

    rows: int
    checksum: int  # CRC-32C of their offsets


@dataclass(frozen=True, slots=True)
class TableRef:
    """The location of a stream's table, with which a task can read its files directly."""

    uri: str
    cluster: str


def table_path(table_uri: str) -> str:
    """Return a table's location for Spark's file systems: ``s3a://…`` or a plain path."""
    from tiering.store.location import StoreConfig  # noqa: PLC0415  (a tail needs no table)

    if table_uri.startswith("s3://"):
        return f"s3a://{table_uri.removeprefix('s3://')}"
    return str(StoreConfig(uri=table_uri).root)


# Of each partition of a stream the lineage id and the exclusive end that a read needs.
HistoryPositions = tuple[tuple[str, int], ...]


@dataclass(frozen=True, slots=True)
class SliceTask:
    """All facts that the reader of a slice needs, since it runs in another process."""

    stream: str
    stream_uuid: StreamUuid | None  # None: the stream with this name at the time of the read
    piece: OffsetSlice
    table: TableRef | None = None  # None: not known when planning; the task asks the broker
    lease_id: LeaseId | None = None  # the task renews it; None: another process does
    keyring_file: str = ""  # on executors, for an encrypted table; empty: the environment decides
    left: LeftRecords | None = None  # None: the slice has a record for each offset
    history: HistoryPositions | None = None  # None: the task checks nothing, see task_history.py


@dataclass(frozen=True, slots=True)
class LeaseRenewal:
    """Renews the lease of a read whose files the JVM reads. Has no rows."""

    stream: str
    lease_id: LeaseId | None


def resolve(
    stream: str,
    starting: Positions,
    ending: Positions,
    known: Mapping[int, OffsetRange] | None,
) -> dict[int, OffsetRange]:
    """Turn earliest and latest into offsets; return the range of each partition of one stream.

    If both sides are explicit, exactly the partitions that they name are read. Otherwise every
    partition of the read must have an offset, or both sides a word. So a read never misses a
    partition that was added later.

    Args:
        stream: the stream's name, for messages.
        starting: the beginning; a time has been looked up already.
        ending: the end; a time has been looked up already.
        known: ``[earliest, latest)`` of every partition of the read; None if the server was not
            asked, which is allowed only for explicit bounds.

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
    """Return the offset of one partition from a bound."""
    assert not isinstance(side, AtMs), "times have been looked up before"
    position: Position = side if isinstance(side, str) else side[partition]
    if not isinstance(position, str):
        return position
    offsets = known[partition]
    return offsets.start if position == EARLIEST else offsets.end


def plan(
    ranges: Mapping[int, OffsetRange], *, partitions_min: int, records_max: int
) -> list[OffsetSlice]:
    """Cut ranges into slices of at most ``records_max`` records, about ``partitions_min`` or more.

    Each range is cut evenly; large ranges get more of ``partitions_min`` than small ones.
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


def pack(
    tasks: Sequence[SliceTask], *, packs_min: int, records_max: int
) -> list[tuple[SliceTask, ...]]:
    """Join neighbouring small slices; each pack becomes one Spark partition.

    A pack has at most ``PACK_SLICES_MAX`` slices, and of ``PACK_RECORDS_MAX`` and ``records_max``
    the fewer records; or it is one larger slice. There are at least ``packs_min`` packs (0: at
    least ``PACKS_MIN``), unless there are fewer slices.
    """
    packs_min = packs_min or PACKS_MIN
    records = sum(task.piece.records_count for task in tasks)
    room_max = min(PACK_RECORDS_MAX, records_max, records // packs_min)
    slices_max = max(1, min(PACK_SLICES_MAX, len(tasks) // packs_min))
    packs: list[list[SliceTask]] = []
    room = 0
    for task in tasks:
        room -= task.piece.records_count
        if not packs or room < 0 or len(packs[-1]) == slices_max:
            packs.append([])
            room = room_max - task.piece.records_count
        packs[-1].append(task)
    return [tuple(one) for one in packs]


def _named_partitions(*sides: Positions) -> set[int] | None:
    """Return the partitions that the bounds name; None if both are words."""
    named = [set(side) for side in sides if isinstance(side, dict)]
    if len(named) == 2 and named[0] != named[1]:
        raise InvalidRequestError(
            f"startingOffsets names partitions {sorted(named[0])} and endingOffsets "
            f"{sorted(named[1])}; both must name the same partitions"
        )
    return named[0] if named else None
