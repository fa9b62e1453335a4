"""The object store on a local directory: objects are created atomically and synced.

An object is written under a temporary name, synced, and linked to its key. The link fails if the
key is taken. The temporary name begins with a dot, so listings and Delta never see a partial
object. New directories are synced up to the root, so that an object whose creation was reported
survives a power loss.
"""

from __future__ import annotations

import errno
import os
import re
import secrets
from collections.abc import Callable, Iterator, Sequence
from contextlib import suppress
from operator import attrgetter
from pathlib import Path
from typing import Any

from broker.codec.checksum import crc32c as crc32c_of
from broker.errors import (
    DiskFullError,
    ObjectCorruptError,
    ObjectMissingError,
    RemoteTierUnavailableError,
)
from tiering.store.location import StoreConfig
from tiering.store.object_store import ObjectInfo

_HIDDEN = re.compile(r"\..+\.(tmp|crc)")  # ours, and those of Hadoop's file system
_FULL = frozenset({errno.ENOSPC, errno.EDQUOT})


class LocalStore:
    """Immutable objects as files. Any thread, any number of processes on one file system."""

    def __init__(self, config: StoreConfig) -> None:
        self._config = config
        self._root = config.root

    @property
    def config(self) -> StoreConfig:
        """Where the root is."""
        return self._config

    def put_if_absent(self, key: str, body: Any, *, crc32c: int) -> ObjectInfo | None:
        """Create an object durably, unless the key is taken; see the port."""
        if crc32c_of(body) != crc32c:
            raise ObjectCorruptError(f"{key} was damaged on its way to the store", key=key)
        path, created = self._path(key), ObjectInfo(key, len(memoryview(body)))
        temporary = path.parent / f".{secrets.token_hex(8)}.tmp"
        try:
            self._make_folder(path.parent)
            try:
                _write_synced(temporary, body)
                os.link(temporary, path)
            finally:
                temporary.unlink(missing_ok=True)
            _sync_folder(path.parent)
        except FileExistsError:
            # The process that created it may not have synced the name yet: sync it before use.
            _sync_folder(path.parent)
            same = path.stat().st_size == created.size_bytes and path.read_bytes() == body
            return created if same else None
        except OSError as cause:
            raise _translated(cause, key) from cause
        return created

    def get(self, key: str, start: int | None = None, end: int | None = None) -> bytes:
        """Return all bytes, or exactly those of ``[start, end)``; see the port."""
        try:
            with self._path(key).open("rb") as file:
                if start is None and end is None:
                    return file.read()
                size = os.fstat(file.fileno()).st_size
                first, last = start or 0, size if end is None else end
                data = os.pread(file.fileno(), max(0, last - first), first)
        except OSError as cause:
            raise _translated(cause, key) from cause
        if len(data) != last - first:
            raise ObjectCorruptError(
                f"{key} has {size} bytes, but [{first}, {last}) was asked for", key=key, size=size
            )
        return data

    def head(self, key: str) -> ObjectInfo:
        """Return the size; a directory keeps no checksum."""
        try:
            status = self._path(key).stat()
        except OSError as cause:
            raise _translated(cause, key) from cause
        return ObjectInfo(key, status.st_size, stamp=_stamp(status))

    def list(self, prefix: str, *, start_after: str = "") -> Iterator[ObjectInfo]:
        """Yield objects by key; temporary files, and files deleted meanwhile, are left out."""
        folder = prefix.rpartition("/")[0]
        found: list[ObjectInfo] = []
        try:
            for base, entry in _files_in(
                str(self._path(folder) if folder else self._root), f"{folder}/" if folder else ""
            ):
                name = entry.name
                key = base + name
                if name.startswith(".") or not key.startswith(prefix) or key <= start_after:
                    continue
                with suppress(FileNotFoundError):
                    status = entry.stat()
                    found.append(ObjectInfo(key, status.st_size, None, None, _stamp(status)))
        except OSError as cause:
            raise _translated(cause, prefix) from cause
        found.sort(key=attrgetter("key"))
        return iter(found)

    def make_durable(self, keys: Sequence[str]) -> None:
        """Sync the files, their folders and the folders above, up to the root."""
        folders: set[Path] = set()
        for key in keys:
            path = self._path(key)
            try:
                _sync_file(path)
            except OSError as cause:
                raise _translated(cause, key) from cause
            folders.update(self._folders(path.parent))
        for folder in folders:
            _sync_folder(folder)

    def erase(self, keys: Sequence[str]) -> None:
        """Delete objects, and folders that this leaves empty; see the port."""
        for key in keys:
            path = self._path(key)
            try:
                path.unlink(missing_ok=True)
            except OSError as cause:
                raise _translated(cause, key) from cause
            with suppress(OSError):  # not empty, or gone
                while path != self._root:
                    path = path.parent
                    path.rmdir()

    def erase_remains(self, belongs: Callable[[str], bool], /) -> Sequence[str]:
        """Delete temporary files of killed processes, checksums and empty folders; see the port."""
        left = []
        for folder, folders, names in os.walk(self._root, topdown=False):
            links = {name for name in (*folders, *names) if Path(folder, name).is_symlink()}
            for name in links.union(name for name in names if name.startswith(".")):
                path = Path(folder, name)
                key = path.relative_to(self._root).as_posix()
                if name in links or not _HIDDEN.fullmatch(name) or not belongs(key):
                    left.append(key)
                    continue
                try:
                    path.unlink(missing_ok=True)
                except OSError as cause:
                    raise _translated(cause, key) from cause
            with suppress(OSError):  # not empty
                Path(folder).rmdir()
        return sorted(left)

    def under(self, path: str) -> LocalStore:
        """Return a store one folder down."""
        return LocalStore(self._config.child(path))

    def _path(self, key: str) -> Path:
        pieces = key.split("/")
        if not key or any(piece in ("", ".", "..") for piece in pieces):
            raise ObjectMissingError(f"{key!r} cannot be a key", key=key)
        return self._root / key

    def _folders(self, folder: Path) -> Sequence[Path]:
        """Return ``folder`` and its parents up to the root and the folder that holds the root."""
        chain = [folder]
        while chain[-1] != self._root and chain[-1] != chain[-1].parent:
            chain.append(chain[-1].parent)
        return [*chain, self._root.parent]

    def _make_folder(self, folder: Path) -> None:
        missing = []
        while not folder.exists():
            missing.append(folder)
            folder = folder.parent
        for path in reversed(missing):
            with suppress(FileExistsError):
                path.mkdir(mode=0o700)
            _sync_folder(path.parent)


