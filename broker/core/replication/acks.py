"""Which publishers may get their ack now. The shell asks immediately before it sends acks."""

from __future__ import annotations

import heapq
from typing import Generic, TypeAlias, TypeVar

from broker.model.offsets import Offset
from broker.model.records import AckPolicy

_T = TypeVar("_T")
_Heap: TypeAlias = list[tuple[Offset, int, _T]]  # by end, then in the order of arrival


class AckQueue(Generic[_T]):
    """The publishers that wait for an ack, as opaque tokens. Each waits for a log end.

    With ack policy LEADER it waits for the leader's synced end, with ALL for the high watermark.
    With NONE a publisher never waits and is never answered. A retry of a stored batch waits too,
    because the batch may not be committed yet.
    """

    def __init__(self) -> None:
        """Start empty."""
        self._leader: _Heap[_T] = []
        self._all: _Heap[_T] = []
        self._added = 0  # keeps the order of tokens that wait for the same end

    def __len__(self) -> int:
        return len(self._leader) + len(self._all)

    def add(self, policy: AckPolicy, end: Offset, token: _T) -> None:
        """Let ``token`` wait until its policy holds for all records below ``end``."""
        if policy is not AckPolicy.NONE:
            self._added += 1
            heap = self._leader if policy is AckPolicy.LEADER else self._all
            heapq.heappush(heap, (end, self._added, token))

    def settled(self, *, synced_end: Offset, high_watermark: Offset) -> list[_T]:
        """Take out and return the tokens that may be answered, lowest end first."""
        done: list[_T] = []
        for heap, bound in ((self._leader, synced_end), (self._all, high_watermark)):
            while heap and heap[0][0] <= bound:
                done.append(heapq.heappop(heap)[2])
        return done

    def abandon(self) -> list[_T]:
        """Take out and return all tokens: the outcome of their records is unknown."""
        tokens = [token for heap in (self._leader, self._all) for _, _, token in sorted(heap)]
        self._leader.clear()
        self._all.clear()
        return tokens
