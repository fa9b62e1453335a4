"""Tells when files have changed, by what the file system says of them; reads none."""

from __future__ import annotations

from collections.abc import Iterable
from pathlib import Path
from typing import Final

_RETRY_LOOKS: Final = 25  # after which files that were told and not taken are told again

_Stamp = tuple[int, int, int, int] | None  # None: the file is not there


class ChangedFiles:
    """The files of one setting, which belong together. Owner: one thread."""

    def __init__(self, paths: Iterable[Path]) -> None:
        """Changes count from now on."""
        self._paths = tuple(paths)
        self._taken = self._seen = self._told = self._stamps()
        self._looks_left = 0
        self.repeats = False  # the last change that was told had been told before

    def ready(self, *, at_once: bool = False) -> bool:
        """Tell that the files are others than those that were taken.

        Files that belong together are written one after the other. So a change is told when two
        looks in a row have found the same files; with ``at_once``, at the first look. Files that
        could not be used, perhaps for a reason that passes, are told again: at every 25th look,
        and with ``at_once``.
        """
        now = self._stamps()
        settled = at_once or now == self._seen
        self._seen = now
        if now == self._taken or not settled:
            return False
        self.repeats = now == self._told
        if self.repeats and not at_once:
            self._looks_left -= 1
            if self._looks_left > 0:
                return False
        self._told = now
        self._looks_left = _RETRY_LOOKS
        return True

    def taken(self) -> None:
        """Note that the files that were told last are in use."""
        self._taken = self._told

    def _stamps(self) -> tuple[_Stamp, ...]:
        return tuple(_stamp(one) for one in self._paths)


def _stamp(path: Path) -> _Stamp:
    try:
        found = path.stat()  # of the file behind a link: that is how volumes of secrets change
    except OSError:
        return None
    return (found.st_mtime_ns, found.st_ctime_ns, found.st_size, found.st_ino)