def _files_in(folder: str, base: str) -> Iterator[tuple[str, os.DirEntry[str]]]:
    """Yield all files below a folder, each with its folder's key; a missing folder has none."""
    with suppress(FileNotFoundError, NotADirectoryError), os.scandir(folder) as entries:
        for entry in entries:
            if not entry.is_dir():
                yield base, entry
            elif not entry.is_symlink():
                yield from _files_in(entry.path, f"{base}{entry.name}/")


def _stamp(status: os.stat_result) -> tuple[int, ...]:
    return status.st_mtime_ns, status.st_ctime_ns, status.st_ino


def _write_synced(path: Path, body: Any) -> None:
    descriptor = os.open(path, os.O_WRONLY | os.O_CREAT | os.O_EXCL, 0o600)
    try:
        view = memoryview(body).cast("B")
        while view:
            view = view[os.write(descriptor, view) :]
        os.fsync(descriptor)
    finally:
        os.close(descriptor)


def _sync_file(path: Path) -> None:
    descriptor = os.open(path, os.O_RDONLY)
    try:
        os.fsync(descriptor)
    finally:
        os.close(descriptor)


def _sync_folder(path: Path) -> None:
    descriptor = os.open(path, os.O_RDONLY | os.O_DIRECTORY)
    try:
        os.fsync(descriptor)
    finally:
        os.close(descriptor)


def _translated(cause: OSError, key: str) -> Exception:
    """Translate an operating system error into one of ours."""
    if isinstance(cause, FileNotFoundError | NotADirectoryError):
        return ObjectMissingError(f"{key} is not in the store", key=key)
    if cause.errno in _FULL:
        return DiskFullError(f"the disk of the lake has no space for {key}", key=key)
    return RemoteTierUnavailableError(
        f"cannot read or write {key} in the lake's directory: {cause.strerror}",
        key=key,
        errno=cause.errno,
    )
