"""Keeps proofs of a table's provenance in this process, and sometimes in the table's folder.

With a proof of version P, the proof of a later version has to check only the commits in between.
Before a proof is used, the present commit file of P is compared with the proved one. If they
differ, the log was rewritten, and the proof fails. The stored form is
``_headwater/proof/<version>.json.gz``. The processes that write to the table anyhow (tiering, jobs)
write it, and nothing ever changes it. A stored proof only saves work: one that cannot be read is
ignored, and the check begins at an earlier version, in the worst case at version 0.
"""

from __future__ import annotations

import gzip
import hashlib
import json
import re
import threading
import zlib
from collections import OrderedDict
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import suppress
from typing import Any, Final

from broker.codec.checksum import crc32c
from broker.errors import ObjectCorruptError, ObjectMissingError, TableMismatchError
from broker.model.offsets import OFFSET_MAX, Offset, OffsetRange
from tiering.proof.provenance import (
    ProvedFile,
    Provenance,
    Walk,
    anchor_of,
    require_listed,
)
from tiering.store.object_store import ObjectStore
from tiering.table.delta_log import log_key
from tiering.table.table import (
    PROOF_PREFIX,
    DataFile,
    SparsePrefix,
    TableSnapshot,
    first_of_ms,
    last_of_ms,
)

_FORMAT: Final = 1
_FORMAT_SPARSE: Final = (
    2  # older builds ignore such a proof, and find that they do not know the commit
)
_BYTES_MAX: Final = 512 * 1024 * 1024  # of a stored proof: some millions of files
_RATIO_MAX: Final = 64  # how far a stored proof is compressed; each of its rows has another path
_RATIO_FREE_BYTES: Final = 64 * 1024  # below this size any ratio is good
_KEY: Final = re.compile(rf"{PROOF_PREFIX}/(\d{{20}})(-contents)?\.json\.gz\Z")
_CONTENTS: Final = "-contents"
_TABLES_MAX: Final = 64
_VERSIONS_MAX: Final = 4  # proved versions kept per table: the newest and those of old cuts
_THREADS: Final = 16
_PARALLEL_MIN: Final = 4
_STORED_NEARER: Final = 50  # with more commits to check, a stored proof is worth a listing
_STORE_EVERY_MIN: Final = 20  # versions between stored proofs; more for a table of many files
_FILES_PER_VERSION: Final = 20

_Key = tuple[str, str]  # a table's URI and its id


class ProofCache:
    """Proved versions of the tables that this process has used. Any thread."""

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._tables: OrderedDict[_Key, dict[int, Provenance]] = OrderedDict()
        # Of each table the proof that was used last, and the version that was compared with it.
        self._compared: dict[_Key, tuple[Provenance, TableSnapshot | None]] = {}

    def nearest(self, key: _Key, version: int) -> Provenance | None:
        """Return a table's newest proof of this version or an older one."""
        with self._lock:
            known = self._tables.get(key, {})
            found = max((one for one in known if one <= version), default=None)
            return None if found is None else known[found]

    def put(self, key: _Key, proof: Provenance, compared: TableSnapshot | None = None) -> None:
        """Keep a proof; the oldest proofs are dropped when there are too many.

        ``compared`` is the version that was found to list exactly the files of the proof.
        """
        with self._lock:
            self._compared[key] = proof, compared
            known = self._tables.setdefault(key, {})
            self._tables.move_to_end(key)
            known[proof.version] = proof
            while len(known) > _VERSIONS_MAX:
                del known[min(known)]
            while len(self._tables) > _TABLES_MAX:
                self._compared.pop(self._tables.popitem(last=False)[0], None)

    def is_compared(self, key: _Key, proof: Provenance, snapshot: TableSnapshot) -> bool:
        """Tell whether this very version was compared with this very proof."""
        with self._lock:
            known = self._compared.get(key)
        return known is not None and known[0] is proof and known[1] is snapshot

    def forget(self) -> None:
        """Forget everything, as a new process would."""
        with self._lock:
            self._tables.clear()
            self._compared.clear()


CACHE: Final = ProofCache()


def prove(snapshot: TableSnapshot, store: ObjectStore, *, cache: ProofCache = CACHE) -> Provenance:
    """Prove that every commit up to a version is ours or changes no data, and return the proof.

    ``snapshot`` is a whole version, as the Delta library read it; ``store`` holds the table. The
    cost is one request, plus one per version after the last proved one. Callers must not change
    the proof that is returned.

    Raises:
        TableMismatchError: a foreign change (facts: version, operation, author), or a log that was
            rewritten.
        ObjectMissingError: commits are gone that no proof covers.
        RemoteTierUnavailableError: the store does not answer.
    """
    proof = _walked(snapshot, store, cache)
    key = (snapshot.uri, snapshot.table_id)
    if not cache.is_compared(key, proof, snapshot):
        require_listed(proof, snapshot)
    cache.put(key, proof, snapshot)
    return proof


