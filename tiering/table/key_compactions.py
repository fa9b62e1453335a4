"""Key compactions: one small object for each commit by which superseded records left the table.

A key compaction exchanges the first files of a partition, all below an offset, for files with the
rows that are left. Its account is in the commit, and afterwards in
``_headwater/compacted/<partition>/<end>.json``: which range is sparse, how many rows are left, and
the digest of each file's rows. Each compaction of a partition ends above the one before, so its end
identifies it. An entry is created once. See docs/decisions/0046-key-compaction-of-the-table.md.
"""

from __future__ import annotations

import json
import re
from dataclasses import dataclass, fields, replace
from itertools import pairwise
from typing import Any, Final

from broker.codec.checksum import crc32c
from broker.errors import GapError, ObjectCorruptError, ObjectMissingError
from broker.model.lineage import is_lineage_id
from broker.model.offsets import OFFSET_MAX, Offset, OffsetRange
from tiering.store.object_store import ObjectStore
from tiering.table.delta_log import commits_between
from tiering.table.ledger import NO_VERSION, LedgerEntry
from tiering.table.table import COMPACTED_PREFIX, Commit, SparsePrefix, TableSnapshot

LEFT_FILES_MAX: Final = 2_000  # that one key compaction writes
_ENTRY_BYTES_MAX: Final = 4 * 1024 * 1024
_FORMAT: Final = 1
_KEY: Final = re.compile(r"_headwater/compacted/(\d+)/(\d{20})\.json\Z")
_TEXTS: Final = ("lineage_id", "commit_id")


@dataclass(frozen=True, slots=True, kw_only=True)
class KeyCompactionEntry:
    """The account of one key compaction: of ``[start, end)`` only the rows of ``files`` are left.

    The last record of the range is always left, so that the range ends where a file ends.
    """

    partition: int
    start: Offset
    end: Offset
    cold_end: Offset  # of the partition when the files were written
    files: tuple[LedgerEntry, ...]  # in order of offset; each is sparse
    compacted_us: int  # when the files were written, by the writer's clock
    lineage_id: str  # the leadership that carried the compaction out
    commit_id: str
    version: int = NO_VERSION  # table version of the commit; NO_VERSION while it is unknown

    def __post_init__(self) -> None:
        ends = [self.start, *(one.end for one in self.files)]
        if (
            not 0 <= self.start < self.end < self.cold_end <= OFFSET_MAX
            or min(self.partition, self.compacted_us) < 0
            or not 0 < len(self.files) <= LEFT_FILES_MAX
            or any(one.partition != self.partition or not one.sparse for one in self.files)
            or any(one.start < end for one, end in zip(self.files, ends, strict=False))
            or any(one.path == other.path for one, other in pairwise(self.files))
            or ends[-1] != self.end
            or not (self.lineage_id == "" or is_lineage_id(self.lineage_id))
        ):
            raise ObjectCorruptError(
                f"the values of the key compaction [{self.start}, {self.end}) of partition "
                f"{self.partition} are not valid",
                key=compaction_key(self.partition, self.end),
            )

    @property
    def range(self) -> OffsetRange:
        """The offsets of which records are missing."""
        return OffsetRange(self.start, self.end)

    @property
    def left(self) -> SparsePrefix:
        """What is left of the partition's first records."""
        return SparsePrefix(self.end, sum(one.records_count for one in self.files))

    def at_version(self, version: int) -> KeyCompactionEntry:
        """Return the account with the table version of its commit."""
        return replace(self, version=version)

    def to_text(self) -> str:
        """Return the canonical text: equal accounts have equal texts."""
        values = {field.name: getattr(self, field.name) for field in fields(self)}
        return json.dumps(
            {"v": _FORMAT, **values, "files": [one.to_dict() for one in self.files]},
            sort_keys=True,
        )

    @classmethod
    def from_text(cls, text: str | bytes, *, key: str) -> KeyCompactionEntry:
        """Rebuild an account; raises ObjectCorruptError (with ``key``) if it is not a valid one."""
        if len(text) > _ENTRY_BYTES_MAX:
            raise ObjectCorruptError(f"{key} is too large for a key compaction", key=key)
        try:
            values: Any = json.loads(text)
        except (ValueError, RecursionError) as cause:
            raise ObjectCorruptError(f"{key} is not JSON", key=key) from cause
        plain = {field.name for field in fields(cls)} - {"files"}
        if (
            not isinstance(values, dict)
            or set(values) != {"v", "files", *plain}
            or values["v"] != _FORMAT
            or not isinstance(values["files"], list)
            or any(type(values[name]) is not (str if name in _TEXTS else int) for name in plain)
        ):
            raise ObjectCorruptError(f"{key} is not a key compaction", key=key)
        files = [LedgerEntry.from_dict(one, key=key, sparse=True) for one in values["files"]]
        return cls(**{name: values[name] for name in plain}, files=tuple(files))


