"""The ledger: one small object per committed range, with the digest that proves its rows.

Delta's own file tags do not survive OPTIMIZE (and delta-rs writes none). So each range's digest is
kept beside the table, in ``_headwater/ledger/<partition>/<start>.json``. Delta readers and VACUUM
ignore names that begin with an underscore. An entry is created once, after the commit of its range.
Its key is made of the range's start, so a second, different entry for the same start cannot be
stored. See docs/decisions/0003-ledger-beside-the-table.md.
"""

from __future__ import annotations

import json
import re
from collections.abc import Iterable, Sequence
from dataclasses import asdict, dataclass, fields, replace
from typing import Any, Final

from broker.codec.checksum import crc32c
from broker.errors import GapError, ObjectCorruptError, OverlapError
from broker.model.lineage import is_lineage_id
from broker.model.offsets import OFFSET_MAX, Offset, OffsetRange
from tiering.store.object_store import ObjectStore
from tiering.table.table import LEDGER_PREFIX

_ENTRY_BYTES_MAX: Final = 16 * 1024
_FORMAT: Final = 2
_FORMAT_WITHOUT_LINEAGE: Final = 1
_FORMAT_SPARSE: Final = 3  # in the account of a key compaction; never in the ledger
_KEY: Final = re.compile(r"_headwater/ledger/(\d+)/(\d{20})\.json\Z")
_HEX: Final = re.compile(r"[0-9a-f]{64}\Z")
_TEXTS: Final = ("digest", "path", "lineage_id")
NO_VERSION: Final = -1


@dataclass(frozen=True, slots=True, kw_only=True)
class LedgerEntry:
    """The facts of one committed range ``[start, end)``. All of them can be computed again."""

    partition: int
    start: Offset
    end: Offset
    records_count: int
    digest: str
    first_leader_epoch: int
    last_leader_epoch: int
    min_timestamp_us: int
    max_timestamp_us: int
    path: str  # the object as first written, below the table; OPTIMIZE may have replaced it
    size_bytes: int
    crc32c: int
    version: int = NO_VERSION  # table version of the commit; NO_VERSION while it is unknown
    lineage_id: str = ""  # the leadership that shipped the range; empty: an old build shipped it
    sparse: bool = False  # a file of key compaction: offsets between its rows are missing

    def __post_init__(self) -> None:
        numbers = (self.partition, self.records_count, self.size_bytes, self.crc32c)
        if (
            not 0 <= self.start < self.end <= OFFSET_MAX
            or not 0 < self.records_count <= self.end - self.start
            or (self.records_count < self.end - self.start and not self.sparse)
            or min(numbers) < 0
            or _HEX.match(self.digest) is None
            or not (self.lineage_id == "" or is_lineage_id(self.lineage_id))
        ):
            raise ObjectCorruptError(
                f"the values of the ledger entry for [{self.start}, {self.end}) of partition "
                f"{self.partition} are not valid",
                key=ledger_key(self.partition, self.start),
            )

    @property
    def range(self) -> OffsetRange:
        """The offsets of the range."""
        return OffsetRange(self.start, self.end)

    def at_version(self, version: int) -> LedgerEntry:
        """Return the entry with the table version of its commit."""
        return replace(self, version=version)

    def of_lineage(self, lineage_id: str) -> LedgerEntry:
        """Return the entry with the lineage id of the leadership that ships the range."""
        return replace(self, lineage_id=lineage_id)

    def to_dict(self) -> dict[str, Any]:
        """Return JSON-ready values."""
        values = asdict(self)
        if self.sparse:
            return {"v": _FORMAT_SPARSE, **values}
        del values["sparse"]
        if not self.lineage_id:  # an old entry that is written again must have the same bytes
            del values["lineage_id"]
            return {"v": _FORMAT_WITHOUT_LINEAGE, **values}
        return {"v": _FORMAT, **values}

    def encode(self) -> bytes:
        """Return the canonical bytes: equal entries have equal bytes."""
        return json.dumps(self.to_dict(), sort_keys=True, indent=1).encode() + b"\n"

    @classmethod
    def from_dict(cls, values: Any, *, key: str, sparse: bool = False) -> LedgerEntry:
        """Rebuild an entry; raises ObjectCorruptError (with ``key``) if it is not a valid one.

        ``sparse`` says which kind the caller expects; the other kind is not valid.
        """
        types: dict[str, type] = {
            one.name: str if one.name in _TEXTS else int for one in fields(cls)
        } | {"sparse": bool}
        version = values.get("v") if isinstance(values, dict) else None
        if not sparse:
            del types["sparse"]
        if version == _FORMAT_WITHOUT_LINEAGE:
            del types["lineage_id"]
        if (
            version not in ((_FORMAT_SPARSE,) if sparse else (_FORMAT, _FORMAT_WITHOUT_LINEAGE))
            or set(values) != {"v", *types}
            or any(type(values[name]) is not kind for name, kind in types.items())
            or values.get("sparse", True) is not True
        ):
            raise ObjectCorruptError(f"{key} is not a ledger entry", key=key)
        return cls(**{name: values[name] for name in types})


