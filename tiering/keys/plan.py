"""What an advance of a key snapshot has to rewrite. Pure.

The rows of a partition are spread over buckets by a hash of the key, one file per bucket. An
advance reads the history after the old cut and rewrites the files of the buckets that its keys fall
into; all other files stay. A partition is rewritten whole when its files are no longer ours (some
OPTIMIZE joined them) or have outgrown their buckets, and built anew from history when there is no
old cut to start from.
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

BUCKET_BYTES: Final = 64 * 1024 * 1024  # about what a bucket's file should have
BUCKETS_MAX: Final = 4096
_OUTGROWN: Final = 2  # times the wanted size, on the average of a partition
_NAME: Final = re.compile(r"partition=(\d+)/(\d{4})-of-(\d{4})-\d{20}-[0-9a-f]{16}\.parquet\Z")


@dataclass(frozen=True, slots=True, kw_only=True)
class PartitionPlan:
    """How one partition goes from the history ``old`` to the history ``new``."""

    partition: int
    old: OffsetRange
    new: OffsetRange
    buckets_count: int
    rebuild: bool  # no old row is used
    whole: bool  # every file is replaced
    files: tuple[DataFile, ...]  # the partition's files now

    @property
    def to_read(self) -> OffsetRange:
        """The history that is read."""
        return self.new if self.rebuild else OffsetRange(self.old.end, self.new.end)

    def removed(self, touched: Collection[int]) -> tuple[DataFile, ...]:
        """Return the files that the commit removes, given the buckets that new keys fall into."""
        if self.whole:
            return self.files
        return tuple(file for file in self.files if place_of(file).bucket in touched)


@dataclass(frozen=True, slots=True)
class BucketPlace:
    """Which bucket a file is, of how many; what its name says."""

    bucket: int
    count: int


def plan(
    latest: TableSnapshot,
    history: TableSnapshot,
    sizes: Mapping[int, int],
    *,
    distrusted: Collection[int] = (),
) -> list[PartitionPlan]:
    """Return what each partition needs, without those that are up to date.

    ``sizes`` estimates, per partition, the bytes of the newest rows among those to be read.
    Partitions that are ``distrusted`` are built anew from history.

    Raises:
        StreamRecreatedError: they are of two incarnations of the stream.
        TableRolledBackError: the key snapshot covers offsets that the history does not have.
    """
    if latest.stream_uuid != history.stream_uuid:
        raise StreamRecreatedError(
            f"{latest.uri} is of stream {latest.stream_uuid}, {history.uri} of another",
            expected=latest.stream_uuid,
            found=history.stream_uuid,
        )
    plans = []
    for number, new in sorted(history.ranges.items()):
        old = latest.ranges[number]
        if old.end > new.end:
            raise TableRolledBackError(
                f"{latest.uri} covers partition {number} up to {old.end}, but {history.uri} ends "
                f"at {new.end}",
                uri=history.uri,
                partition=number,
                expected=int(old.end),
                found=int(new.end),
            )
        if old != new or number in distrusted:
            fresh_bytes = sizes.get(number, 0)
            plans.append(
                _plan_partition(
                    latest, number, old, new, fresh_bytes, distrusted=number in distrusted
                )
            )
    return plans


def ranges_to_read(latest: TableSnapshot, history: TableSnapshot) -> dict[int, OffsetRange]:
    """Return the history that an advance reads, by partition; errors as in :func:`plan`."""
    return {one.partition: one.to_read for one in plan(latest, history, {}) if one.to_read}


def buckets_for(bytes_count: int) -> int:
    """Return how many buckets so many bytes deserve: a power of two."""
    wanted = -(-bytes_count // BUCKET_BYTES)
    return min(BUCKETS_MAX, 1 << max(0, wanted - 1).bit_length())


def bucket_of(key: bytes, count: int) -> int:
    """Return the bucket of a key; Spark's ``pmod(crc32(key), count)`` is the same."""
    return zlib.crc32(key) % count


def bucket_path(partition: int, bucket: int, count: int, end: int) -> str:
    """Return a fresh path, below the table, for the file of one bucket as of ``end``."""
    return (
        f"partition={partition}/{bucket:04}-of-{count:04}-{end:020}-{secrets.token_hex(8)}.parquet"
    )


def place_of(file: DataFile) -> BucketPlace:
    """Return what a file's name says; asserts that the name is ours, see :func:`layout`."""
    match = _NAME.match(file.path)
    assert match is not None, f"{file.path} is not the file of a bucket"
    return BucketPlace(int(match[2]), int(match[3]))


def layout(files: Sequence[DataFile]) -> int | None:
    """Return into how many buckets a partition's files are cut; None when they are not ours."""
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


def _plan_partition(  # two histories of one partition
    latest: TableSnapshot,
    number: int,
    old: OffsetRange,
    new: OffsetRange,
    fresh_bytes: int,
    *,
    distrusted: bool,
) -> PartitionPlan:
    files = tuple(file for file in latest.files if file.partition == number)
    # A row below what retention left is the newest of its key no more: such a row is in no history.
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
