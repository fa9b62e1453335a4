"""Expiries: one small object for each commit by which files left the table, and why.

A commit of an expiry removes the first files of a partition and moves the partition's start. Its
account is in the commit, and afterwards in ``_headwater/expired/<partition>/<start>.json``: so it
is known for ever which ranges the table once had, and why they are gone. The ranges join each other
from offset 0 on. An entry is created once; its key is made of the range's start.
"""

from __future__ import annotations

import json
import re
from dataclasses import asdict, dataclass, fields, replace
from typing import Any, Final

from broker.codec.checksum import crc32c
from broker.errors import GapError, ObjectCorruptError, ObjectMissingError
from broker.model.lineage import is_lineage_id
from broker.model.offsets import OFFSET_MAX, Offset, OffsetRange
from tiering.store.object_store import ObjectStore
from tiering.table.ledger import NO_VERSION
from tiering.table.table import EXPIRED_PREFIX, Commit

FILES_MAX: Final = 1_000  # of one expiry: a longer one is done in several commits
_ENTRY_BYTES_MAX: Final = 1024 * 1024
_PATH_CHARACTERS_MAX: Final = 512
_FORMAT: Final = 1
_KEY: Final = re.compile(r"_headwater/expired/(\d+)/(\d{20})\.json\Z")
_TEXTS: Final = ("lineage_id", "commit_id", "reason")


@dataclass(frozen=True, slots=True, kw_only=True)
class ExpiryEntry:
    """The account of one expiry: the table lost ``[start, end)`` of a partition."""

    partition: int
    start: Offset
    end: Offset
    cold_end: Offset  # of the partition at the time of the commit
    paths: tuple[str, ...]  # the files that held the range, below the table
    size_bytes: int  # of these files
    expired_us: int
    lineage_id: str  # the leadership that carried the expiry out
    commit_id: str
    reason: str = "retention"
    version: int = NO_VERSION  # table version of the commit; NO_VERSION while it is unknown

    def __post_init__(self) -> None:
        if (
            not 0 <= self.start < self.end <= self.cold_end <= OFFSET_MAX
            or min(self.partition, self.size_bytes, self.expired_us) < 0
            or not 0 < len(self.paths) <= FILES_MAX
            or any(not 0 < len(one) <= _PATH_CHARACTERS_MAX for one in self.paths)
            or not (self.lineage_id == "" or is_lineage_id(self.lineage_id))
            or self.reason != "retention"
        ):
            raise ObjectCorruptError(
                f"the values of the expiry [{self.start}, {self.end}) of partition "
                f"{self.partition} are not valid",
                key=expiry_key(self.partition, self.start),
            )

    @property
    def range(self) -> OffsetRange:
        """The offsets that expired."""
        return OffsetRange(self.start, self.end)

    @property
    def records_count(self) -> int:
        """Number of records that expired."""
        return self.end - self.start

    def at_version(self, version: int) -> ExpiryEntry:
        """Return the entry with the table version of its commit."""
        return replace(self, version=version)

    def to_text(self) -> str:
        """Return the canonical text: equal entries have equal texts."""
        return json.dumps({"v": _FORMAT, **asdict(self)}, sort_keys=True)

    @classmethod
    def from_text(cls, text: str | bytes, *, key: str) -> ExpiryEntry:
        """Rebuild an entry; raises ObjectCorruptError (with ``key``) if it is not a valid one."""
        if len(text) > _ENTRY_BYTES_MAX:
            raise ObjectCorruptError(f"{key} is too large for an expiry", key=key)
        try:
            values: Any = json.loads(text)
        except (ValueError, RecursionError) as cause:
            raise ObjectCorruptError(f"{key} is not JSON", key=key) from cause
        known = {field.name for field in fields(cls)}
        if (
            not isinstance(values, dict)
            or set(values) != {"v", *known}
            or values["v"] != _FORMAT
            or not isinstance(values["paths"], list)
            or not all(isinstance(one, str) for one in values["paths"])
            or any(
                type(values[name]) is not (str if name in _TEXTS else int)
                for name in known - {"paths"}
            )
        ):
            raise ObjectCorruptError(f"{key} is not an expiry", key=key)
        return cls(
            **{name: values[name] for name in known - {"paths"}}, paths=tuple(values["paths"])
        )


