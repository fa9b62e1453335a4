"""A file system whose open files share a bounded number of descriptors.

A broker has three or more files for each replica, and most of them are idle. So an open file here
is a name and a place; its descriptor is taken when the file is used, and given back when others
need it, the least recently used first. The rules:

- A file with bytes that are not synced keeps its descriptor. If nothing else is left to give back,
  such a file is synced first. If that sync fails, the file keeps its descriptor and its error, and
  every later write and sync of the file raises the error: closing the file would lose it.
- A file that was removed, or replaced by another under its name, keeps its descriptor until it is
  closed. If it had none at that moment, it cannot be used any more (ENOENT): opening the name again
  would find another file.
- Only files below one folder share. The others keep their descriptors as long as they are open: the
  promises and the metadata's journal, which are few, are written before every answer.
- A call that finds no free descriptor in the process gives back descriptors, waits a little and
  tries again. Then it raises EMFILE or ENFILE, and has changed nothing.

Any thread. The lock is held for bookkeeping only, never during a call of the operating system.
"""

from __future__ import annotations

import errno
import threading
from collections import OrderedDict
from collections.abc import Callable, Sequence
from typing import Any, Final, TypeVar

from broker.ports.system import File, Files
from broker.storage.no_room import lacks_descriptor

_PAUSES_S: Final = (0.005, 0.01, 0.02, 0.04, 0.08, 0.15)  # a turn of the metadata must not be long
_T = TypeVar("_T")


class CachedFile:
    """An open file; see the module. Its descriptor may come and go between two calls."""

    __slots__ = ("_cache", "closed", "error", "file", "gone", "path", "synced", "users", "writes")

    def __init__(self, cache: CachedFiles, path: str, file: File | None) -> None:
        self._cache = cache
        self.path = path
        self.file = file  # None: it has no descriptor now
        self.users = 0  # calls in progress
        self.writes = 0  # calls that changed the file
        self.synced = 0  # of these, how many are durable
        self.closed = False
        self.gone = False  # the file was removed, or replaced under its name
        self.error: OSError | None = None  # of a sync that made room for other files

    @property
    def dirty(self) -> bool:
        """Whether bytes were written since the last sync."""
        return self.writes != self.synced

    def read_at(self, position: int, size: int) -> bytes:
        """See ``File.read_at``."""
        file = self._cache.lend(self)
        try:
            return file.read_at(position, size)
        finally:
            self._cache.take_back(self)

    def write_at(self, position: int, buffers: Sequence[Any], *, read_soon: bool = True) -> int:
        """See ``File.write_at``."""
        file = self._cache.lend(self, changes=True)
        try:
            return file.write_at(position, buffers, read_soon=read_soon)
        finally:
            self._cache.take_back(self)

    def datasync(self) -> None:
        """See ``File.datasync``."""
        if self.error is not None:
            raise self.error
        if not self.dirty and self.file is None:
            return  # everything was synced before the descriptor was given back
        file = self._cache.lend(self)
        try:
            writes = self.writes
            file.datasync()
            self.synced = writes
        finally:
            self._cache.take_back(self)

    def allocate(self, size: int) -> None:
        """See ``File.allocate``."""
        file = self._cache.lend(self, changes=True)
        try:
            file.allocate(size)
        finally:
            self._cache.take_back(self)

    def truncate(self, size: int) -> None:
        """See ``File.truncate``."""
        file = self._cache.lend(self, changes=True)
        try:
            file.truncate(size)
        finally:
            self._cache.take_back(self)

    def size(self) -> int:
        """See ``File.size``."""
        file = self._cache.lend(self)
        try:
            return file.size()
        finally:
            self._cache.take_back(self)

    def close(self) -> None:
        """See ``File.close``."""
        self._cache.close_file(self)


