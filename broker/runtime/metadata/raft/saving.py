"""The saves that a member has to make durable, in order; also on a full disk.

Neighbouring entries share one fdatasync. A full disk is tried again after a while; meanwhile new
proposals are refused.
"""

from __future__ import annotations

from collections import deque
from contextlib import suppress
from dataclasses import replace
from typing import Final

import structlog

from broker.core.raft.events import Save
from broker.errors import DiskFullError, NoRoomError
from broker.model.raft import ENTRY_OVERHEAD
from broker.ports.system import Files
from broker.storage.raft.journal import RaftJournal

_log = structlog.get_logger(__name__)

_FULL_MS: Final = 100  # until a full disk is tried again
_CHECKPOINT_MS: Final = 1000


class Saving:
    """Owner: the Raft pump."""

    def __init__(self, files: Files, journal: RaftJournal) -> None:
        self._files = files
        self._journal = journal
        self._saves: deque[Save] = deque()
        self._full_until_ms = 0
        self._checkpoint_ms = 0

    @property
    def journal_bytes(self) -> int:
        """Bytes of the journal since its snapshot."""
        return self._journal.size_bytes

    def free_bytes(self) -> int:
        """Return how many bytes are free on the disk."""
        return self._files.free_bytes()

    def add(self, save: Save) -> None:
        """Queue a save."""
        self._saves.append(save)

    def write_next(self, now_ms: int) -> int | None:
        """Make the oldest save durable, and by the same sync the entries right after it. Blocks.

        Returns the number up to which all saves are durable; None if nothing was written.
        """
        if not self._saves or now_ms < self._full_until_ms:
            return None
        first = self._saves.popleft()
        entries, number = list(first.entries), first.number
        while self._saves and first.image is None and self._saves[0].adds_only:
            following = self._saves.popleft()
            entries += following.entries
            number = following.number
        try:
            self._journal.save(
                hard=first.hard,
                snapshot=first.snapshot,
                image=first.image,
                truncate=first.truncate,
                entries=entries,
                disk=first.disk,
            )
        except NoRoomError as error:
            _log.warning("raft_disk_full", reason=error.message)
            self._saves.appendleft(replace(first, number=number, entries=tuple(entries)))
            self._full_until_ms = now_ms + _FULL_MS
            return None
        return number

    def require_room(self, payload_bytes: int, now_ms: int) -> None:
        """Refuse a proposal for which the disk has no room, before any log has it.

        Raises:
            DiskFullError: it has no room.
        """
        if self._full_until_ms > now_ms:
            raise DiskFullError("the disk of the metadata log is full")
        self._journal.reserve(payload_bytes + 2 * ENTRY_OVERHEAD)

    def checkpoint(self, now_ms: int, applied: int) -> None:
        """Note at intervals how far the log is durable, when no save waits."""
        if now_ms >= self._checkpoint_ms and not self._saves:
            self._checkpoint_ms = now_ms + _CHECKPOINT_MS
            with suppress(NoRoomError):  # a file system may need room for a write in place, too
                self._journal.checkpoint(applied)

    def drop_floor(self) -> None:
        """Note that this member has every entry that its lost disk may have had."""
        try:
            self._journal.drop_floor()
        except NoRoomError as error:  # the next start reads the floor again and finds it reached
            _log.warning("raft_floor_kept", reason=error.message)

    def close(self) -> None:
        """Close the journal."""
        self._journal.close()
