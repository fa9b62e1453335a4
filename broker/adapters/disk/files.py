"""The Files port on a real file system, below one root folder that one process owns.

Paths are relative to the root: a part that is empty, `.` or `..` is refused, and a symbolic link at
the end of a path is not followed. The root is locked while the object lives, so that two brokers
cannot write to one data directory: the folder itself is locked, and a file in it, which older
releases lock. Files that the root shares with another folder by hard links are copied first.

Some descriptors are held in reserve. They are given up for a moment when the process has no other
left, so that the log can go on while a flood of connections has taken the rest.
"""

from __future__ import annotations

import contextlib
import errno
import fcntl
import os
import shutil
import sys
import threading
from collections.abc import Callable, Sequence
from functools import partial
from pathlib import Path
from typing import Any, Final, TypeVar

from broker.adapters.disk.hard_links import unshare
from broker.errors import InvalidConfigError
from broker.ports.system import File

_LOCK_NAME: Final = ".lock"
_VECTOR_MAX: Final = 1024  # IOV_MAX on Linux
_RWF_DONTCACHE: Final = 0x80  # Linux 6.14; not in Python's os
_PASSING_BYTES_MIN: Final = 256 * 1024  # below this size the hint costs more than it saves
_NO_HINT: Final = (errno.EOPNOTSUPP, errno.EINVAL, errno.ENOSYS)
_NO_DESCRIPTOR: Final = (errno.EMFILE, errno.ENFILE)
_NO_FOLDER_LOCKS: Final = (errno.EBADF, errno.EINVAL, errno.ENOLCK, errno.EOPNOTSUPP)  # e.g. NFS
_FULL: Final = (errno.ENOSPC, errno.EDQUOT)
_NO_PREALLOCATION: Final = (errno.EOPNOTSUPP, errno.EINVAL, errno.ENOSYS)

_T = TypeVar("_T")


class DiskFile:
    """One open file."""

    _takes_hint = sys.platform == "linux"  # for all files; False after the first refusal

    def __init__(self, descriptor: int) -> None:
        self._descriptor = descriptor

    def read_at(self, position: int, size: int) -> bytes:
        """Return up to ``size`` bytes at ``position``; fewer only at the end of the file."""
        data = os.pread(self._descriptor, size, position)
        if len(data) == size or not data:
            return data
        pieces = [data]
        got = len(data)
        while got < size:
            data = os.pread(self._descriptor, size - got, position + got)
            if not data:
                break
            pieces.append(data)
            got += len(data)
        return b"".join(pieces)

    def write_at(self, position: int, buffers: Sequence[Any], *, read_soon: bool = True) -> int:
        """Write the buffers one after another; return the bytes written. Not yet durable.

        A large write leaves the page cache as soon as it is on the disk. Then the next write reuses
        these pages; new pages may cost ten times as much as the copy.
        """
        views = [memoryview(buffer).cast("B") for buffer in buffers]
        total = sum(map(len, views))
        passing = not read_soon and total >= _PASSING_BYTES_MIN
        written = self._write(position, views[:_VECTOR_MAX], passing=passing)
        count = written
        while written < total:
            if not count:
                raise OSError(errno.EIO, "the file system wrote nothing and told no error")
            views = _after(views, count)
            count = self._write(position + written, views[:_VECTOR_MAX], passing=passing)
            written += count
        return total

    def _write(self, position: int, views: Sequence[memoryview], *, passing: bool) -> int:
        if passing and DiskFile._takes_hint:
            try:
                return os.pwritev(self._descriptor, views, position, _RWF_DONTCACHE)
            except OSError as error:
                if error.errno not in _NO_HINT:
                    raise
                DiskFile._takes_hint = False  # this kernel or file system refuses the hint
        return os.pwritev(self._descriptor, views, position)

    def datasync(self) -> None:
        """Make everything written durable (fdatasync)."""
        os.fdatasync(self._descriptor)

    def allocate(self, size: int) -> None:
        """Reserve disk up to ``size`` and extend the file with zeros."""
        present = self.size()
        if size <= present:
            return
        try:
            os.posix_fallocate(self._descriptor, present, size - present)
        except OSError as error:
            if error.errno not in _NO_PREALLOCATION:
                raise
            os.ftruncate(self._descriptor, size)  # the file system reserves nothing ahead

    def truncate(self, size: int) -> None:
        """Cut or extend (with zeros) to ``size`` bytes."""
        os.ftruncate(self._descriptor, size)

    def size(self) -> int:
        """Return the length in bytes."""
        return os.fstat(self._descriptor).st_size

    def close(self) -> None:
        """Close without a sync."""
        if self._descriptor >= 0:
            descriptor, self._descriptor = self._descriptor, -1
            os.close(descriptor)


