"""A copy of a remote table's log in a local folder, brought forward by new files only.

delta-rs asks the store for each commit twice, and anew for each table that is opened. So it works
on this copy, and the requests are made here: a listing, then each new file once, several at a time.
Our own readers of transactions and of the proof get the same bytes, so all checks see what the
store gave.

Each use begins with a listing. A file of the copy stands for the store's only while it is listed
with the size and the ETag that it had when it was fetched. If one is missing or differs, the log
was cleaned up, cut, restored or replaced; then all of it is fetched again.
"""

from __future__ import annotations

import hashlib
import os
import weakref
from bisect import bisect_right
from collections.abc import Iterator, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import suppress
from itertools import islice
from operator import attrgetter
from pathlib import Path
from shutil import rmtree
from tempfile import mkdtemp
from typing import Any, Final, cast

from broker.errors import ObjectMissingError, RemoteTierUnavailableError
from tiering.scratch import scratch_folder
from tiering.store.location import StoreConfig
from tiering.store.object_store import ErasableStore, ObjectInfo, ObjectStore
from tiering.store.opening import open_for_reading
from tiering.table.delta_log import CHECKPOINT, LOG_FILE, WHOLE_CHECKPOINT, log_key
from tiering.table.table import FILES_PREFIX, PROOF_PREFIX

_LOG: Final = "_delta_log/"
_SIDECARS: Final = "_delta_log/_sidecars/"
_BYTES_MAX: Final = 64 * 1024 * 1024
_COMMITS_MAX: Final = 100  # with more above its checkpoint, the copy begins at a newer one
_THREADS: Final = 16
_KEY_OF: Final = attrgetter("key")


class LogCopy:
    """The object store of a table, with a copy of its log as one listing showed it. Any thread."""

    def __init__(
        self,
        store: ObjectStore,
        folder: _Folder,
        held: Mapping[str, ObjectInfo],
        listed: Mapping[str, Sequence[ObjectInfo]],
    ) -> None:
        """Keep the files that the folder has, and whole listings of that moment by their prefix."""
        self._store = store
        self._folder = folder
        self.held = held
        self._listed = listed
        self.base = _newest(held, WHOLE_CHECKPOINT)  # the checkpoint; -1: none
        self.version = max(self.base, _newest(held, LOG_FILE))

    @property
    def folder(self) -> Path:
        """The copy, as a Delta table without data files; deleted with the last copy in it."""
        return self._folder.path

    @property
    def config(self) -> StoreConfig:
        """Location of the table itself."""
        return self._store.config

    def put_if_absent(self, key: str, body: Any, *, crc32c: int) -> ObjectInfo | None:
        """Create an object in the store; see the port."""
        return self._store.put_if_absent(key, body, crc32c=crc32c)

    def get(self, key: str, start: int | None = None, end: int | None = None) -> bytes:
        """Return an object's bytes, from the copy if it has the object; see the port."""
        if start is None and end is None and key in self.held:
            with suppress(OSError):  # something else may empty a temporary folder
                return (self.folder / key).read_bytes()
        return self._store.get(key, start, end)

    def head(self, key: str) -> ObjectInfo:
        """Ask the store; see the port."""
        return self._store.head(key)

    def list(self, prefix: str, *, start_after: str = "") -> Iterator[ObjectInfo]:
        """List the store, or return what was listed when the log was fetched; see the port."""
        if prefix in self._listed:
            found = self._listed[prefix]
            return islice(found, bisect_right(found, start_after, key=_KEY_OF), None)
        return self._store.list(prefix, start_after=start_after)

    def make_durable(self, keys: Sequence[str]) -> None:
        """Ask the store; see the port."""
        self._store.make_durable(keys)

    def erase(self, keys: Sequence[str]) -> None:
        """Delete objects of a store that can; see the port."""
        cast("ErasableStore", self._store).erase(keys)

    def under(self, path: str) -> ObjectStore:
        """Return the store one folder down, without the copy."""
        return self._store.under(path)

    def folder_for(self, wanted: Sequence[ObjectInfo]) -> _Folder:
        """Return this folder if all of its files are wanted, else one with those that are."""
        keys = {one.key for one in wanted}
        if keys.issuperset(self.held):
            return self._folder
        folder = _Folder()
        for key in keys.intersection(self.held):
            os.link(self.folder / key, folder.path / key)
        return folder

    def is_listed(self, log: Sequence[ObjectInfo]) -> bool:
        """Tell whether a listing has every file of the copy, unchanged."""
        now = {one.key: one for one in log}
        return all(
            key in now and _is_same(now[key], one) and (self.folder / key).exists()
            for key, one in self.held.items()
        )