class CachedFiles:
    """The Files port over another one, with at most about ``open_max`` descriptors. Any thread."""

    def __init__(
        self,
        files: Files,
        *,
        open_max: int,
        below: str = "",
        pause: Callable[[float], None] = lambda _: None,
        on_shortage: Callable[[], None] = lambda: None,
    ) -> None:
        """Keep descriptors of ``files``; those of the folder ``below`` are shared.

        ``on_shortage`` is called when the process has no free descriptor, on the thread that needs
        one; it must be quick. ``pause`` waits for so many seconds.
        """
        assert open_max >= 1, "a file in use has a descriptor"
        self._files = files
        self._open_max = open_max
        self._below = f"{below}/" if below else ""
        self._pause = pause
        self._on_shortage = on_shortage
        self._lock = threading.Lock()
        self._idle: OrderedDict[CachedFile, None] = OrderedDict()  # clean, unused, can be reopened
        self._unsynced: OrderedDict[CachedFile, None] = OrderedDict()  # the same, but dirty
        self._by_folder: dict[str, dict[str, set[CachedFile]]] = {}  # every file that is not closed
        self.exists, self.free_bytes = files.exists, files.free_bytes
        self.open_count = 0  # descriptors now
        self.reopened_count = 0
        self.shortages_count = 0

    # ------------------------------------------------------------------ the Files port

    def open(self, path: str, *, create: bool = False) -> File:
        """See ``Files.open``."""
        file = self._with_room(lambda: self._files.open(path, create=create))
        if not path.startswith(self._below):
            return file
        entry = CachedFile(self, path, file)
        with self._lock:
            self.open_count += 1
            self._enter_locked(entry)
            self._idle[entry] = None
        self._shrink(self._open_max, but=entry)
        return entry

    def list(self, folder: str) -> list[str]:
        """See ``Files.list``."""
        return self._with_room(lambda: self._files.list(folder))

    def make_folder(self, folder: str) -> None:
        """See ``Files.make_folder``."""
        self._with_room(lambda: self._files.make_folder(folder))

    def replace(self, source: str, target: str) -> None:
        """See ``Files.replace``."""
        with self._lock:
            for entry in self._named_locked(target):
                self._lose_locked(entry)
        self._files.replace(source, target)
        with self._lock:
            for entry in self._named_locked(source):
                self._leave_locked(entry)
                entry.path = target
                self._enter_locked(entry)

    def remove(self, path: str) -> None:
        """See ``Files.remove``."""
        with self._lock:
            for entry in self._named_locked(path):
                self._lose_locked(entry)
        self._files.remove(path)

    def remove_folder(self, folder: str) -> None:
        """See ``Files.remove_folder``."""
        with self._lock:
            below = f"{folder}/"
            for name in [one for one in self._by_folder if one == folder or one.startswith(below)]:
                for entries in list(self._by_folder[name].values()):
                    for entry in list(entries):
                        self._lose_locked(entry)
        self._with_room(lambda: self._files.remove_folder(folder))

    def sync_folder(self, folder: str) -> None:
        """See ``Files.sync_folder``."""
        self._with_room(lambda: self._files.sync_folder(folder))

    # ------------------------------------------------------------------ for CachedFile

    def lend(self, entry: CachedFile, *, changes: bool = False) -> File:
        """Return the file for one call, opened again if needed; :meth:`take_back` ends the call."""
        with self._lock:
            self._begin_locked(entry, changes=changes)
            if entry.file is not None:
                entry.writes += changes
                return entry.file
        try:
            file = self._with_room(lambda: self._files.open(entry.path))
        except BaseException:
            self.take_back(entry)
            raise
        with self._lock:
            unused: File | None = file
            if entry.file is None and not entry.gone:
                entry.file, unused = file, None
                self.open_count += 1
                self.reopened_count += 1
            kept = entry.file
            if kept is not None:
                entry.writes += changes
        if unused is not None:  # another call opened it first, or its name was taken meanwhile
            unused.close()
        if kept is None:
            self.take_back(entry)
            raise FileNotFoundError(errno.ENOENT, "removed while it was not in use", entry.path)
        self._shrink(self._open_max)
        return kept

    def take_back(self, entry: CachedFile) -> None:
        """End a call that :meth:`lend` began."""
        unused: File | None = None
        with self._lock:
            entry.users -= 1
            if entry.users == 0 and entry.file is not None:
                if entry.closed:
                    unused = self._give_back_locked(entry)
                elif not entry.gone and entry.error is None:
                    (self._unsynced if entry.dirty else self._idle)[entry] = None
        if unused is not None:
            unused.close()

    def close_file(self, entry: CachedFile) -> None:
        """Close a file, without a sync; a call in progress ends first."""
        unused: File | None = None
        with self._lock:
            if entry.closed:
                return
            entry.closed = True
            self._leave_locked(entry)
            self._idle.pop(entry, None)
            self._unsynced.pop(entry, None)
            if entry.users == 0:
                unused = self._give_back_locked(entry)
        if unused is not None:
            unused.close()

    # ------------------------------------------------------------------ descriptors

    def _begin_locked(self, entry: CachedFile, *, changes: bool) -> None:
        if entry.closed:
            raise OSError(errno.EBADF, "the file is closed", entry.path)
        if changes and entry.error is not None:
            raise entry.error
        if entry.gone and entry.file is None:
            raise FileNotFoundError(errno.ENOENT, "removed while it was not in use", entry.path)
        entry.users += 1
        self._idle.pop(entry, None)
        self._unsynced.pop(entry, None)

    def _give_back_locked(self, entry: CachedFile) -> File | None:
        file, entry.file = entry.file, None
        if file is not None:
            self.open_count -= 1
        return file

    def _with_room(self, call: Callable[[], _T]) -> _T:
        """Make a call. If no descriptor is free, give some back, wait a little, and call again."""
        for pause_s in (0.0, *_PAUSES_S):
            try:
                return call()
            except OSError as cause:
                if not lacks_descriptor(cause):
                    raise
            if not pause_s:
                self.shortages_count += 1
                self._on_shortage()
            else:
                self._pause(pause_s)
            self._shrink(self.open_count // 2)
        return call()

    def _shrink(self, open_max: int, *, but: CachedFile | None = None) -> None:
        """Give back descriptors of files that are not in use, until ``open_max`` are left."""
        while self.open_count > open_max:
            with self._lock:
                victim = next((one for one in self._idle if one is not but), None)
                if victim is not None:
                    del self._idle[victim]
                    unused = self._give_back_locked(victim)
                elif (victim := next(iter(self._unsynced), None)) is not None:
                    del self._unsynced[victim]
                    victim.users += 1
                    unused = None
                else:
                    return  # all others are in use: the limit is exceeded
            if unused is not None:
                unused.close()
            else:
                self._sync(victim)

    def _sync(self, entry: CachedFile) -> None:
        """Sync a file whose descriptor is wanted; keep an error for the file's owner."""
        try:
            writes = entry.writes
            assert entry.file is not None, "a dirty file has its descriptor"
            entry.file.datasync()
            entry.synced = writes
        except OSError as cause:
            entry.error = cause
        finally:
            self.take_back(entry)

    # ------------------------------------------------------------------ names

    def _enter_locked(self, entry: CachedFile) -> None:
        folder = entry.path.rpartition("/")[0]
        self._by_folder.setdefault(folder, {}).setdefault(entry.path, set()).add(entry)

    def _leave_locked(self, entry: CachedFile) -> None:
        folder = entry.path.rpartition("/")[0]
        names = self._by_folder.get(folder, {})
        entries = names.get(entry.path, set())
        entries.discard(entry)
        if not entries:
            names.pop(entry.path, None)
            if not names:
                self._by_folder.pop(folder, None)

    def _named_locked(self, path: str) -> tuple[CachedFile, ...]:
        return tuple(self._by_folder.get(path.rpartition("/")[0], {}).get(path, ()))

    def _lose_locked(self, entry: CachedFile) -> None:
        """Note that the file's name is no longer its own."""
        entry.gone = True
        self._leave_locked(entry)
        self._idle.pop(entry, None)
        self._unsynced.pop(entry, None)