class DiskFiles:
    """The Files port below ``root``, which is created if it is absent. Any thread."""

    def __init__(self, root: Path, *, spare_descriptors: int = 0) -> None:
        """Create and lock the root; keep ``spare_descriptors`` in reserve.

        Raises:
            InvalidConfigError: another process holds the root, or nothing can be written there.
        """
        self._root = root.absolute()
        self._spares = _Spares(-1, 0)
        flags = os.O_RDWR | os.O_CREAT | os.O_CLOEXEC | os.O_NOFOLLOW
        try:
            root.mkdir(parents=True, exist_ok=True)
            self._root = root.resolve()
            self._lock = os.open(self._root / _LOCK_NAME, flags, 0o600)
        except OSError as cause:
            raise InvalidConfigError(
                f"the data directory {self._root} cannot be written: {cause.strerror}; make it "
                "writable, or choose another data directory",
                path=str(self._root),
            ) from cause
        self._folder = os.open(self._root, os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC)
        try:
            fcntl.flock(self._lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
            _lock_folder(self._folder)
        except OSError as cause:
            self.close()
            raise InvalidConfigError(
                f"the data directory {self._root} is in use by another process; "
                "stop it, or choose another data directory",
                path=str(self._root),
            ) from cause
        try:
            unshare(self._root, keep=_LOCK_NAME)
        except OSError as cause:
            self.close()
            raise InvalidConfigError(
                f"the data directory {self._root} shares files with another folder (hard links, as "
                f"'cp -al' makes), and they cannot be copied: {cause.strerror}; make room, or copy "
                "one of the two folders with 'cp -r' and delete the linked one",
                path=str(self._root),
            ) from cause
        self._spares = _Spares(self._folder, spare_descriptors)

    def open(self, path: str, *, create: bool = False) -> File:
        """Open for reading and writing; ``create`` creates a file and fails if it exists."""
        flags = os.O_RDWR | os.O_CLOEXEC | os.O_NOFOLLOW
        if create:
            flags |= os.O_CREAT | os.O_EXCL
        at = self._at(path)
        return DiskFile(self._spares.with_one(lambda: os.open(at, flags, 0o600)))

    def exists(self, path: str) -> bool:
        """Tell whether a file or folder is there."""
        return os.path.lexists(self._at(path))

    def list(self, folder: str) -> list[str]:
        """Return the sorted names in a folder; empty when the folder is absent."""
        try:
            return sorted(self._spares.with_one(lambda: os.listdir(self._at(folder))))  # noqa: PTH208
        except FileNotFoundError:
            return []

    def make_folder(self, folder: str) -> None:
        """Create a folder and its parents, durably."""
        target = self._at(folder)
        made: list[Path] = []
        while target != self._root and not target.is_dir():
            made.append(target)
            target = target.parent
        for one in reversed(made):
            with contextlib.suppress(FileExistsError):
                one.mkdir(mode=0o700)
            self._spares.with_one(partial(_sync_folder, one.parent))

    def replace(self, source: str, target: str) -> None:
        """Rename over ``target``; durable only after :meth:`sync_folder`."""
        self._at(source).replace(self._at(target))

    def remove(self, path: str) -> None:
        """Remove a file; durable only after :meth:`sync_folder`."""
        self._at(path).unlink()

    def remove_folder(self, folder: str) -> None:
        """Remove a folder and all in it, durably; an absent one is fine."""
        target = self._at(folder)
        assert target != self._root, "the root itself is not to be removed"
        if target.is_dir():
            self._spares.with_one(lambda: shutil.rmtree(target))
            self._spares.with_one(lambda: _sync_folder(target.parent))

    def sync_folder(self, folder: str) -> None:
        """Make names created, renamed or removed in ``folder`` durable."""
        self._spares.with_one(lambda: _sync_folder(self._at(folder)))

    def free_bytes(self) -> int:
        """Return the bytes that may still be written."""
        facts = os.statvfs(self._root)
        return facts.f_bavail * facts.f_frsize

    def close(self) -> None:
        """Unlock the root."""
        for name in ("_lock", "_folder"):
            descriptor = getattr(self, name)
            if descriptor >= 0:
                setattr(self, name, -1)
                os.close(descriptor)
        self._spares.close()

    def _at(self, path: str) -> Path:
        if path == "":
            return self._root
        parts = path.split("/")
        if any(part in ("", ".", "..") or "\0" in part for part in parts):
            raise ValueError(f"not a confined relative path: {path!r}")
        return self._root.joinpath(*parts)


class _Spares:
    """Descriptors in reserve. Any thread."""

    def __init__(self, copied: int, count: int) -> None:
        """Hold ``count`` copies of the open descriptor ``copied``."""
        self._copied = copied
        self._count = count
        self._lock = threading.Lock()
        self._held: list[int] = []
        self._refill()

    def with_one(self, call: Callable[[], _T]) -> _T:
        """Call; if the process has no free descriptor, give up the reserve and call again.

        The whole reserve is given up, because another thread may take some of it, for example for
        a connection.
        """
        try:
            return call()
        except OSError as cause:
            if cause.errno not in _NO_DESCRIPTOR or not self._give_up():
                raise
        try:
            return call()
        finally:
            self._refill()

    def close(self) -> None:
        """Give the reserve up for good."""
        self._count = 0
        self._give_up()

    def _give_up(self) -> bool:
        with self._lock:
            held, self._held = self._held, []
        for one in held:
            os.close(one)
        return bool(held)

    def _refill(self) -> None:
        with self._lock, contextlib.suppress(OSError):
            while len(self._held) < self._count:
                self._held.append(os.dup(self._copied))


def _lock_folder(descriptor: int) -> None:
    """Lock a folder itself, so that removing the lock file does not free it.

    Raises:
        OSError: another process holds the lock.
    """
    try:
        fcntl.flock(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except BlockingIOError:
        raise
    except OSError as cause:
        if cause.errno not in _NO_FOLDER_LOCKS:
            raise


def _after(views: list[memoryview], count: int) -> list[memoryview]:
    """Return what is left of ``views`` when ``count`` bytes were written."""
    done = 0
    while done < len(views) and count >= len(views[done]):
        count -= len(views[done])
        done += 1
    rest = views[done:]
    if count:
        rest[0] = rest[0][count:]
    return rest


def _sync_folder(folder: Path) -> None:
    """Sync a folder. A lack of room in the sync is raised as EIO: no sync may be tried again."""
    descriptor = os.open(folder, os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC)
    try:
        os.fsync(descriptor)
    except OSError as cause:
        if cause.errno in _FULL:
            raise OSError(errno.EIO, f"a sync failed: {cause}", str(folder)) from cause
        raise
    finally:
        os.close(descriptor)
