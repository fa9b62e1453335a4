"""What a member of a group does and sees, as lines of a file: written by it, read by the judge.

A line is one JSON array. It is written by one system call before the member goes on, so a member
that is killed has noted what it did, but perhaps the last thing. Times are milliseconds of the
clock by which members believe in their sessions; all processes of a machine share it.
"""

from __future__ import annotations

import json
import os
from collections.abc import Iterable
from pathlib import Path
from typing import Any, Final

from checkkit.check_groups import GroupHistory, SentCommit
from headwater.client.group.calls import monotonic_ms

SUFFIX: Final = ".notes"


class Notes:
    """The file of one process."""

    def __init__(self, path: Path) -> None:
        self._file = os.open(path, os.O_WRONLY | os.O_CREAT | os.O_APPEND)
        self._sent_count = 0

    def given(self, partition: int, epoch: int, start: int, end: int, at_ms: int) -> None:
        """Note records that the application was given."""
        self._add("given", partition, epoch, start, end, at_ms)

    def sent(self, partition: int, epoch: int, offset: int) -> int:
        """Note a commit before it is sent; return its number."""
        self._sent_count += 1
        self._add("sent", partition, epoch, offset, monotonic_ms(), self._sent_count)
        return self._sent_count

    def confirmed(self, commits: Iterable[int]) -> None:
        """Note that commits, by their numbers, were confirmed."""
        self._add("confirmed", list(commits), monotonic_ms() + 1)

    def lost(self, partition: int, epoch: int) -> None:
        """Note that the member was told of a lost partition, or begins with it anew."""
        self._add("lost", partition, epoch, monotonic_ms())

    def chose(self, partition: int, epoch: int, offset: int) -> None:
        """Note a position that the application chose."""
        self._add("chose", partition, epoch, offset, monotonic_ms())

    def asked(self, partition: int) -> None:
        """Note that the member asks for its position, before it does."""
        self._add("asked", partition, monotonic_ms())

    def _add(self, *note: Any) -> None:
        os.write(self._file, json.dumps(note).encode() + b"\n")

    def close(self) -> None:
        """Close the file."""
        os.close(self._file)


def read_notes(folder: Path) -> GroupHistory:
    """Return what all processes of a group have noted; partitions are named by their numbers."""
    history = GroupHistory()
    for path in sorted(folder.glob(f"*{SUFFIX}")):
        commits: dict[int, SentCommit] = {}
        for line in path.read_bytes().split(b"\n"):
            if line:
                _read(history, commits, path.stem, json.loads(line))
    return history


def _read(
    history: GroupHistory, commits: dict[int, SentCommit], process: str, note: list[Any]
) -> None:
    match note:
        case ["given", partition, epoch, start, end, at]:
            history.give(str(partition), process, epoch=epoch, start=start, end=end, at=at)
        case ["sent", partition, epoch, offset, at, number]:
            place = (str(partition), process)
            commits[number] = history.commit(*place, epoch=epoch, offset=offset, at=at)
        case ["confirmed", numbers, at]:
            for number in numbers:
                commits[number].confirmed_at = at
        case ["lost", partition, epoch, at]:
            history.lost.append((str(partition), epoch, at))
        case ["chose", partition, epoch, offset, at]:
            history.choose(str(partition), epoch=epoch, offset=offset, at=at)
        case ["asked", partition, at]:
            history.asked.append((str(partition), process, at))
        case _:
            raise AssertionError(f"{process} has noted {note}")
