"""Time, links and chance of a simulated cluster: one heap of events, one seeded generator.

Everything that happens is an event in the heap; events at one moment happen in the order in which
they were planned. So a seed is a whole story, and `digest` tells two tellings apart.
"""

from __future__ import annotations

import hashlib
import heapq
import random
from collections import Counter
from collections.abc import Callable, Iterable
from typing import Any


class World:
    """The heap, the links between nodes, and what has been seen so far."""

    def __init__(self, seed: int) -> None:
        self.rng = random.Random(seed)
        self.now_ms = 0
        self.seen: Counter[str] = Counter()
        self._heap: list[tuple[int, int, Callable[..., None], tuple[Any, ...]]] = []
        self._planned = 0
        self._trace = hashlib.blake2b(digest_size=16)
        self.steps = 0
        self.story: list[str] | None = None  # filled if a test asks for it

    # ------------------------------------------------------------------ time

    def at(self, delay_ms: int, action: Callable[..., None], *args: Any) -> None:
        """Plan an action."""
        self._planned += 1
        heapq.heappush(self._heap, (self.now_ms + delay_ms, self._planned, action, args))

    def step(self) -> bool:
        """Let the next action happen; False when nothing is planned."""
        if not self._heap:
            return False
        self.now_ms, number, action, args = heapq.heappop(self._heap)
        self.steps += 1
        self._trace.update(b"%d:%d;" % (self.now_ms, number))
        action(*args)
        return True

    def chance(self, probability: float) -> bool:
        """Draw."""
        return self.rng.random() < probability

    def note(self, what: str, *facts: object) -> None:
        """Count a situation, and put it into the trace."""
        self.seen[what] += 1
        self._trace.update(what.encode())
        if self.story is not None:
            self.story.append(f"{self.now_ms:>6} {what} {' '.join(map(str, facts))}")

    def digest(self) -> str:
        """Return what tells this run from any other."""
        return self._trace.hexdigest()


class Network:
    """Directed links: delayed, in order like TCP, or in any order like NATS; cut, or doubling."""

    def __init__(self, world: World, *, delay_ms_max: int, ordered: bool, doubling: float) -> None:
        self._world = world
        self._delay_ms_max = delay_ms_max
        self._ordered = ordered
        self._doubling = doubling
        self._cut: set[tuple[str, str]] = set()
        self._slow: dict[tuple[str, str], int] = {}
        self._busy_until: dict[tuple[str, str], int] = {}
        self._receivers: dict[str, Callable[[str, Any], None]] = {}
        # Drops messages for a script; called for every message as it is sent.
        self.loses: Callable[[str, str, Any], bool] | None = None

    def join(self, node: str, receive: Callable[[str, Any], None]) -> None:
        """Let a node receive (sender, message)."""
        self._receivers[node] = receive

    def cut(self, sender: str, receiver: str) -> None:
        """Drop every message in one direction, also those under way."""
        self._cut.add((sender, receiver))

    def heal(self, sender: str, receiver: str) -> None:
        """Undo :meth:`cut`."""
        self._cut.discard((sender, receiver))
        self._slow.pop((sender, receiver), None)

    def clog(self, sender: str, receiver: str, delay_ms: int) -> None:
        """Make one direction slow: messages of one epoch arrive in the next."""
        self._slow[sender, receiver] = delay_ms

    def heal_all(self) -> None:
        """Undo everything."""
        self._cut.clear()
        self._slow.clear()

    def links(self) -> list[tuple[str, str]]:
        """Return the cut links, in order."""
        return sorted(self._cut)

    def send(self, sender: str, receiver: str, message: Any) -> None:
        """Send; it may never arrive, arrive late, or twice."""
        link = (sender, receiver)
        if link in self._cut or (self.loses is not None and self.loses(sender, receiver, message)):
            return
        rng = self._world.rng
        delay_ms = 1 + int(rng.random() ** 3 * self._delay_ms_max) + self._slow.get(link, 0)
        if self._ordered:
            arrives_ms = max(self._world.now_ms + delay_ms, self._busy_until.get(link, 0))
            self._busy_until[link] = arrives_ms
            delay_ms = arrives_ms - self._world.now_ms
        self._world.at(delay_ms, self._arrive, sender, receiver, message)
        if self._doubling and rng.random() < self._doubling:
            again_ms = delay_ms + 1 + rng.randrange(300)
            self._world.at(again_ms, self._arrive, sender, receiver, message)
            self._world.seen["message doubled"] += 1

    def _arrive(self, sender: str, receiver: str, message: Any) -> None:
        if (sender, receiver) not in self._cut:
            self._receivers[receiver](sender, message)


def both_ways(nodes: Iterable[str], others: Iterable[str]) -> list[tuple[str, str]]:
    """Return the links between two groups, in both directions."""
    right = list(others)
    return [pair for one in nodes for two in right for pair in ((one, two), (two, one))]
