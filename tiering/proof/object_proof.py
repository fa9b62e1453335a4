"""Checks that the objects of a proved version are the ones that were committed, each object once.

- S3 gives each object an ETag. The ETag in the listing is compared with the one noted in the
  commit, which costs no further request. An ETag may change without the bytes (a copy by parts, a
  restored bucket). Then the object's bytes are read, once per process.
- A local folder has no ETags, and any process can write into it. So the bytes are read once per
  process and compared with the CRC-32C of the commit, and again when the file was written again.
- A file that a foreign OPTIMIZE wrote has no CRC-32C or ETag in a commit of ours. Its rows are
  compared once with the ledger's digests, and its statistics with its rows. The checksum and ETag
  that this check finds are then kept with the proof.
"""

from __future__ import annotations

import os
import threading
from collections import OrderedDict
from collections.abc import Iterable, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import suppress
from dataclasses import replace
from typing import Final

from broker.errors import HeadwaterError, ObjectCorruptError, TableMismatchError
from broker.model.offsets import Offset, OffsetRange
from tiering.proof.proofs import CACHE, ProofCache, note_contents
from tiering.proof.provenance import ProvedFile, Provenance
from tiering.proof.range_proof import checksum_of, verify_entries
from tiering.proof.statistics_proof import require_true_statistics
from tiering.store.object_store import ObjectInfo, ObjectStore
from tiering.table.accounts import accounts
from tiering.table.table import DataFile, TableSnapshot

_OBJECTS_MAX: Final = 1_000_000
_THREADS: Final = max(2, min(8, os.cpu_count() or 2))

_Seen = tuple[str, str, int, object]  # table, path, size, and a stamp that changes with the bytes


class _Objects:
    """The objects that this process has checked. Any thread."""

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._seen: OrderedDict[_Seen, None] = OrderedDict()

    def __contains__(self, seen: _Seen) -> bool:
        return seen in self._seen

    def add(self, seen: _Seen) -> None:
        with self._lock:
            self._seen[seen] = None
            if len(self._seen) > _OBJECTS_MAX:
                self._seen.popitem(last=False)

    def forget(self) -> None:
        """Forget everything, as a new process would."""
        with self._lock:
            self._seen.clear()


_OBJECTS: Final = _Objects()


def require_objects(
    proof: Provenance,
    snapshot: TableSnapshot,
    store: ObjectStore,
    *,
    within: Mapping[int, OffsetRange],
    listed: Mapping[str, ObjectInfo] | None = None,
    cache: ProofCache = CACHE,
) -> None:
    """Prove the objects that hold rows of these ranges. Blocks.

    ``proof`` is the proof of the snapshot (:func:`tiering.proof.proofs.prove`). ``within`` has the
    range of each partition. ``listed`` is a listing of the table; without it the store is asked
    about each object.

    Raises:
        ObjectMissingError, ObjectCorruptError: an object is gone, or is not the one that was
            committed; names its key.
        TableMismatchError: the statistics that a foreign writer gave do not match the rows.
        GapError, OverlapError: rows that a foreign writer rewrote are missing or doubled.
        RemoteTierUnavailableError: the store does not answer.
    """
    wanted = [
        file
        for file in snapshot.files
        if _holds(file, within.get(file.partition), ours=proof.files[file.path].ours)
    ]
    unread: list[tuple[ProvedFile, _Seen]] = []
    foreign: list[tuple[ProvedFile, ObjectInfo, _Seen]] = []
    for file in wanted:
        known = proof.files[file.path]
        info = None if listed is None else listed.get(file.path)
        info = store.head(file.path) if info is None else info
        seen = (snapshot.uri, file.path, file.size_bytes, info.stamp or info.etag)
        same_etag = _require_facts(known, info)
        if not known.ours:
            foreign.append((known, info, seen))
        elif seen in _OBJECTS:
            continue
        elif known.crc32c is not None and (info.stamp is not None or not same_etag):
            unread.append((known, seen))
        else:
            _OBJECTS.add(seen)
    _require_bytes(unread, store)
    if foreign:
        _prove_rows(proof, snapshot, store, foreign, cache)


def _holds(file: DataFile, wanted: OffsetRange | None, *, ours: bool) -> bool:
    if wanted is None or not wanted:
        return False
    if file.records_count == 0:
        return not ours  # only a foreign writer claims that the file is empty
    return file.may_have(wanted)


