"""The applied state of a member: the metadata, its subscribers, and when a snapshot is due.

A change is published before its proposer is answered, so the proposer finds it in ``state``.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Final

from broker.core.metadata.state import MetadataState
from broker.core.raft.applier import Applier, Outcome
from broker.model.raft import Entry, Snapshot
from broker.runtime.metadata.metadata_log import Subscriber
from broker.runtime.metadata.raft.machine import MetadataMachine

HASH_EVERY: Final = 256  # entries
_JOURNAL_BYTES_LARGE: Final = 64 * 1024 * 1024  # then at once: opening reads 256 MiB
_SNAPSHOT_AGAIN_MS: Final = 10_000  # until a retry, after a full disk


class Applying:
    """Owner: the Raft pump; ``state`` and ``index`` may be read by any thread."""

    def __init__(self, *, journal_bytes_max: int, keep_entries: int) -> None:
        """Begin with an empty state.

        A snapshot shortens a journal of more than ``journal_bytes_max`` bytes, if more than
        ``keep_entries`` entries were applied since the last snapshot.
        """
        self._journal_bytes_max = journal_bytes_max
        self._keep_entries = keep_entries
        self._machine = MetadataMachine()
        self._applier = Applier(self._machine)
        self._subscribers: list[Subscriber] = []
        self._snapshot_index = 0
        self._snapshot_not_before_ms = 0

    @property
    def state(self) -> MetadataState:
        """The applied metadata state."""
        return self._machine.state

    @property
    def index(self) -> int:
        """Index of the newest applied entry."""
        return self._applier.index

    def subscribe(self, subscriber: Subscriber) -> None:
        """Call ``subscriber`` with the present state, and with each later one."""
        self._subscribers.append(subscriber)
        subscriber(self.index, self.state)

    def apply(self, entries: tuple[Entry, ...]) -> list[Outcome]:
        """Apply committed entries, publish the state; return the outcomes for the proposers."""
        outcomes = self._applier.apply(entries)
        self._publish()
        return outcomes

    def restore(self, snapshot: Snapshot) -> None:
        """Replace the state by a snapshot's. Raises MetadataCorruptError, FeatureLevelError."""
        self._applier.restore(snapshot.id.index, snapshot.data)
        self._snapshot_index = snapshot.id.index
        self._publish()

    def hash_due(self) -> int | None:
        """Return the hash of the state, if members compare hashes at this index."""
        return self._machine.hash() if self.index % HASH_EVERY == 0 else None

    def snapshot_due(
        self, now_ms: int, journal_bytes: int, *, free_bytes: Callable[[], int]
    ) -> bytes | None:
        """Return a snapshot if the journal must be shortened; on a full disk, None until a retry.

        Later saves wait for the snapshot to be written, even saves that would free space. So a full
        disk gets no snapshot; the journal still has everything.
        """
        enough = self.index - self._snapshot_index > self._keep_entries
        if journal_bytes <= self._journal_bytes_max or not (
            enough or journal_bytes > _JOURNAL_BYTES_LARGE
        ):
            return None
        if now_ms < self._snapshot_not_before_ms:
            return None
        data = self._applier.snapshot()
        if free_bytes() < len(data) + journal_bytes:
            self._snapshot_not_before_ms = now_ms + _SNAPSHOT_AGAIN_MS
            return None
        self._snapshot_index = self.index
        return data

    def _publish(self) -> None:
        for subscriber in self._subscribers:
            subscriber(self.index, self.state)