class _Folder:
    """A temporary folder for a Delta log; deleted with this object."""

    def __init__(self) -> None:
        self.path = Path(mkdtemp(prefix="log-", dir=scratch_folder()))
        self.etags_are_md5 = True  # until a file shows that they are something else
        weakref.finalize(self, rmtree, self.path, ignore_errors=True)
        (self.path / _LOG).mkdir()

    def put(self, key: str, body: bytes) -> None:
        """Write a file of the log, at once: another thread may read the folder."""
        part = self.path / f"{os.urandom(8).hex()}.part"
        part.write_bytes(body)
        part.replace(self.path / key)

    def wrote(self, one: ObjectInfo) -> bool:
        """Tell whether a file that this process wrote here and put into the store is the object.

        An ETag is the MD5 of the object's bytes, or a text that never equals one.
        """
        try:
            body = (self.path / one.key).read_bytes()
        except OSError:
            return False
        return _has_md5_of(one, body)


def store_for_one_read(config: StoreConfig, version: int) -> ObjectStore:
    """Return the store of the table at a location, for one read of one version.

    For a remote table, the listings and log files that the read needs first are fetched at once.

    Raises InvalidConfigError, RemoteTierUnavailableError.
    """
    store = open_for_reading(config)
    return fetch_log(store, version, also=(FILES_PREFIX, f"{PROOF_PREFIX}/")) or store


def empty_copy(store: ObjectStore) -> LogCopy:
    """Return the copy of a log without files, for a table that is not created yet."""
    return LogCopy(store, _Folder(), {}, {})


def fetch_log(
    store: ObjectStore,
    version: int | None = None,
    *,
    known: LogCopy | None = None,
    also: Sequence[str] = (),
) -> LogCopy | None:
    """Fetch a table's log up to a version, or to its newest one: a listing, then the new files.

    ``store`` holds the table. ``known`` is an earlier copy of this log, whose files are not fetched
    again if they are unchanged; the result then ends at its version or later. ``also`` are prefixes
    that are listed at the same time, for callers of ``list``. Returns None if a copy saves nothing
    (a local folder) or would not be complete: a checkpoint of several files, a missing commit, or
    more than 64 MiB of log. Then the caller opens the table in its store, and the error of that
    call names what is missing.

    Raises RemoteTierUnavailableError.
    """
    if store.config.kind == "local":
        return None
    copy = None
    if known is not None and (version is None or version >= known.base):
        copy = _fetched(store, version, known, also)
    return copy or _fetched(store, version, None, also)