def refuse_foreign(
    snapshot: TableSnapshot, store: ObjectStore, *, cache: ProofCache = CACHE
) -> None:
    """Refuse to commit on top of a version with a foreign change.

    For a writer whose version was not the newest one any more. Raises as :func:`prove`, which also
    compares the files of the version; whoever reads it asks for that.
    """
    _walked(snapshot, store, cache)


def _walked(snapshot: TableSnapshot, store: ObjectStore, cache: ProofCache) -> Provenance:
    """Return the proof of a version's commits; its files are not compared."""
    known = cache.nearest((snapshot.uri, snapshot.table_id), snapshot.version)
    base = Provenance() if known is None else known
    # A short log too asks for a stored proof: the proof shows if the log was rewritten.
    if known is None or snapshot.version - base.version > _STORED_NEARER:
        stored = _stored(snapshot, store, above=base.version)
        base = base if stored is None else stored
    _require_anchor(base, snapshot, store)
    if base.version == snapshot.version:
        return base
    walk = Walk(base, snapshot.uri)
    try:
        for version, body in _commits(store, base.version + 1, snapshot.version):
            walk.step(version, body)
    except ObjectMissingError as cause:
        key = str(cause.facts["key"])
        raise ObjectMissingError(
            f"{snapshot.uri}: {key} is gone, and no stored proof covers it: the table's log was "
            f"cleaned up or cut, so nothing tells whose rows version {snapshot.version} has. Bring "
            f"back the commits from version {base.version + 1} on, from the bucket's object "
            "versions or from a backup; then the table is served again",
            key=key,
            uri=snapshot.uri,
            version=snapshot.version,
        ) from cause
    return walk.end()


