"""One life of a consumer group: members and brokers fail, by a seed; then quiet, and a verdict.

Source of the promises: docs/groups.md.
"""

from __future__ import annotations

import heapq
import itertools
import random
from collections import Counter
from collections.abc import Callable
from dataclasses import dataclass, field

from broker.model.groups import partition_key
from broker.model.ids import BrokerId
from checkkit.check_groups import GroupHistory, judge_group
from simkit.groups.brokers import UUID, MetadataHistory, SimBroker, SimClock
from simkit.groups.members import PROCESSING_MS_MAX, Network, SimMember

_NAMES = (BrokerId("a"), BrokerId("b"), BrokerId("c"))
_TICK_MS = 25
_FAULTS_MS = 60_000
_QUIET_MS = 120_000
_PARTITIONS_MAX = 8


@dataclass(slots=True)
class GroupLife:
    """What a seed has shown."""

    seed: int
    wrong: list[str] = field(default_factory=list)
    met: Counter[str] = field(default_factory=Counter)
    given_count: int = 0
    moves_count: int = 0  # claims that were read


class _World:
    def __init__(self, seed: int) -> None:
        self.chance = random.Random(seed)
        self.clock = SimClock()
        self.ends = [0] * self.chance.randint(2, 5)
        self.metadata = MetadataHistory(list(_NAMES), len(self.ends))
        self.brokers = {
            name: SimBroker(name, self.metadata, self.clock, self.chance, self.soon)
            for name in _NAMES
        }
        self.history = GroupHistory()
        self.members: list[SimMember] = []
        self.met: Counter[str] = Counter()
        self._due: list[tuple[int, int, Callable[[], None]]] = []
        self._count = itertools.count()
        self._instances = itertools.count()
        self._network = Network(self.brokers, self.at, self.clock, self.chance)
        self._app_due: dict[str, int] = {}
        self._expelled_seen = 0

    def at(self, time_ms: int, what: Callable[[], None]) -> None:
        heapq.heappush(self._due, (max(time_ms, self.clock.ms + 1), next(self._count), what))

    def soon(self, after_ms: int, what: Callable[[], None]) -> None:
        self.at(self.clock.ms + after_ms, what)

    def new_member(self, name: str | None = None, session_ms: int = 0) -> None:
        number = next(self._instances)
        static = name is not None or self.chance.random() < 0.3
        member = SimMember(
            name or f"m{number}",
            f"i{number}",
            self._network,
            self.history,
            self.ends,
            static=static,
            session_ms=session_ms or self.chance.choice((2_000, 4_000, 8_000)),
        )
        self.members.append(member)

    def step(self, *, faults: bool) -> None:
        """Let one tick pass."""
        self.clock.ms += _TICK_MS
        now_ms = self.clock.ms
        while self._due and self._due[0][0] <= now_ms:
            heapq.heappop(self._due)[2]()
        for broker in self.brokers.values():
            if now_ms % 250 == 0:
                broker.turn()
        for member in self.members:
            member.tick()
            if not member.is_over and now_ms >= self._app_due.get(member.instance, 0):
                self._app_due[member.instance] = member.app_turn()
        for process, session_ms in self.metadata.expelled[self._expelled_seen :]:
            self.history.expelled.append((process, now_ms, session_ms * 3 // 4))
            self.met["expelled"] += 1
        self._expelled_seen = len(self.metadata.expelled)
        if faults and now_ms % 100 == 0:
            for number in range(len(self.ends)):
                self.ends[number] += self.chance.random() < 0.5
        if faults and now_ms % 500 == 0 and self.chance.random() < 0.35:
            self.fail()

    def fail(self) -> None:
        """Let one thing go wrong, or change."""
        living = [one for one in self.members if not one.is_over]
        kinds: list[Callable[[list[SimMember]], None]] = [
            self._join, self._kill, self._pause, self._cut, self._close, self._break_broker,
            self._break_broker, self._grow, self._work_for_long,
        ]  # fmt: skip
        self.chance.choice(kinds)(living)

    def _join(self, living: list[SimMember]) -> None:
        if len(living) < 5:
            self.met["join"] += 1
            self.new_member()

    def _kill(self, living: list[SimMember]) -> None:
        if not living:
            return
        one = self.chance.choice(living)
        one.kill()
        self.met["kill"] += 1
        if one.static:
            back_ms = self.clock.ms + self.chance.choice((100, 500, 1_000, 12_000))
            self.met["static comes back"] += 1
            self.at(back_ms, lambda: self.new_member(one.name, one.session_ms))

    def _pause(self, living: list[SimMember]) -> None:
        if living:
            self.met["pause"] += 1
            ms = self.chance.choice((500, 1_500, 5_000, 15_000))
            self.chance.choice(living).paused_until_ms = self.clock.ms + ms

    def _cut(self, living: list[SimMember]) -> None:
        if living:
            one = self.chance.choice(living)
            one.is_cut = True
            self.met["cut"] += 1
            ms = self.chance.choice((500, 1_500, 5_000, 15_000))
            self.at(self.clock.ms + ms, lambda: setattr(one, "is_cut", False))

    def _work_for_long(self, living: list[SimMember]) -> None:
        """Let an application ask for nothing, until its member gives everything up and leaves."""
        if living:
            self.met["application is slow"] += 1
            ms = PROCESSING_MS_MAX + self.chance.choice((100, 500, 2_000))
            self._app_due[self.chance.choice(living).instance] = self.clock.ms + ms

    def _close(self, living: list[SimMember]) -> None:
        if living and living[0].is_running:
            self.met["close"] += 1
            living[0].close()

    def _break_broker(self, _living: list[SimMember]) -> None:
        """Break one broker of three, the coordinator more often than not."""
        if any(one.is_away for one in self.brokers.values()):
            return
        group = self.metadata.state.groups.get("g")
        name = self.chance.choice(_NAMES)
        if group is not None and self.chance.random() < 0.7:
            name = group.coordinator
            self.met["coordinator lost"] += 1
        broker, until_ms = (
            self.brokers[name],
            self.clock.ms + self.chance.choice((800, 4_000, 9_000)),
        )
        kind = self.chance.choice(("broker killed", "broker paused", "broker cut off"))
        self.met[kind] += 1
        if kind == "broker killed":
            broker.is_up = False
            self.at(until_ms, broker.start)
        elif kind == "broker paused":
            broker.paused_until_ms = until_ms
        else:
            metadata = broker.metadata
            metadata.is_cut = True
            self.at(until_ms, lambda: setattr(metadata, "is_cut", False))

    def _grow(self, _living: list[SimMember]) -> None:
        if len(self.ends) < _PARTITIONS_MAX:
            self.met["partitions added"] += 1
            self.ends.append(0)
            self.metadata.grow(len(self.ends))

    def is_read(self) -> bool:
        """Tell whether the group has committed everything."""
        at = self.metadata.state.positions.get("g", {})
        found = [at.get(partition_key(UUID, number)) for number in range(len(self.ends))]
        return all(
            end == 0 or (one is not None and one.offset == end)
            for one, end in zip(found, self.ends, strict=True)
        )


def live(seed: int) -> GroupLife:
    """Live one seed; return what was wrong."""
    world = _World(seed)
    for _ in range(2):
        world.new_member()
    while world.clock.ms < _FAULTS_MS:
        world.step(faults=True)
    for member in world.members:
        member.is_cut = False
    end_ms = world.clock.ms + _QUIET_MS
    while world.clock.ms < end_ms and not world.is_read():
        if all(one.is_over for one in world.members):
            world.new_member()
        world.step(faults=False)
    ends = {partition_key(UUID, number): end for number, end in enumerate(world.ends)}
    life = GroupLife(seed, met=world.met, given_count=len(world.history.given))
    life.moves_count = len({(one.partition, one.epoch) for one in world.history.given})
    life.wrong = [str(one) for one in judge_group(world.history, ends)]
    life.wrong += world.metadata.wrong
    if not world.is_read():
        life.wrong.append("the group does not come to the end of its streams")
    return life