def _require_facts(known: ProvedFile, info: ObjectInfo) -> bool:
    """Compare the store's facts of an object with the facts that were noted at its commit.

    Returns False if the ETag differs, so that only the bytes can show whether they changed.
    """
    pairs = (
        ("size", known.file.size_bytes, info.size_bytes),
        ("crc32c", known.crc32c, info.crc32c),
    )
    for what, expected, found in pairs:
        if expected is not None and found is not None and expected != found:
            raise _replaced(known.file.path, what, expected, found)
    same_etag = known.etag is None or info.etag is None or known.etag == info.etag
    if not same_etag and known.crc32c is None and known.ours:
        raise _replaced(known.file.path, "ETag", known.etag, info.etag)
    return same_etag


def _require_bytes(unread: Iterable[tuple[ProvedFile, _Seen]], store: ObjectStore) -> None:
    """Read objects whole and compare their CRC-32C; the largest first, in several threads."""
    ordered = sorted(unread, key=lambda one: -one[0].file.size_bytes)

    def check(one: tuple[ProvedFile, _Seen]) -> None:
        known, seen = one
        found = checksum_of(store, known.file.path, known.file.size_bytes)
        if found != known.crc32c:
            raise _replaced(known.file.path, "crc32c", known.crc32c, found)
        _OBJECTS.add(seen)

    if len(ordered) < 2:
        for one in ordered:
            check(one)
        return
    with ThreadPoolExecutor(_THREADS, "headwater-objects") as threads:
        for _ in threads.map(check, ordered):
            pass


def _prove_rows(
    proof: Provenance,
    snapshot: TableSnapshot,
    store: ObjectStore,
    foreign: Sequence[tuple[ProvedFile, ObjectInfo, _Seen]],
    cache: ProofCache,
) -> None:
    """Compare the rows of files of a foreign writer with the ledger; keep the proof's new facts."""
    proved: dict[str, ProvedFile] = {}
    ranges: dict[int, list[OffsetRange]] = {}
    seen = []
    for known, info, mark in foreign:
        file = known.file
        checksum = checksum_of(store, file.path, file.size_bytes)
        if known.crc32c not in (None, checksum):
            raise _replaced(file.path, "crc32c", known.crc32c, checksum)
        proved[file.path] = replace(known, crc32c=checksum, etag=info.etag, ours=True)
        ranges.setdefault(file.partition, []).append(_span(file, snapshot))
        seen.append(mark)
    for partition, spans in sorted(ranges.items()):
        for span in _joined(spans):
            _prove_span(snapshot, store, partition, span)
    for known, _, _ in foreign:
        require_true_statistics(known, snapshot, store)
    for mark in seen:
        _OBJECTS.add(mark)
    extended = proof.copy()
    extended.files.update(proved)
    cache.put((snapshot.uri, snapshot.table_id), extended)
    with suppress(HeadwaterError):  # a reader may have no right to write
        note_contents(extended, store)


def _prove_span(
    snapshot: TableSnapshot, store: ObjectStore, partition: int, span: OffsetRange
) -> None:
    held = snapshot.range_of(partition)
    entries = accounts(snapshot, store, partition, span)
    if not entries:  # only in a sparse range
        raise TableMismatchError(
            f"partition {partition} of {snapshot.uri} has rows in {span}, and key compaction left "
            "none there",
            partition=partition,
        )
    whole = OffsetRange(
        max(held.start, min(span.start, entries[0].start)),
        min(held.end, max(span.end, entries[-1].end)),
    )
    for _ in verify_entries(snapshot, store, partition, whole, entries):
        pass


def _span(file: DataFile, snapshot: TableSnapshot) -> OffsetRange:
    if file.min_offset is None or file.end_offset is None:
        return snapshot.ranges[file.partition]
    return OffsetRange(file.min_offset, file.end_offset)


def _joined(spans: Iterable[OffsetRange]) -> list[OffsetRange]:
    """Join the ranges that overlap or touch."""
    joined: list[OffsetRange] = []
    for span in sorted(spans, key=lambda one: one.start):
        if joined and span.start <= joined[-1].end:
            joined[-1] = OffsetRange(joined[-1].start, Offset(max(joined[-1].end, span.end)))
        else:
            joined.append(span)
    return joined


def _replaced(path: str, what: str, expected: object, found: object) -> ObjectCorruptError:
    return ObjectCorruptError(
        f"{path} is not the object that was committed: its {what} is {found}, not {expected}",
        key=path,
        what=what,
        expected=expected,
        found=found,
    )
