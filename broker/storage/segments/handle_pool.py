"""Open files shared by many reading threads, opened on first use and bounded in number.

A file in use is never closed, so a reader never holds a descriptor that now belongs to another
file. A dropped file is closed when its last user returns it.
"""

from __future__ import annotations

import threading
from collections import OrderedDict
from collections.abc import Callable, Iterator
from contextlib import contextmanager

from broker.ports.system import File, Files


class _Entry:
    __slots__ = ("checked", "dropped", "file", "users")

    def __init__(self, file: File) -> None:
        self.file = file
        self.users = 0
        self.dropped = False
        self.checked = False


class HandlePool:
    """Keeps at most ``idle_max`` unused files open. Any thread."""

    def __init__(self, files: Files, idle_max: int) -> None:
        self._files = files
        self._idle_max = idle_max
        self._lock = threading.Lock()
        self._entries: OrderedDict[str, _Entry] = OrderedDict()  # least recently used first

    @contextmanager
    def use(self, path: str, check: Callable[[File], None] | None = None) -> Iterator[File]:
        """Lend the open file at ``path``. Raises OSError when it cannot be opened.

        ``check`` is called once each time that the file is opened, and raises if the file is wrong.
        """
        entry = self._take(path)
        try:
            if check is not None and not entry.checked:
                check(entry.file)
                entry.checked = True
            yield entry.file
        finally:
            self._give_back(entry)

    def pin(self, path: str) -> File:
        """Open ``path`` for its writer and keep it open until :meth:`unpin`."""
        return self._take(path).file

    def unpin(self, path: str) -> None:
        """End :meth:`pin`; readers may go on using the file."""
        self._give_back(self._entries[path])

    def drop(self, path: str) -> None:
        """Forget a file that was removed or must be opened again; close it when it is idle."""
        with self._lock:
            entry = self._entries.pop(path, None)
            if entry is None:
                return
            entry.dropped = True
            if entry.users == 0:
                entry.file.close()

    def close(self) -> None:
        """Drop every file. What a late reader opens is closed when its last user returns it."""
        with self._lock:
            self._idle_max = 0
        for path in list(self._entries):
            self.drop(path)

    def _take(self, path: str) -> _Entry:
        with self._lock:
            entry = self._entries.get(path)
            if entry is None:
                entry = self._entries[path] = _Entry(self._files.open(path))
            entry.users += 1
            self._entries.move_to_end(path)
            return entry

    def _give_back(self, entry: _Entry) -> None:
        with self._lock:
            entry.users -= 1
            if entry.users == 0 and entry.dropped:
                entry.file.close()
                return
            idle = [path for path, other in self._entries.items() if other.users == 0]
            for path in idle[: max(0, len(idle) - self._idle_max)]:
                self._entries.pop(path).file.close()