def note_proof(snapshot: TableSnapshot, store: ObjectStore, *, cache: ProofCache = CACHE) -> None:
    """Store the proof of a version in the table's folder, if the last stored one is old enough.

    Raises as :func:`prove`.
    """
    proof = prove(snapshot, store, cache=cache)
    listed = [version for version, _ in _listed(store) if version <= snapshot.version]
    due = max(_STORE_EVERY_MIN, len(proof.files) // _FILES_PER_VERSION)
    if listed and snapshot.version - listed[-1] < due:
        return
    _store(proof, store, "")  # another process may have stored it first: it proved the same


def note_contents(proof: Provenance, store: ObjectStore) -> None:
    """Store a proof with the checksums of files of a foreign writer; see object_proof.py."""
    _store(proof, store, _CONTENTS)


def _store(proof: Provenance, store: ObjectStore, mark: str) -> None:
    body = encode(proof)
    key = f"{PROOF_PREFIX}/{proof.version:020}{mark}.json.gz"
    store.put_if_absent(key, body, crc32c=crc32c(body))


def encode(proof: Provenance) -> bytes:
    """Return the stored form: canonical JSON with its SHA-256, compressed."""
    values = {
        "v": _FORMAT_SPARSE if proof.sparse else _FORMAT,
        "version": proof.version,
        "anchor": proof.anchor,
        "table_id": proof.table_id,
        "properties": proof.properties,
        "columns": proof.columns,
        "ranges": {str(n): [int(r.start), int(r.end)] for n, r in proof.ranges.items()},
        "files": [_file_row(proof.files[path]) for path in sorted(proof.files)],
    }
    if proof.sparse:
        left = proof.sparse.items()
        values["sparse"] = {str(n): [int(one.end), one.records_count] for n, one in left}
    text = json.dumps(values, sort_keys=True, separators=(",", ":")).encode()
    digest = hashlib.sha256(text).hexdigest().encode()
    return gzip.compress(digest + b"\n" + text, compresslevel=1, mtime=0)


def decode(body: bytes, key: str) -> Provenance:
    """Parse the stored form; raises ObjectCorruptError if the bytes are not a stored proof."""
    try:
        inflater = zlib.decompressobj(wbits=31)
        size_max = min(_BYTES_MAX, max(_RATIO_FREE_BYTES, _RATIO_MAX * len(body)))
        plain = inflater.decompress(body, size_max)
        digest, _, text = plain.partition(b"\n")
        if not inflater.eof or hashlib.sha256(text).hexdigest().encode() != digest:
            raise ObjectCorruptError(f"{key} is damaged", key=key)
        values = json.loads(text)
        if values["v"] != (_FORMAT_SPARSE if "sparse" in values else _FORMAT):
            raise ObjectCorruptError(
                f"{key} has the unknown format {values['v']!r}; this build reads {_FORMAT_SPARSE}",
                key=key,
            )
        files = [_file_of(row) for row in values["files"]]
        return Provenance(
            version=values["version"],
            anchor=values["anchor"],
            table_id=values["table_id"],
            properties=values["properties"],
            columns=values["columns"],
            ranges={
                int(number): _range_of(start, end)
                for number, (start, end) in values["ranges"].items()
            },
            files={one.file.path: one for one in files},
            sparse={
                int(number): SparsePrefix(Offset(end), count)
                for number, (end, count) in values.get("sparse", {}).items()
            },
        )
    except (zlib.error, ValueError, KeyError, TypeError, AttributeError, RecursionError) as cause:
        raise ObjectCorruptError(f"{key} is not a proof of a table", key=key) from cause


def _require_anchor(base: Provenance, snapshot: TableSnapshot, store: ObjectStore) -> None:
    if base.version < 0:
        return
    # If a clean-up deleted the commit file, only the list of files is left to be compared.
    with suppress(ObjectMissingError):
        if anchor_of(store.get(log_key(base.version))) != base.anchor:
            raise TableMismatchError(
                f"{snapshot.uri}: commit {base.version} is not the commit that was proved before: "
                "the log was rewritten, or the table was replaced by another copy of it",
                uri=snapshot.uri,
                version=base.version,
                operation="a rewritten log",
                author="unknown",
            )


def _commits(store: ObjectStore, first: int, last: int) -> Iterator[tuple[int, bytes]]:
    """Yield commit files in order; fetched in parallel, since a store's latency dominates."""
    versions = range(first, last + 1)
    if len(versions) < _PARALLEL_MIN:
        for version in versions:
            yield version, store.get(log_key(version))
        return
    with ThreadPoolExecutor(min(_THREADS, len(versions)), "headwater-proof") as threads:
        for low in range(first, last + 1, 8 * _THREADS):
            some = versions[low - first : low - first + 8 * _THREADS]
            yield from zip(some, threads.map(store.get, map(log_key, some)), strict=True)


def _stored(snapshot: TableSnapshot, store: ObjectStore, *, above: int) -> Provenance | None:
    """Return the newest stored proof with this table's id and a version in ``(above, version]``."""
    for version, key in reversed(_listed(store)):
        if not above < version <= snapshot.version:
            continue
        with suppress(ObjectCorruptError, ObjectMissingError):
            found = decode(store.get(key), key)
            if (found.table_id, found.version) == (snapshot.table_id, version):
                return found
    return None


def _listed(store: ObjectStore) -> list[tuple[int, str]]:
    """Return the stored proofs, oldest first; of one version, the proof with contents last."""
    found = store.list(f"{PROOF_PREFIX}/")
    return sorted(
        ((int(match[1]), info.key) for info in found if (match := _KEY.match(info.key))),
        key=lambda one: (one[0], _CONTENTS in one[1]),
    )


def _range_of(start: Any, end: Any) -> OffsetRange:
    """Return a range of a stored proof; raises ValueError or TypeError if it is none."""
    if not 0 <= start <= end <= OFFSET_MAX:
        raise ValueError(f"[{start}, {end}) is not a range of offsets")
    return OffsetRange(Offset(start), Offset(end))


def _file_row(one: ProvedFile) -> list[Any]:
    file = one.file
    return [
        file.path, file.size_bytes, file.partition, file.records_count, file.min_offset,
        file.max_offset, file.min_timestamp_us, file.max_timestamp_us, one.crc32c, one.etag,
        one.ours, *([] if one.claims is None else [one.claims]),
    ]  # fmt: skip


def _file_of(row: list[Any]) -> ProvedFile:
    path, size, partition, count, least, greatest, first, latest, crc, etag, ours, *claims = row
    file = DataFile(
        path=path,
        size_bytes=size,
        partition=partition,
        records_count=count,
        min_offset=least,
        max_offset=greatest,
        min_timestamp_us=first_of_ms(first),  # an older version stored what the commit stated
        max_timestamp_us=last_of_ms(latest),
    )
    return ProvedFile(file, crc, etag, ours, *claims)
