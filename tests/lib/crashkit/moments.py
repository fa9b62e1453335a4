"""Moments to kill at: what the broker does to its files, seen through inotify as it does it.

The broker knows nothing of this: no failpoint is compiled in. A moment is a pattern of file events
("a segment file was created"); whoever waits for one acts within a fraction of a millisecond.
"""

from __future__ import annotations

import ctypes
import os
import re
import select
import struct
import time
from collections.abc import Iterator
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path
from types import TracebackType
from typing import Final, Self

_MODIFY, _MOVED_TO, _CREATE, _DELETE, _OPEN = 0x2, 0x80, 0x100, 0x200, 0x20
_IS_DIRECTORY: Final = 0x40000000
_HEAD: Final = struct.Struct("iIII")


@dataclass(frozen=True, slots=True)
class Moment:
    """Something that the broker does, told by a file event."""

    name: str
    mask: int
    pattern: re.Pattern[str]

    @classmethod
    def of(cls, name: str, mask: int, pattern: str) -> Moment:
        """Build a moment from a pattern of the whole path."""
        return cls(name, mask, re.compile(pattern))


MOMENTS: Final = (
    Moment.of("segment created (roll)", _CREATE, r".*/\d{20}\.log"),
    Moment.of("index created (roll)", _CREATE | _MOVED_TO, r".*/\d{20}\.index"),
    Moment.of(
        "producer state replaced", _CREATE | _MOVED_TO, r".*/\d{20}\.producers(-copy)?(\.tmp)?"
    ),
    Moment.of("recovery point written", _MODIFY, r".*/recovery"),
    Moment.of("metadata written", _MODIFY, r".*/raft/journal"),
    Moment.of("local segment freed", _DELETE, r".*/\d{20}\.log"),
    Moment.of("object upload begun", _CREATE, r".*/partition=\d+/\..*\.tmp"),
    Moment.of("object created", _CREATE | _MOVED_TO, r".*/partition=\d+/[^/]*\.parquet"),
    Moment.of("object read back", _OPEN, r".*/partition=\d+/[^/]*\.parquet"),
    Moment.of("ledger entry created", _CREATE, r".*/_headwater/ledger/.*"),
    Moment.of("table commit begun", _CREATE, r".*/_delta_log/.*\.tmp.*|.*/_delta_log/_commit.*"),
    Moment.of("table commit done", _CREATE | _MOVED_TO, r".*/_delta_log/\d{20}\.json"),
    Moment.of("table checkpoint", _CREATE | _MOVED_TO, r".*/_delta_log/.*checkpoint.*"),
)
RECOVERY_MOMENTS: Final = (
    Moment.of("log opened (recovery)", _OPEN, r".*/\d{20}\.log"),
    Moment.of("recovery point opened", _OPEN, r".*/recovery"),
    Moment.of("metadata opened (recovery)", _OPEN, r".*/raft/journal"),
    Moment.of("epochs written (recovery)", _CREATE | _MOVED_TO, r".*/epochs(\.tmp)?"),
    Moment.of("segment created (recovery)", _CREATE, r".*/\d{20}\.log"),
    Moment.of("table opened (recovery)", _OPEN, r".*/_delta_log/\d{20}\.json"),
)
# moto writes a line after each request; its access log is all that shows what it is doing.
S3_MOMENTS: Final = {
    "object uploaded": re.compile(r'"PUT /\S*\.parquet'),
    "object read back": re.compile(r'"(GET|HEAD) /\S*\.parquet'),
    "ledger entry uploaded": re.compile(r'"PUT /\S*ledger'),
    "table commit uploaded": re.compile(r'"PUT /\S*_delta_log/\d{20}\.json'),
}


class FileWatch:
    """Watches directory trees. One thread; a context manager."""

    def __init__(self, *roots: Path) -> None:
        self._roots = roots
        self._libc = ctypes.CDLL(None, use_errno=True)
        self._descriptor = self._libc.inotify_init1(os.O_NONBLOCK | os.O_CLOEXEC)
        assert self._descriptor >= 0, os.strerror(ctypes.get_errno())
        self._folders: dict[int, str] = {}

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        os.close(self._descriptor)

    def wait(self, moment: Moment, timeout_s: float) -> bool:
        """Block until the moment comes, or time is up; return whether it came."""
        for root in self._roots:
            self._add_tree(str(root))
        for _ in self._events():  # what happened before nobody waits for
            pass
        deadline_s = time.monotonic() + timeout_s
        while (left_s := deadline_s - time.monotonic()) > 0:
            select.select([self._descriptor], [], [], left_s)
            for mask, path in self._events():
                if mask & moment.mask and moment.pattern.fullmatch(path):
                    return True
        return False

    def _add_tree(self, folder: str) -> None:
        wanted = _MODIFY | _MOVED_TO | _CREATE | _DELETE | _OPEN
        watch = self._libc.inotify_add_watch(self._descriptor, folder.encode(), wanted)
        if watch >= 0:  # else it is not there yet
            self._folders[watch] = folder
            with suppress(OSError):
                for entry in os.scandir(folder):
                    if entry.is_dir(follow_symlinks=False):
                        self._add_tree(entry.path)

    def _events(self) -> Iterator[tuple[int, str]]:
        try:
            data = os.read(self._descriptor, 1 << 20)
        except BlockingIOError:
            return
        position = 0
        while position < len(data):
            watch, mask, _, size = _HEAD.unpack_from(data, position)
            position += _HEAD.size
            name = data[position : position + size].rstrip(b"\0").decode(errors="replace")
            position += size
            path = f"{self._folders.get(watch, '')}/{name}"
            if mask & _IS_DIRECTORY:
                if mask & _CREATE:
                    self._add_tree(path)
                continue
            yield mask, path


class LogWatch:
    """Follows a text file, for servers that show their work only in their log."""

    def __init__(self, path: Path) -> None:
        self._path = path

    def wait(self, pattern: re.Pattern[str], timeout_s: float) -> bool:
        """Block until a new line matches, or time is up; return whether one did."""
        deadline_s = time.monotonic() + timeout_s
        with self._path.open(errors="replace") as log:
            log.seek(0, os.SEEK_END)
            while time.monotonic() < deadline_s:
                line = log.readline()
                if not line:
                    time.sleep(0.001)
                elif pattern.search(line):
                    return True
        return False
