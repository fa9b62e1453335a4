"""A copy of a table's log up to one version, for one read of that version from a remote store.

Without the copy, each commit costs four requests: delta-rs reads it twice, and our readers of
transactions and of the proof read it again. Here each file of the log is fetched once, several at a
time, and so are the listings that the proof asks for. delta-rs opens the copy in a local folder,
and our own readers get the same bytes, so all checks see what the store gave.
"""

from __future__ import annotations

import weakref
from collections.abc import Iterator, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import suppress
from pathlib import Path
from shutil import rmtree
from tempfile import mkdtemp
from typing import Any, Final

from broker.errors import ObjectMissingError
from tiering.store.location import StoreConfig
from tiering.store.object_store import ObjectInfo, ObjectStore
from tiering.store.opening import open_for_reading
from tiering.table.delta_log import CHECKPOINT, LOG_FILE, WHOLE_CHECKPOINT
from tiering.table.table import FILES_PREFIX, PROOF_PREFIX

_LOG: Final = "_delta_log/"
_LISTED: Final = (_LOG, FILES_PREFIX, f"{PROOF_PREFIX}/")
_SIDECARS: Final = "_delta_log/_sidecars/"
_BYTES_MAX: Final = 64 * 1024 * 1024
_THREADS: Final = 16


class LogCopy:
    """The object store of a table, whose log up to one version was fetched. Any thread."""

    def __init__(
        self,
        store: ObjectStore,
        listed: Mapping[str, Sequence[ObjectInfo]],
        bodies: Mapping[str, bytes],
    ) -> None:
        """Keep whole listings by their prefix, and bodies by their key, all of one moment."""
        self._store = store
        self._listed = listed
        self._bodies = bodies
        # The copy, as a Delta table without data files; the folder is deleted with this object.
        self.folder = Path(mkdtemp(prefix="headwater-log-"))
        weakref.finalize(self, rmtree, self.folder, ignore_errors=True)
        (self.folder / _LOG).mkdir()
        for key, body in self._bodies.items():
            (self.folder / key).write_bytes(body)

    @property
    def config(self) -> StoreConfig:
        """Location of the table itself."""
        return self._store.config

    def put_if_absent(self, key: str, body: Any, *, crc32c: int) -> bool:
        """Create an object in the store; see the port."""
        return self._store.put_if_absent(key, body, crc32c=crc32c)

    def get(self, key: str, start: int | None = None, end: int | None = None) -> bytes:
        """Return an object's bytes, from the copy if it has the object; see the port."""
        if start is None and end is None and key in self._bodies:
            return self._bodies[key]
        return self._store.get(key, start, end)

    def head(self, key: str) -> ObjectInfo:
        """Ask the store; see the port."""
        return self._store.head(key)

    def list(self, prefix: str, *, start_after: str = "") -> Iterator[ObjectInfo]:
        """List the store, or return what was listed when the log was fetched; see the port."""
        if prefix in self._listed and not start_after:
            return iter(self._listed[prefix])
        return self._store.list(prefix, start_after=start_after)

    def make_durable(self, keys: Sequence[str]) -> None:
        """Ask the store; see the port."""
        self._store.make_durable(keys)

    def under(self, path: str) -> ObjectStore:
        """Return the store one folder down, without the copy."""
        return self._store.under(path)


def store_for_one_read(uri: str, version: int) -> ObjectStore:
    """Return the store of the table at a URI, for one read of one version.

    For a remote table, the listings and log files that the read needs first are fetched at once.

    Raises InvalidConfigError, RemoteTierUnavailableError.
    """
    store = open_for_reading(StoreConfig.from_env(uri))
    return fetch_log(store, version) or store


def fetch_log(store: ObjectStore, version: int) -> LogCopy | None:
    """Fetch a table's log up to a version: listings first, then one request for each file.

    ``store`` holds the table. Returns None if a copy saves nothing (a local folder) or would not be
    complete: a checkpoint of several files, a missing commit, or more than 64 MiB of log. Then the
    caller opens the table in its store, and the error of that call names what is missing.

    Raises RemoteTierUnavailableError.
    """
    if store.config.kind == "local":
        return None
    with ThreadPoolExecutor(_THREADS, "headwater-log") as threads:
        listings = threads.map(lambda prefix: list(store.list(prefix)), _LISTED)
        listed = dict(zip(_LISTED, listings, strict=True))
        wanted = _needed(listed[_LOG], version)
        if not wanted or sum(one.size_bytes for one in wanted) > _BYTES_MAX:
            return None
        with suppress(ObjectMissingError, OSError):  # deleted meanwhile; no room for a copy
            keys = [one.key for one in wanted]
            bodies = dict(zip(keys, threads.map(store.get, keys), strict=True))
            return LogCopy(store, listed, bodies)
    return None


def _needed(listed: Sequence[ObjectInfo], version: int) -> list[ObjectInfo]:
    """Return the newest checkpoint up to a version and the commits above it.

    Returns [] if a copy of these files would not be complete: see :func:`fetch_log`.
    """
    if any(one.key.startswith(_SIDECARS) for one in listed):
        return []
    commits = {int(match[1]): one for one in listed if (match := LOG_FILE.match(one.key))}
    checkpoints = [
        (int(match[1]), one)
        for one in listed
        if (match := CHECKPOINT.match(one.key)) and int(match[1]) <= version
    ]
    base = max((number for number, _ in checkpoints), default=-1)
    start = [one for number, one in checkpoints if number == base]
    if any(WHOLE_CHECKPOINT.match(one.key) is None for one in start):
        return []
    numbers = range(max(base, 0) if base == version else base + 1, version + 1)
    if any(number not in commits for number in numbers):
        return []
    return [*start, *(commits[number] for number in numbers)]