class Ledger:
    """The ledger of one table. Blocking; any thread."""

    def __init__(self, store: ObjectStore) -> None:
        """Use the store that holds the table."""
        self._store = store

    def put(self, entry: LedgerEntry) -> None:
        """Create an entry durably; storing an equal entry again is harmless.

        Raises:
            ObjectCorruptError: the ledger has a different entry for this start.
            RemoteTierUnavailableError.
        """
        key = ledger_key(entry.partition, entry.start)
        body = entry.encode()
        if not self._store.put_if_absent(key, body, crc32c=crc32c(body)):
            raise ObjectCorruptError(
                f"{key} exists already as a different entry for the range from {entry.start} on",
                key=key,
            )

    def get(self, partition: int, start: Offset) -> LedgerEntry:
        """Return the entry that begins at ``start``; raises ObjectMissingError."""
        key = ledger_key(partition, start)
        body = self._store.get(key, None, None)
        if len(body) > _ENTRY_BYTES_MAX:
            raise ObjectCorruptError(f"{key} is too large for a ledger entry", key=key)
        try:
            values = json.loads(body)
        except (ValueError, RecursionError) as cause:
            raise ObjectCorruptError(f"{key} is not JSON", key=key) from cause
        entry = LedgerEntry.from_dict(values, key=key)
        if (entry.partition, entry.start) != (partition, start):
            raise ObjectCorruptError(f"{key} holds the entry of another range", key=key)
        return entry

    def starts(self, partition: int) -> list[Offset]:
        """Return the starts of a partition's entries, in order. Costs one listing."""
        listed = self._store.list(f"{LEDGER_PREFIX}/{partition}/")
        return [Offset(int(match[2])) for info in listed if (match := _KEY.match(info.key))]

    def first_beyond(self, partition: int, offset: int, *, above: int) -> LedgerEntry | None:
        """Return an entry that begins at ``above`` or later and ends above ``offset``, or None.

        If ``offset`` is lower than ``above``, the search begins at ``offset``. The cost is one
        LIST, and one GET if the LIST finds an entry.
        """
        low = min(above, offset)
        after = ledger_key(partition, low - 1) if low > 0 else ""
        listed = self._store.list(f"{LEDGER_PREFIX}/{partition}/", start_after=after)
        begins: int | None = None
        for info in listed:
            if match := _KEY.match(info.key):
                begins = int(match[2])
                if begins >= offset:
                    break
        if begins is None:
            return None
        entry = self.get(partition, Offset(begins))
        return entry if entry.end > offset else None

    def last(self, partition: int) -> LedgerEntry | None:
        """Return the last entry, or None; the table once held every range below its end."""
        starts = self.starts(partition)
        return self.get(partition, starts[-1]) if starts else None

    def end(self, partition: int) -> Offset:
        """Return the end of the last entry; 0 if there is none."""
        last = self.last(partition)
        return Offset(0) if last is None else last.end

    def entries(
        self, partition: int, within: OffsetRange, *, unnoted: Iterable[LedgerEntry] = ()
    ) -> list[LedgerEntry]:
        """Return the entries that cover a range, in order; readers call accounts.py instead.

        ``unnoted`` are entries from commits, for ranges above all entries in the ledger.

        Raises:
            GapError, OverlapError: the entries do not join, or do not cover the range.
            ObjectCorruptError, ObjectMissingError, RemoteTierUnavailableError.
        """
        starts = [start for start in self.starts(partition) if start < within.end]
        first = max((at for at, start in enumerate(starts) if start <= within.start), default=0)
        noted = starts[-1] if starts else Offset(-1)
        listed = (self.get(partition, start) for start in starts[first:])
        found = [entry for entry in listed if entry.end > within.start]
        found += [
            entry
            for entry in unnoted
            if noted < entry.start < within.end and entry.end > within.start
        ]
        _require_joined(found, within, partition)
        return found


def ledger_key(partition: int, start: int) -> str:
    """Return the key of the entry that begins at ``start``, below the table."""
    return f"{LEDGER_PREFIX}/{partition}/{start:020}.json"


def encode_ranges(entries: Iterable[LedgerEntry]) -> str:
    """Return the entries as text for their commit, from which a lost ledger entry is rewritten."""
    return json.dumps([entry.to_dict() for entry in entries], sort_keys=True)


def encode_lineage(entries: Iterable[LedgerEntry]) -> str:
    """Return the lineage id of each partition's range, as text for the commit, for people."""
    return json.dumps({str(entry.partition): entry.lineage_id for entry in entries})


def decode_ranges(text: str, *, version: int) -> list[LedgerEntry]:
    """Parse the text of :func:`encode_ranges` from the table's log; raises ObjectCorruptError."""
    key = f"_delta_log/{version:020}.json"
    try:
        values = json.loads(text)
    except (ValueError, RecursionError) as cause:
        raise ObjectCorruptError(f"{key}: headwater.ranges is not JSON", key=key) from cause
    if not isinstance(values, list):
        raise ObjectCorruptError(f"{key}: headwater.ranges is not a list", key=key)
    return [LedgerEntry.from_dict(value, key=key).at_version(version) for value in values]


def _require_joined(found: Sequence[LedgerEntry], within: OffsetRange, partition: int) -> None:
    expected = int(within.start)
    for number, entry in enumerate(found):
        if entry.start > expected:
            break
        if entry.start < expected and number > 0:
            raise OverlapError(
                f"ledger entries of partition {partition} overlap at [{entry.start}, {expected})",
                partition=partition,
                start=int(entry.start),
                end=expected,
            )
        expected = int(entry.end)
    if expected < within.end:
        nearest = min((int(item.start) for item in found if item.start > expected),
                      default=int(within.end))  # fmt: skip
        raise GapError(
            f"the ledger has no entry for offsets [{expected}, {nearest}) of partition {partition}",
            partition=partition,
            start=expected,
            end=nearest,
        )
