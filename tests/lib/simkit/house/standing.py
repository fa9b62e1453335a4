"""Quiet spells, in which followers' fetches stand at their leaders, and what must then hold.

Publishers fall silent from time to time, with draws of the spells' own: a life without them is not
another one. All the faults of the life strike meanwhile. Two promises are looked at in every step,
with the sight of everything that no broker has: a fetch that its leader does not have stands no
longer than the follower's patience, and a leader keeps no fetch of an ended process for longer
than its own. All other promises are the oracle's.
"""

from __future__ import annotations

import random
from collections import Counter
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Final

from broker.core.replication.follower import FollowerTiming
from broker.core.replication.standing import StandingFetch
from broker.model.replica_messages import STANDING_MS_MIN

if TYPE_CHECKING:
    from simkit.house.house import House
    from simkit.house.node import Node

_UNDER_WAY_MS: Final = 900  # a message on a slow link, and a second copy of it
_TURNS_MS: Final = 100  # until a tick and the turn that it queues are over
_SKEW: Final = 1.25  # two clocks at rates 10 % apart


def standing_timing(timing: FollowerTiming) -> FollowerTiming:
    """Return the timing of a life whose followers' fetches may stand."""
    return replace(timing, stand_ms=5 * STANDING_MS_MIN, call_ms=timing.idle_ms * 4 // 5)


@dataclass(slots=True)
class _Doubt:
    """A standing fetch that the other side does not have, since a moment of the world."""

    fetch: StandingFetch
    life: int
    since_ms: int


class Standing:
    """Acts on one house, and looks. ``counts`` has what was seen."""

    def __init__(self, house: House, seed: int) -> None:
        self._house = house
        self._rng = random.Random(f"standing {seed}")
        self._doubts: dict[tuple[str, object, str], _Doubt] = {}
        self.counts: Counter[str] = Counter()

    def begin(self) -> None:
        """Let publishers be silent from time to time, while there is trouble."""
        self._house.world.at(self._rng.choice((60, 150, 300)), self._hush)

    def _hush(self) -> None:
        if not self._house.faults.is_trouble:
            return
        for publisher in self._house.publishers:
            publisher.stopped = self._rng.random() < 0.7
        self._house.world.at(self._rng.choice((200, 600, 1200)), self._speak)

    def _speak(self) -> None:
        if self._house.faults.is_trouble:
            for publisher in self._house.publishers:
                publisher.stopped = False
            self.begin()

    def look(self) -> None:
        """Check both promises."""
        timing, limits = self._house.setting.timing, self._house.setting.limits
        own_ms = int((2 * timing.call_ms + timing.kept_ms) * _SKEW) + _TURNS_MS
        kept_ms = int((limits.kept_ms + timing.call_ms) * _SKEW) + _TURNS_MS + _UNDER_WAY_MS
        seen = set()
        for name in sorted(self._house.nodes):
            node = self._house.nodes[name]
            for partition_id, fetch in self._fetches(node):
                key = (name, partition_id, str(fetch.peer))
                is_known = self._is_known(node, partition_id, fetch)
                self.counts["own" if fetch.is_own else "follower's"] += 1
                if is_known or node.machine.paused:
                    continue
                seen.add(key)
                now_ms = self._house.world.now_ms
                doubt = self._doubts.get(key)
                if doubt is None or doubt.fetch is not fetch:
                    self._doubts[key] = _Doubt(fetch, node.machine.life, now_ms)
                    self.counts["own doubted" if fetch.is_own else "follower's doubted"] += 1
                    continue
                limit_ms = own_ms if fetch.is_own else kept_ms
                assert now_ms - doubt.since_ms <= limit_ms, (
                    f"{node.machine.process} keeps {fetch} of {partition_id} for "
                    f"{now_ms - doubt.since_ms} ms, and {fetch.peer} does not have it"
                )
        for key in [one for one in self._doubts if one not in seen]:
            del self._doubts[key]

    def _fetches(self, node: Node) -> list[tuple[object, StandingFetch]]:
        """Return what roll calls may confirm: not what a replica had that has failed since."""
        if node.member is None or not node.machine.alive:
            return []
        kept = node.member._rolls._kept
        return [(at, one) for at in self._house.partitions for one in kept.get(at, ())]

    def _is_known(self, node: Node, partition_id: object, fetch: StandingFetch) -> bool:
        """Tell whether the other side has this fetch, or at least lives to ask for it again.

        A leader's fetch is known while the process that sent it lives: its follower may have gone
        on, and then another fetch is under way.
        """
        other = self._house.nodes[fetch.peer]
        same = [one for at, one in self._fetches(other) if at == partition_id]
        if fetch.is_own:
            twins = (one for one in same if not one.is_own and one.peer == node.name)
            return any(one.request_id == fetch.request_id for one in twins)
        epoch = self._house.house.state.brokers[other.name].epoch
        return other.machine.alive and fetch.request_id >> 32 == epoch
