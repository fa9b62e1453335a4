"""Tells when files have changed, by what the file system says of them; reads none."""

from __future__ import annotations

from collections.abc import Iterable
from pathlib import Path

_Stamp = tuple[int, int, int, int] | None  # None: the file is not there


class ChangedFiles:
    """The files of one setting, which belong together. Owner: one thread."""

    def __init__(self, paths: Iterable[Path]) -> None:
        """Changes count from now on."""
        self._paths = tuple(paths)
        self._taken = self._seen = self._stamps()

    def ready(self, *, at_once: bool = False) -> bool:
        """Tell, once, that the files have changed since the last such answer.

        Files that belong together are written one after the other. So a change is told when two
        looks in a row have found the same files; with ``at_once``, at the first look.
        """
        now = self._stamps()
        settled = at_once or now == self._seen
        self._seen = now
        if now == self._taken or not settled:
            return False
        self._taken = now
        return True

    def _stamps(self) -> tuple[_Stamp, ...]:
        return tuple(_stamp(one) for one in self._paths)


def _stamp(path: Path) -> _Stamp:
    try:
        found = path.stat()  # of the file behind a link: that is how volumes of secrets change
    except OSError:
        return None
    return (found.st_mtime_ns, found.st_ctime_ns, found.st_size, found.st_ino)
