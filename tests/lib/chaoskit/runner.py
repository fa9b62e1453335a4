"""Tells the stories of a schedule to a cluster under load, and keeps count of what was reached.

A story is *told* when its steps were done, and *reached* when what it is about was seen to happen
(a later leader epoch, a replica out of the ISR, ...). After each story everything is healed, and
the cluster has to be whole again and to acknowledge, within a bound: that is the liveness check.
What was lost is not judged here: checkkit does, from what the load recorded.
"""

from __future__ import annotations

import time
from collections import Counter
from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Final, Protocol

from chaoskit.cast import Cast, cast
from chaoskit.cluster import ChaosError, ClusterState, ClusterUnderTest
from chaoskit.schedule import Entry, Schedule
from chaoskit.stories import REFUSED, Do, Evidence, Step, Story

_TICK_S: Final = 0.05
_STALL_S: Final = 0.5  # without an ack for so long: a stall, as evidence
_PROGRESS_COUNT: Final = 20  # acks that show that it goes on


class Clock(Protocol):
    """Time, so that tests need not spend it."""

    def now_s(self) -> float:
        """Return monotonic seconds."""

    def sleep(self, seconds: float) -> None:
        """Let so much time pass."""


class RealClock:
    """The machine's clock."""

    def now_s(self) -> float:
        """See Clock."""
        return time.monotonic()

    def sleep(self, seconds: float) -> None:
        """See Clock."""
        time.sleep(seconds)


@dataclass(slots=True)
class Tally:
    """What a run did and saw."""

    told: Counter[str] = field(default_factory=Counter)
    reached: Counter[str] = field(default_factory=Counter)
    steps: Counter[str] = field(default_factory=Counter)
    all_killed: int = 0  # how often a kill left no broker running
    stalls_s: dict[str, list[float]] = field(default_factory=dict)  # longest time without an ack
    healing_s: dict[str, list[float]] = field(default_factory=dict)

    def unreached(self, schedule: Schedule) -> list[str]:
        """Return the stories that were planned and never reached."""
        return [name for name in schedule.names() if not self.reached[name]]


@dataclass(slots=True)
class _Watch:
    """Looks at the cluster and the load while a story is told."""

    cluster: ClusterUnderTest
    clock: Clock
    progress: Callable[[int], int]
    partition: int
    before: ClusterState
    seen: set[Evidence] = field(default_factory=set)
    stall_s: float = 0.0
    _acked: int = -1
    _since_s: float = 0.0

    def look(self) -> ClusterState | None:
        """Take one look; return what the cluster said."""
        now_s, acked = self.clock.now_s(), self.progress(self.partition)
        if acked != self._acked:
            self._acked, self._since_s = acked, now_s
        self.stall_s = max(self.stall_s, now_s - self._since_s)
        if self.stall_s >= _STALL_S:
            self.seen.add(Evidence.STALL)
        state = self.cluster.state()
        if state is not None:
            self._compare(state)
        return state

    def _compare(self, state: ClusterState) -> None:
        if state.controller not in {None, self.before.controller}:
            self.seen.add(Evidence.NEW_CONTROLLER)
        now, before = state.partitions.get(self.partition), self.before.partitions[self.partition]
        if now is None:
            return
        if now.leader_epoch > before.leader_epoch:
            self.seen.add(Evidence.FAILOVER)
        if now.isr < now.replicas:
            self.seen.add(Evidence.SHRINK)
        if now.replicas != before.replicas:
            self.seen.add(Evidence.MOVED)

    def wait(self, seconds: float) -> None:
        """Look on for so long."""
        until_s = self.clock.now_s() + seconds
        self.look()
        while (left_s := until_s - self.clock.now_s()) > 0:
            self.clock.sleep(min(left_s, _TICK_S))
            self.look()


