"""Which publishers may be answered now; the shell asks right before it answers."""

from __future__ import annotations

import heapq
from typing import Generic, TypeVar

from broker.model.offsets import Offset
from broker.model.records import AckPolicy

_T = TypeVar("_T")


class AckQueue(Generic[_T]):
    """Tokens of publishers that wait for an ack, with the log end that theirs needs.

    LEADER waits for the leader's own disk, ALL for the high watermark; NONE never waits and is
    never answered. A retry of a stored batch waits like the first time: it may not be committed.
    """

    def __init__(self) -> None:
        """Start empty."""
        self._waiting: dict[AckPolicy, list[tuple[Offset, int, _T]]] = {
            AckPolicy.LEADER: [],
            AckPolicy.ALL: [],
        }
        self._added = 0  # keeps the order of those that need the same end

    def __len__(self) -> int:
        return sum(map(len, self._waiting.values()))

    def add(self, policy: AckPolicy, end: Offset, token: _T) -> None:
        """Let ``token`` wait until its policy holds for everything below ``end``."""
        if policy is not AckPolicy.NONE:
            self._added += 1
            heapq.heappush(self._waiting[policy], (end, self._added, token))

    def settled(self, *, synced_end: Offset, high_watermark: Offset) -> list[_T]:
        """Take out and return the tokens that may be answered, lowest end first."""
        bounds = {AckPolicy.LEADER: synced_end, AckPolicy.ALL: high_watermark}
        done: list[_T] = []
        for policy, queue in self._waiting.items():
            while queue and queue[0][0] <= bounds[policy]:
                done.append(heapq.heappop(queue)[2])
        return done

    def abandon(self) -> list[_T]:
        """Take out and return everybody: their outcome is unknown."""
        tokens = [token for queue in self._waiting.values() for _, _, token in sorted(queue)]
        for queue in self._waiting.values():
            queue.clear()
        return tokens