def _fetched(
    store: ObjectStore, version: int | None, known: LogCopy | None, also: Sequence[str]
) -> LogCopy | None:
    after = "" if known is None or known.base < 0 else log_key(known.base).removesuffix(".json")
    places = [(_LOG, after), *((prefix, "") for prefix in also)]
    with ThreadPoolExecutor(_THREADS, "headwater-log") as threads:
        log, *others = threads.map(lambda at: list(store.list(at[0], start_after=at[1])), places)
        if not log and version is None:
            return empty_copy(store)
        wanted = _needed(log, version, known)
        if not wanted or sum(one.size_bytes for one in wanted) > _BYTES_MAX:
            return None
        with suppress(ObjectMissingError, OSError):  # deleted meanwhile; no room for a copy
            folder = _Folder() if known is None else known.folder_for(wanted)
            held = {} if known is None else known.held
            new = [one for one in wanted if one.key not in held and not folder.wrote(one)]
            compares = folder.etags_are_md5  # for all of them: they are fetched at the same time
            found = threads.map(lambda one: _fetched_file(store, one, compares=compares), new)
            for one, (body, shows_md5) in zip(new, found, strict=True):
                folder.put(one.key, body)
                folder.etags_are_md5 = folder.etags_are_md5 and shows_md5
            listed = dict(zip(also, others, strict=True)) | ({} if after else {_LOG: log})
            return LogCopy(store, folder, {one.key: one for one in wanted}, listed)
    return None


def _fetched_file(store: ObjectStore, one: ObjectInfo, *, compares: bool) -> tuple[bytes, bool]:
    """Fetch a file as it was listed; return it, and False if its ETag is something else than MD5.

    A copy is kept for long, so a wrong bit would be, too. With ``compares`` the ETag has to be the
    file's MD5, or two answers have to agree. Where ETags are no MD5 (SSE-KMS, uploads by parts),
    this is asked of the files that are fetched first.
    """
    body = store.get(one.key)
    if len(body) != one.size_bytes:  # as a proxy's answer that was cut short may be
        raise RemoteTierUnavailableError(f"{one.key}: the answer was cut short", key=one.key)
    if not compares or one.etag is None or _has_md5_of(one, body):
        return body, True
    if store.get(one.key) != body:
        raise RemoteTierUnavailableError(
            f"{one.key}: two answers of the store differ, so one was damaged on its way",
            key=one.key,
        )
    return body, False


def _has_md5_of(one: ObjectInfo, body: bytes) -> bool:
    return one.etag is not None and one.etag.strip('"') == _md5(body)


def _needed(
    log: Sequence[ObjectInfo], version: int | None, known: LogCopy | None
) -> list[ObjectInfo]:
    """Return a checkpoint up to a version, and the commits above it.

    The checkpoint is that of ``known``, so that the copy is only brought forward, or the newest
    one. Returns [] if a copy of these files would not be complete (see :func:`fetch_log`), or if
    files of ``known`` are not listed any more.
    """
    if any(one.key.startswith(_SIDECARS) for one in log):
        return []
    commits = {int(match[1]): one for one in log if (match := LOG_FILE.match(one.key))}
    checkpoints = [(int(match[1]), one) for one in log if (match := CHECKPOINT.match(one.key))]
    if version is None:
        version = max([*commits, *(number for number, _ in checkpoints)], default=-1)
    start: list[ObjectInfo]
    if known is not None:
        if not known.is_listed(log):
            return []
        version = max(version, known.version)
    if known is not None and len(known.held) <= _COMMITS_MAX:
        start, numbers = list(known.held.values()), range(known.version + 1, version + 1)
    else:
        base = max((number for number, _ in checkpoints if number <= version), default=-1)
        start = [one for number, one in checkpoints if number == base]
        if any(WHOLE_CHECKPOINT.match(one.key) is None for one in start):
            return []
        numbers = range(max(base, 0) if base == version else base + 1, version + 1)
    if any(number not in commits for number in numbers):
        return []
    return [*start, *(commits[number] for number in numbers)]


def _is_same(one: ObjectInfo, other: ObjectInfo) -> bool:
    return (one.size_bytes, one.etag) == (other.size_bytes, other.etag) and one.etag is not None


def _md5(body: bytes) -> str:
    return hashlib.md5(body, usedforsecurity=False).hexdigest()


def _newest(keys: Mapping[str, ObjectInfo], kind: Any) -> int:
    return max((int(match[1]) for key in keys if (match := kind.match(key))), default=-1)