class ChaosRunner:
    """Runs one schedule."""

    def __init__(
        self,
        cluster: ClusterUnderTest,
        schedule: Schedule,
        *,
        progress: Callable[[int], int],
        say: Callable[[str], None],
        check: Callable[[], None] | None = None,
        forgive: Callable[[int, int, float], None] = lambda _partition, _end, _began_s: None,
        clock: Clock | None = None,
        healing_s_max: float = 150.0,
    ) -> None:
        """Prepare a run.

        Args:
            cluster: what is broken.
            schedule: how, in which order.
            progress: counts the acks of a partition that the load has heard so far.
            say: takes one line for people at a time.
            forgive: hears of an unclean election: partition, the end above which acknowledged
                records may be lost, and when it began.
            check: raises when the load has failed; called after each story.
            clock: the machine's by default.
            healing_s_max: after so long a cluster that is not whole has failed.
        """
        self._cluster = cluster
        self._schedule = schedule
        self._progress = progress
        self._say = say
        self._check = check
        self._forgive = forgive
        self._clock = clock or RealClock()
        self._healing_s_max = healing_s_max
        self._paused: set[str] = set()
        self.tally = Tally()

    def run(self) -> Tally:
        """Tell the stories, until time is over and each was told.

        Raises:
            ChaosError: the cluster did not become whole again, or stopped acknowledging.
        """
        self._say(f"chaos: seed {self._schedule.seed}, {len(self._schedule.entries)} stories")
        for name, why in self._schedule.skipped.items():
            self._say(f"  skipped: {name}: {why}")
        self._await_whole(self._healing_s_max)
        until_s = self._clock.now_s() + 60 * self._schedule.minutes
        for number, entry in enumerate(self._schedule.entries, 1):
            if number > self._schedule.required_count and self._clock.now_s() > until_s:
                self._say(f"  time is over after {number - 1} stories; each was told")
                break
            self._clock.sleep(entry.gap_ms / 1000)
            self._tell(number, entry)
        return self.tally

    def _tell(self, number: int, entry: Entry) -> None:
        story, before = entry.story, self._await_whole(self._healing_s_max)
        watch = _Watch(self._cluster, self._clock, self._progress, entry.partition, before)
        players = cast(
            story, before, self._cluster.brokers, partition=entry.partition, seed=entry.cast_seed
        )
        watch.look()
        try:
            for step in story.steps:
                self._do(step, players, watch)
                self.tally.steps[step.do.value] += 1
        finally:
            self._restore()
        healing_s = self._heal(watch, story)
        self.tally.told[story.name] += 1
        missing = story.evidence - watch.seen
        if not missing:
            self.tally.reached[story.name] += 1
        self.tally.stalls_s.setdefault(story.name, []).append(watch.stall_s)
        self.tally.healing_s.setdefault(story.name, []).append(healing_s)
        words = ", ".join(sorted(one.value for one in missing))
        self._say(
            f"{number:4d} {story.name}: {watch.stall_s:.2f} s without acks, whole after "
            f"{healing_s:.1f} s" + (f", NOT reached: no {words}" if missing else "")
        )
        if self._check is not None:
            self._check()

    # ------------------------------------------------------------------ one step

    def _do(self, step: Step, players: Cast, watch: _Watch) -> None:
        cluster = self._cluster
        match step.do:
            case Do.WAIT:
                watch.wait(step.ms / 1000)
            case Do.ACKS:
                self._await_acks(step, watch)
            case Do.SYNC:
                self._sync(step, watch)
            case Do.CUT:
                for pair in players.pairs(step.who, step.to):
                    cluster.cut(*pair)
            case Do.SLOW:
                for pair in players.pairs(step.who, step.to):
                    cluster.delay(*pair, step.ms)
            case Do.HEAL:
                cluster.heal_network()
            case Do.NATS:
                cluster.restart_nats(step.ms)
            case Do.APART:
                self._apart(step, players.find(step.who)[0], watch)
            case Do.FLUSH | Do.TRANSFER | Do.ELECT | Do.REASSIGN | Do.ACCESS:
                self._operate(step, players, watch)
            case _:
                self._do_to_brokers(step, players, watch)

    def _operate(self, step: Step, players: Cast, watch: _Watch) -> None:
        """Do what an operator does."""
        cluster = self._cluster
        match step.do:
            case Do.FLUSH:
                cluster.flush_tier()
            case Do.TRANSFER:
                cluster.transfer_leader(watch.partition, players.find(step.to)[0])
            case Do.ELECT:
                broker = players.find(step.who)[0]
                began_s = self._clock.now_s()
                end = cluster.elect_unclean(watch.partition, broker)
                self._forgive(watch.partition, end, began_s)
            case Do.REASSIGN:
                self._reassign(players.find(step.who)[0], watch)
            case _:
                cluster.change_access(step.what)
                watch.seen.add(Evidence.IN_FORCE)

    def _do_to_brokers(self, step: Step, players: Cast, watch: _Watch) -> None:
        state = watch.look() if step.who == "now" else None
        one = None if state is None else state.partitions.get(watch.partition)
        for broker in players.find(step.who, None if one is None else one.leader):
            self._do_to(step.do, broker, watch.partition)
        if step.do is Do.KILL and not any(map(self._cluster.is_running, self._cluster.brokers)):
            self.tally.all_killed += 1

    def _do_to(self, do: Do, broker: str, partition: int) -> None:
        """Do it to one broker; what is so already is left."""
        cluster, running = self._cluster, self._cluster.is_running(broker)
        match do:
            case Do.START if not running:
                cluster.start(broker)
            case Do.KILL if running:
                self._paused.discard(broker)
                cluster.kill(broker)
            case Do.STOP if running:
                self._resume(broker)
                cluster.stop(broker)
            case Do.PAUSE if running and broker not in self._paused:
                self._paused.add(broker)
                cluster.pause(broker)
            case Do.RESUME:
                self._resume(broker)
            case Do.WIPE:
                assert not running, f"{broker} runs: its disk cannot be replaced"
                cluster.wipe(broker)
            case Do.COPY:
                cluster.copy_disk(broker)
            case Do.RESTORE:
                cluster.restore_disk(broker)
            case Do.SWAP:
                cluster.swap_disk(broker)
            case Do.LOSE | Do.EMPTY:
                cluster.lose_partition(broker, partition, keep_folder=do is Do.EMPTY)
            case Do.LOSE_RAFT:
                cluster.lose_raft(broker)
            case Do.FILL:
                cluster.fill_disk(broker)
            case Do.FREE:
                cluster.free_disk(broker)
            case _:
                pass

    def _resume(self, broker: str) -> None:
        if broker in self._paused:
            self._paused.discard(broker)
            self._cluster.resume(broker)

    def _reassign(self, leaves: str, watch: _Watch) -> None:
        """Put a broker that has no replica into the place of one that has."""
        replicas = watch.before.partitions[watch.partition].replicas
        spare = sorted(set(self._cluster.brokers) - replicas)
        if spare and leaves in replicas:
            target = [spare[0] if one == leaves else one for one in sorted(replicas)]
            self._cluster.reassign(watch.partition, target)

    def _sync(self, step: Step, watch: _Watch) -> None:
        until_s = self._clock.now_s() + step.ms / 1000
        while not _is_whole(watch.look()):
            if self._clock.now_s() > until_s:
                raise ChaosError(f"not in sync within {step.ms / 1000:.0f} s: {self._describe()}")
            self._clock.sleep(_TICK_S)

    def _await_acks(self, step: Step, watch: _Watch) -> None:
        """Go on once so many records were acknowledged, or time is up: load is no promise."""
        until_s = self._clock.now_s() + step.ms / 1000
        wanted = self._progress(watch.partition) + step.count
        while self._progress(watch.partition) < wanted and self._clock.now_s() < until_s:
            watch.wait(_TICK_S)

    def _apart(self, step: Step, broker: str, watch: _Watch) -> None:
        """Ship until the table goes beyond the log of a broker that is down."""
        until_s = self._clock.now_s() + step.ms / 1000
        while not self._cluster.ends_below_table(broker, watch.partition):
            if self._clock.now_s() > until_s:
                raise ChaosError(f"the table does not go beyond the log of {broker}")
            watch.wait(0.5)

    # ------------------------------------------------------------------ healing

    def _restore(self) -> None:
        """Undo everything that a story may have left, whatever went wrong in it."""
        cluster = self._cluster
        for broker in sorted(self._paused):
            self._resume(broker)
        cluster.heal_network()
        for broker in cluster.brokers:
            cluster.free_disk(broker)
            if not cluster.is_running(broker):
                cluster.start(broker)

    def _replace_refused(self, story: Story) -> None:
        """Give a broker that refuses its disk by name an empty one, as an operator does."""
        if any(step.do in REFUSED for step in story.steps):
            for broker in self._cluster.brokers:
                if not self._cluster.is_running(broker):
                    self._say(f"     {broker} refused its disk: it is given an empty one")
                    self._cluster.wipe(broker)
                    self._cluster.start(broker)

    def _heal(self, watch: _Watch, story: Story) -> float:
        """Wait until the cluster is whole and acknowledges; return the seconds it took."""
        began_s, number = self._clock.now_s(), watch.partition
        acked = self._progress(number)
        while not (_is_whole(watch.look()) and self._progress(number) >= acked + _PROGRESS_COUNT):
            self._replace_refused(story)
            if self._clock.now_s() > began_s + self._healing_s_max:
                raise ChaosError(
                    f"not whole, or no acks, {self._healing_s_max:.0f} s after all was healed "
                    f"({self._progress(number) - acked} acks since): {self._describe()}"
                )
            self._clock.sleep(_TICK_S)
        return self._clock.now_s() - began_s

    def _await_whole(self, seconds: float) -> ClusterState:
        until_s = self._clock.now_s() + seconds
        while True:
            state = self._cluster.state()
            if state is not None and _is_whole(state):
                return state
            if self._clock.now_s() > until_s:
                raise ChaosError(f"not whole within {seconds:.0f} s: {self._describe()}")
            self._clock.sleep(_TICK_S)

    def _describe(self) -> str:
        down = [one for one in self._cluster.brokers if not self._cluster.is_running(one)]
        return f"down {down}, paused {sorted(self._paused)}, {self._cluster.state()}"


def _is_whole(state: ClusterState | None) -> bool:
    return (
        state is not None
        and state.controller is not None
        and all(one.is_healthy for one in state.partitions.values())
    )


def stories_of(schedule: Schedule) -> list[Story]:
    """Return the stories in the order in which they are told."""
    return [entry.story for entry in schedule.entries]
