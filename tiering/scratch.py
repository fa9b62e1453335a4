"""The folder for temporary files of this process, which does not outlive the process for long.

A process that ends in order removes its folder. One that is killed cannot. So each process, when
it makes its folder, first removes those whose process is gone. A process holds a lock on its folder
(flock), which the kernel gives up however the process ends: a folder that can be locked is
nobody's. Where the file system has no such locks, no process removes another's folder.
"""

from __future__ import annotations

import atexit
import fcntl
import os
import threading
from contextlib import suppress
from pathlib import Path
from shutil import rmtree
from tempfile import gettempdir, mkdtemp
from typing import Final

_PREFIX: Final = "headwater-scratch-"
_FLAGS: Final = os.O_RDONLY | os.O_DIRECTORY | os.O_NOFOLLOW | os.O_CLOEXEC


class Scratch:
    """The folder of one process. Any thread; others call :func:`scratch_folder`."""

    def __init__(self) -> None:
        """Make nothing yet."""
        self._guard = threading.Lock()
        self._owner = os.getpid()
        self._path: Path | None = None
        self._lock: int | None = None  # a descriptor of the folder

    def folder(self) -> Path:
        """Return the folder; the first call makes it, and removes those that are nobody's."""
        with self._guard:
            if self._path is None:
                _remove_abandoned()
                atexit.register(self.remove)
            if self._path is None or not self._path.is_dir():  # something may clean such folders up
                self.let_go()
                self._make()
            assert self._path is not None, "it was just made"
            return self._path

    def remove(self) -> None:
        """Remove the folder, at the end of the process that made it; not in a fork of it."""
        if self._path is not None and os.getpid() == self._owner:
            rmtree(self._path, ignore_errors=True)
            self.let_go()

    def let_go(self) -> None:
        """Give up the lock, as the end of the process does."""
        if self._lock is not None:
            os.close(self._lock)
            self._lock = None

    def _make(self) -> None:
        while True:
            self._path = Path(mkdtemp(prefix=_PREFIX))
            with suppress(FileNotFoundError, BlockingIOError):  # taken for one that is nobody's
                self._lock = _locked(self._path)
                if self._path.is_dir():
                    return
            self.let_go()


_scratch = Scratch()


def scratch_folder() -> Path:
    """Return the folder for temporary files of this process. Raises OSError."""
    return _scratch.folder()


def _begin_anew() -> None:
    global _scratch  # noqa: PLW0603 - a forked child is another process
    _scratch = Scratch()


os.register_at_fork(after_in_child=_begin_anew)


def _locked(path: Path) -> int | None:
    """Lock a folder; return its open descriptor, or None if this file system has no such locks.

    Raises:
        BlockingIOError: another process holds the lock.
        FileNotFoundError: the folder is gone.
    """
    descriptor = os.open(path, _FLAGS)
    try:
        fcntl.flock(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except OSError as error:
        os.close(descriptor)
        if isinstance(error, BlockingIOError):
            raise
        return None
    return descriptor


def _remove_abandoned() -> None:
    """Remove the folders of this user whose process is gone."""
    with suppress(OSError):
        for path in Path(gettempdir()).glob(f"{_PREFIX}*"):
            with suppress(OSError):
                if path.lstat().st_uid == os.geteuid():
                    _remove_if_abandoned(path)


def _remove_if_abandoned(path: Path) -> None:
    lock = _locked(path)
    if lock is not None:
        rmtree(path, ignore_errors=True)
        os.close(lock)
