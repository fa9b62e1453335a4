"""What an advance of a key snapshot has to rewrite. Pure.

The rows of a partition are spread over buckets by a hash of the key, one file per bucket. An
advance reads the history after the old cut. It rewrites the files of the buckets that hold the keys
of that history; all other files stay. All files of a partition are rewritten when they are no
longer ours (an OPTIMIZE joined them) or when their buckets have become too large. A partition is
built anew from its whole history when there is no old cut to start from, or when key compaction of
the history has gone beyond the old cut.
"""

from __future__ import annotations

import re
import secrets
import zlib
from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass
from typing import Final

from broker.errors import StreamRecreatedError, TableRolledBackError
from broker.model.offsets import OffsetRange
from tiering.table.table import DataFile, TableSnapshot

BUCKET_BYTES: Final = 64 * 1024 * 1024  # the wanted size of a bucket's file, roughly
BUCKETS_MAX: Final = 4096
_OUTGROWN: Final = 2  # times BUCKET_BYTES, as the average of a partition's files
_NAME: Final = re.compile(r"partition=(\d+)/(\d{4})-of-(\d{4})-\d{20}-[0-9a-f]{16}\.parquet\Z")


@dataclass(frozen=True, slots=True, kw_only=True)
class PartitionPlan:
    """How the rows of one partition go from the history range ``old`` to the range ``new``."""

    partition: int
    old: OffsetRange
    new: OffsetRange
    buckets_count: int
    rebuild: bool  # no old row is used
    whole: bool  # every file is replaced
    files: tuple[DataFile, ...]  # the partition's present files

    @property
    def to_read(self) -> OffsetRange:
        """The range of the history that the job reads."""
        return self.new if self.rebuild else OffsetRange(self.old.end, self.new.end)

    def removed(self, touched: Collection[int]) -> tuple[DataFile, ...]:
        """Return the files that the commit removes; ``touched`` are the buckets with new keys."""
        if self.whole:
            return self.files
        return tuple(file for file in self.files if place_of(file).bucket in touched)


@dataclass(frozen=True, slots=True)
class BucketPlace:
    """The bucket of a file and the number of buckets, both read from the file's name."""

    bucket: int
    count: int


def plan(
    latest: TableSnapshot,
    history: TableSnapshot,
    sizes: Mapping[int, int],
    *,
    distrusted: Collection[int] = (),
) -> list[PartitionPlan]:
    """Return the plans of the partitions that are not up to date.

    ``sizes`` estimates, per partition, the bytes of the newest rows per key in the range to be
    read. Partitions that are ``distrusted`` are built anew from history.

    Raises:
        StreamRecreatedError: the two tables belong to two incarnations of the stream.
        TableRolledBackError: the key snapshot covers offsets that the history does not have.
    """
    if latest.stream_uuid != history.stream_uuid:
        raise StreamRecreatedError(
            f"the key snapshot {latest.uri} belongs to stream {latest.stream_uuid}, but the "
            f"history {history.uri} belongs to stream {history.stream_uuid}",
            expected=latest.stream_uuid,
            found=history.stream_uuid,
        )
    plans = []
    for number, new in sorted(history.ranges.items()):
        old = latest.range_of(number)
        if old.end > new.end:
            raise TableRolledBackError(
                f"the key snapshot {latest.uri} covers partition {number} up to {old.end}, "
                f"but the history {history.uri} ends at {new.end}",
                uri=history.uri,
                partition=number,
                expected=int(old.end),
                found=int(new.end),
            )
        # An older copy of the key snapshot: key compaction may have dropped tombstones that it had
        # not seen, so only a build from history finds out which of its keys are gone.
        is_old = bool(old) and old.end < history.whole_start(number)
        if old != new or number in distrusted:
            fresh_bytes = sizes.get(number, 0)
            plans.append(
                _plan_partition(
                    latest, number, old, new, fresh_bytes, distrusted=number in distrusted or is_old
                )
            )
    return plans


def buckets_for(bytes_count: int) -> int:
    """Return the number of buckets for a partition of this size: a power of two."""
    wanted = -(-bytes_count // BUCKET_BYTES)
    return min(BUCKETS_MAX, 1 << max(0, wanted - 1).bit_length())


def bucket_of(key: bytes, count: int) -> int:
    """Return the bucket of a key; Spark's ``pmod(crc32(key), count)`` is the same."""
    return zlib.crc32(key) % count


def bucket_path(partition: int, bucket: int, count: int, end: int) -> str:
    """Return an unused path below the table for one bucket's file; ``end`` is the cut's end."""
    return (
        f"partition={partition}/{bucket:04}-of-{count:04}-{end:020}-{secrets.token_hex(8)}.parquet"
    )


def place_of(file: DataFile) -> BucketPlace:
    """Read the bucket from a file's name; the name must be ours, which :func:`layout` checks."""
    match = _NAME.match(file.path)
    assert match is not None, f"{file.path} is not the file of a bucket"
    return BucketPlace(int(match[2]), int(match[3]))


def layout(files: Sequence[DataFile]) -> int | None:
    """Return how many buckets a partition's files are split into; None if they are not ours."""
    counts, seen = set(), set()
    for file in files:
        match = _NAME.match(file.path)
        if match is None or int(match[1]) != file.partition:
            return None
        counts.add(int(match[3]))
        seen.add(int(match[2]))
    if len(counts) != 1 or len(seen) != len(files):
        return None
    (count,) = counts
    return count if count > 0 and max(seen) < count else None


def _plan_partition(
    latest: TableSnapshot,
    number: int,
    old: OffsetRange,
    new: OffsetRange,
    fresh_bytes: int,
    *,
    distrusted: bool,
) -> PartitionPlan:
    files = tuple(file for file in latest.files if file.partition == number)
    # Retention moved the start: a row below the new start is in no history, so it must go, and
    # only a build from history finds out which row of its key is now the newest.
    rebuild = distrusted or not old or old.start != new.start
    kept = layout(files) if not rebuild else None
    total = fresh_bytes + (0 if rebuild else sum(file.size_bytes for file in files))
    whole = kept is None or total > _OUTGROWN * BUCKET_BYTES * kept
    return PartitionPlan(
        partition=number,
        old=old,
        new=new,
        buckets_count=buckets_for(total) if whole or kept is None else kept,
        rebuild=rebuild,
        whole=whole,
        files=files,
    )
