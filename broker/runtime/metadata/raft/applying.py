"""What a member has applied: the metadata's state, who hears of changes, when to write a snapshot.

A change is published before anybody is answered: whoever has an answer finds it in ``state``.
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
_JOURNAL_BYTES_LARGE: Final = 64 * 1024 * 1024  # then at once: an opener reads 256 MiB
_SNAPSHOT_AGAIN_MS: Final = 10_000  # after one that a full disk had no room for


class Applying:
    """Owner: the Raft pump; ``state`` and ``index`` may be read by any thread."""

    def __init__(self, *, journal_bytes_max: int, keep_entries: int) -> None:
        """Begin with nothing applied.

        A journal of more than ``journal_bytes_max`` is shortened by a snapshot, once more than
        ``keep_entries`` have come since the last one.
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
        """What is applied."""
        return self._machine.state

    @property
    def index(self) -> int:
        """Index of the newest entry that is applied."""
        return self._applier.index

    def subscribe(self, subscriber: Subscriber) -> None:
        """Tell somebody the present state, and each later one."""
        self._subscribers.append(subscriber)
        subscriber(self.index, self.state)

    def apply(self, entries: tuple[Entry, ...]) -> list[Outcome]:
        """Apply committed entries, publish the state; return what callers are to be told."""
        outcomes = self._applier.apply(entries)
        self._publish()
        return outcomes

    def restore(self, snapshot: Snapshot) -> None:
        """Become a snapshot's state. Raises MetadataCorruptError, FeatureLevelError."""
        self._applier.restore(snapshot.id.index, snapshot.data)
        self._snapshot_index = snapshot.id.index
        self._publish()

    def hash_due(self) -> int | None:
        """Return the state's hash, if members compare it at this index."""
        return self._machine.hash() if self.index % HASH_EVERY == 0 else None

    def snapshot_due(
        self, now_ms: int, journal_bytes: int, *, free_bytes: Callable[[], int]
    ) -> bytes | None:
        """Return a snapshot, if the journal is to be shortened; on a full disk later.

        Whatever is saved behind a snapshot waits for its room, also what would make room. Until
        then the journal holds everything.
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