class Expiries:
    """The expiries of one table. Blocking; any thread."""

    def __init__(self, store: ObjectStore) -> None:
        """Use the store that holds the table."""
        self._store = store

    def put(self, entry: ExpiryEntry) -> None:
        """Create an entry durably; storing an equal entry again is harmless.

        Raises:
            ObjectCorruptError: there is a different entry for this start.
            RemoteTierUnavailableError.
        """
        key = expiry_key(entry.partition, entry.start)
        body = entry.to_text().encode() + b"\n"
        if not self._store.put_if_absent(key, body, crc32c=crc32c(body)):
            raise ObjectCorruptError(
                f"{key} exists already as a different expiry from {entry.start} on", key=key
            )

    def get(self, partition: int, start: Offset) -> ExpiryEntry:
        """Return the expiry that begins at ``start``; raises ObjectMissingError."""
        key = expiry_key(partition, start)
        entry = ExpiryEntry.from_text(self._store.get(key, None, None), key=key)
        if (entry.partition, entry.start) != (partition, start):
            raise ObjectCorruptError(f"{key} holds the expiry of another range", key=key)
        return entry

    def last(self, partition: int) -> ExpiryEntry | None:
        """Return the newest expiry of a partition, or None. Costs one listing."""
        starts = self.starts(partition)
        return self.get(partition, starts[-1]) if starts else None

    def starts(self, partition: int) -> list[Offset]:
        """Return the starts of a partition's expiries, in order."""
        listed = self._store.list(f"{EXPIRED_PREFIX}/{partition}/")
        return [Offset(int(match[2])) for info in listed if (match := _KEY.match(info.key))]

    def entries(self, partition: int, end: Offset) -> list[ExpiryEntry]:
        """Return the expiries that cover ``[0, end)``, in order.

        Raises:
            GapError: they do not; the facts name the first range that no expiry explains.
            ObjectCorruptError, ObjectMissingError, RemoteTierUnavailableError.
        """
        found = [self.get(partition, one) for one in self.starts(partition) if one < end]
        at = Offset(0)
        for entry in found:
            if entry.start != at:
                break
            at = entry.end
        if at < end:
            raise GapError(
                f"no expiry explains why the offsets [{at}, {end}) of partition {partition} are "
                "not in the table",
                partition=partition,
                start=int(at),
                end=int(end),
            )
        return found


def expiry_key(partition: int, start: int) -> str:
    """Return the key of the expiry that begins at ``start``, below the table."""
    return f"{EXPIRED_PREFIX}/{partition}/{start:020}.json"


def expiry_in(commit: Commit) -> ExpiryEntry | None:
    """Return the expiry that a commit of ours carried out, or None."""
    if not commit.expired_json:
        return None
    key = f"_delta_log/{commit.version:020}.json"
    return ExpiryEntry.from_text(commit.expired_json, key=key).at_version(commit.version)


def noted_expiry(
    store: ObjectStore, commits: list[Commit], start: Offset, partition: int
) -> ExpiryEntry:
    """Return the expiry that begins at ``start``, from its entry or from its commit.

    Raises:
        GapError: neither is there.
    """
    try:
        return Expiries(store).get(partition, start)
    except ObjectMissingError:
        for commit in commits:
            found = expiry_in(commit)
            if found is not None and (found.partition, found.start) == (partition, start):
                return found
    raise GapError(
        f"neither an entry nor a commit explains why the offsets from {start} on of partition "
        f"{partition} are not in the table",
        partition=partition,
        start=int(start),
        end=int(start),
    )
