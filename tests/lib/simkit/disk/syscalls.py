"""Records the real system calls, and finds the bytes that a power cut would take back.

Every byte written below a folder, and every name made, moved or removed there, is *owed* until a
real ``fsync`` or ``fdatasync`` of that file or folder has returned. Nothing of the product is
replaced; only the module ``os`` is listened to.
"""

from __future__ import annotations

import os
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any


class Syscalls:
    """The files below one folder that are not durable yet."""

    def __init__(self, root: Path) -> None:
        self._root = str(root.resolve())
        self.files: set[str] = set()  # written, not synced
        self.names: set[str] = set()  # made, moved or removed, and their folder not synced
        self.syncs = 0
        self.faults: list[str] = []  # names given to bytes that are not durable

    def owed(self, *parts: str) -> list[str]:
        """Return the paths with one of ``parts`` that a power cut now could change."""
        found = sorted([*self.files, *(f"the name {one}" for one in self.names)])
        return [one for one in found if not parts or any(part in one for part in parts)]

    def require(self, *parts: str) -> None:
        """Fail if something is owed, or a name was given too early."""
        assert not self.owed(*parts), f"a power cut takes back {self.owed(*parts)}"
        assert not self.faults, self.faults

    def _path(self, descriptor: int) -> str:
        return str(Path(f"/proc/self/fd/{descriptor}").readlink())

    def _ours(self, path: str) -> bool:
        return path.startswith(self._root + "/") or path == self._root

    def wrote(self, descriptor: int) -> None:
        """Note a write."""
        path = self._path(descriptor)
        if self._ours(path):
            self.files.add(path)

    def synced(self, descriptor: int) -> None:
        """Note a sync that has returned."""
        path = self._path(descriptor)
        self.syncs += self._ours(path)
        self.files.discard(path)
        self.names = {one for one in self.names if str(Path(one).parent) != path}

    def named(self, path: Any, source: Any = None) -> None:
        """Note a name that came, went, or took another's place."""
        target = f"{Path(path).parent.resolve()}/{Path(path).name}"
        if not self._ours(target):
            return
        self.names.add(target)
        if source is not None:
            before = str(Path(source).resolve())
            self.names.discard(before)
            if before in self.files:
                self.faults.append(f"{target} has bytes that are not durable")
                self.files.discard(before)
                self.files.add(target)

    def forget(self, path: Any) -> None:
        """Note that a file is gone: nothing of it is owed."""
        self.files.discard(str(path))
        self.named(path)


@contextmanager
def listening(root: Path, calls: Syscalls | None = None) -> Iterator[Syscalls]:
    """Listen while the block runs; ``calls`` may do more with what it hears."""
    calls = calls or Syscalls(root)
    before: dict[str, Any] = {}

    def listen(name: str, after: Callable[..., None], *, early: bool = False) -> None:
        original = before[name] = getattr(os, name)

        def heard(*args: Any, **kwargs: Any) -> Any:
            if early:
                after(*args)
                return original(*args, **kwargs)
            result = original(*args, **kwargs)
            after(*args)
            return result

        setattr(os, name, heard)

    listen("pwritev", lambda fd, *_: calls.wrote(fd))
    listen("write", lambda fd, *_: calls.wrote(fd) if fd > 2 else None)
    listen("fsync", lambda fd, *_: calls.synced(fd))
    listen("fdatasync", lambda fd, *_: calls.synced(fd))
    listen("replace", lambda source, target, *_: calls.named(target, source), early=True)
    listen("link", lambda source, target, *_: calls.named(target, source), early=True)
    listen("unlink", lambda path, *_: calls.forget(path))
    listen("mkdir", lambda path, *_: calls.named(path))
    listen(
        "open",
        lambda path, flags=0, *_: calls.named(path) if flags & os.O_EXCL else None,
    )
    try:
        yield calls
    finally:
        for name, original in before.items():
            setattr(os, name, original)
