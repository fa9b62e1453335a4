"""What a leader knows about one other member, and how it sends to that member.

PROBE: the last equal entry is not known; one message is in flight. REPLICATE: both logs are equal
up to `match`; messages do not wait for answers, within a budget. SNAPSHOT: the entries that the
member needs are compacted; it gets the snapshot in chunks, one at a time.
"""

from __future__ import annotations

from collections import deque
from enum import Enum

from broker.model.raft import Snapshot


class Sending(Enum):
    """How the leader sends the next entries."""

    PROBE = "probe"
    REPLICATE = "replicate"
    SNAPSHOT = "snapshot"


class Progress:
    """One member, seen from the leader of the term."""

    __slots__ = (
        "_inflight", "chunk_offset", "chunk_round", "commit_sent", "heard_ms", "inflight_bytes",
        "match", "next", "round", "sending", "snapshot", "void_round", "waiting",
    )  # fmt: skip

    def __init__(self, next_index: int, now_ms: int) -> None:
        self.sending = Sending.PROBE
        self.match = 0  # durable there and equal to our log, as reported in this term
        self.next = next_index
        self.round = 0  # the newest of our rounds that it answered
        self.void_round = -1  # answers to rounds up to this one are of its former process
        self.heard_ms = now_ms
        self.waiting = False  # a probe or a chunk is not answered yet
        self.commit_sent = 0
        self.snapshot: Snapshot | None = None
        self.chunk_offset = 0
        self.chunk_round = 0  # our round when the newest chunk went out
        self.inflight_bytes = 0
        self._inflight: deque[tuple[int, int]] = deque()  # (last index, bytes)

    @property
    def inflight_count(self) -> int:
        """Messages with entries that are not answered."""
        return len(self._inflight)

    def sent(self, last_index: int, weight: int) -> None:
        """Note entries that went out in REPLICATE."""
        self._inflight.append((last_index, weight))
        self.inflight_bytes += weight
        self.next = last_index + 1

    def matched(self, index: int) -> None:
        """Note that the member has the log up to ``index``; never less within a term."""
        self.match = max(self.match, index)
        while self._inflight and self._inflight[0][0] <= self.match:
            self.inflight_bytes -= self._inflight.popleft()[1]
        if self.sending is Sending.SNAPSHOT:
            if self.snapshot is not None and self.match < self.snapshot.id.index:
                return
            self.snapshot = None
        if self.sending is not Sending.REPLICATE:
            self.sending = Sending.REPLICATE
            self.waiting = False
            self.next = self.match + 1
        self.next = max(self.next, self.match + 1)

    def probe(self, next_index: int) -> None:
        """Search again for the last equal entry, from ``next_index`` down."""
        self.sending = Sending.PROBE
        self.next = max(next_index, self.match + 1)
        self.waiting = False
        self._inflight.clear()
        self.inflight_bytes = 0

    def forget(self, next_index: int) -> None:
        """Forget what the member reported, and search again, from ``next_index`` down."""
        self.match = 0
        self.snapshot = None
        self.probe(next_index)

    def send_snapshot(self, snapshot: Snapshot) -> None:
        """Start to send a snapshot."""
        self.sending = Sending.SNAPSHOT
        self.snapshot = snapshot
        self.chunk_offset = 0
        self.waiting = False
        self._inflight.clear()
        self.inflight_bytes = 0