class KeyCompactions:
    """The key compactions of one table. Blocking; any thread."""

    def __init__(self, store: ObjectStore) -> None:
        """Use the store that holds the table."""
        self._store = store

    def put(self, entry: KeyCompactionEntry) -> None:
        """Create an entry durably; storing an equal entry again is harmless.

        Raises:
            ObjectCorruptError: there is a different entry with this end.
            RemoteTierUnavailableError.
        """
        key = compaction_key(entry.partition, entry.end)
        body = entry.to_text().encode() + b"\n"
        if self._store.put_if_absent(key, body, crc32c=crc32c(body)) is None:
            raise ObjectCorruptError(
                f"{key} exists already as a different key compaction up to {entry.end}", key=key
            )

    def get(self, partition: int, end: Offset) -> KeyCompactionEntry:
        """Return the key compaction that ends at ``end``; raises ObjectMissingError."""
        key = compaction_key(partition, end)
        entry = KeyCompactionEntry.from_text(self._store.get(key, None, None), key=key)
        if (entry.partition, entry.end) != (partition, end):
            raise ObjectCorruptError(f"{key} holds the key compaction of another range", key=key)
        return entry

    def ends(self, partition: int) -> list[Offset]:
        """Return the ends of a partition's key compactions, in order. Costs one listing."""
        listed = self._store.list(f"{COMPACTED_PREFIX}/{partition}/")
        return [Offset(int(match[2])) for info in listed if (match := _KEY.match(info.key))]

    def end_before(self, partition: int, compacted_us: int) -> Offset:
        """Return the end of the newest compaction that is at least as old as a time; 0: none."""
        for end in reversed(self.ends(partition)):
            if self.get(partition, end).compacted_us <= compacted_us:
                return end
        return Offset(0)

    def of(self, snapshot: TableSnapshot, partition: int) -> KeyCompactionEntry:
        """Return the account of a version's sparse prefix, from its entry or from its commit.

        Raises:
            GapError: neither is there.
            ObjectCorruptError: the account contradicts the version.
            RemoteTierUnavailableError.
        """
        found = self._noted_or_committed(snapshot, partition)
        stated = snapshot.sparse[partition]
        held = snapshot.range_of(partition)
        # After an expiry the version may have fewer rows; the ranges of files say which.
        fewest = sum(one.records_count for one in found.files if one.start >= held.start)
        most = sum(one.records_count for one in found.files if one.end > held.start)
        if found.end != stated.end or not fewest <= stated.records_count <= most:
            raise ObjectCorruptError(
                f"version {snapshot.version} of {snapshot.uri} has {stated.records_count} rows of "
                f"partition {partition} below {stated.end}, but the key compaction left {most}",
                key=compaction_key(partition, stated.end),
                expected=most,
                found=stated.records_count,
            )
        return found

    def _noted_or_committed(self, snapshot: TableSnapshot, partition: int) -> KeyCompactionEntry:
        end = snapshot.sparse[partition].end
        try:
            return self.get(partition, end)
        except ObjectMissingError:
            noted = [one for one in self.ends(partition) if one < end]
            above = self.get(partition, noted[-1]).version if noted else 0
            for commit in commits_between(self._store, above=max(above, 0), up_to=snapshot.version):
                found = compaction_in(commit)
                if found is not None and (found.partition, found.end) == (partition, end):
                    return found
        raise GapError(
            f"neither an entry nor a commit explains which records below {end} key compaction has "
            f"removed from partition {partition}",
            partition=partition,
            start=int(snapshot.range_of(partition).start),
            end=int(end),
        )


def compaction_key(partition: int, end: int) -> str:
    """Return the key of the key compaction that ends at ``end``, below the table."""
    return f"{COMPACTED_PREFIX}/{partition}/{end:020}.json"


def compaction_in(commit: Commit) -> KeyCompactionEntry | None:
    """Return the key compaction that a commit of ours is, or None."""
    if not commit.compacted_json:
        return None
    key = f"_delta_log/{commit.version:020}.json"
    return KeyCompactionEntry.from_text(commit.compacted_json, key=key).at_version(commit.version)
