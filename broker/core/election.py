"""The controller's judgement: who is alive, which partitions need a leader, who it should be.

Everything here is volatile and may be wrong; it only proposes commands, and `apply` decides. So a
second controller, or one that acts on an old state, changes nothing that it should not.

A leader is lost when its session is, when its process is replaced by another, or when a majority of
those who could succeed it report it within a window. Then all living members of ISR and eligible
are asked how far their logs reach; the one with the smallest lag is named, has to confirm before a
timer, else the next is. One that has restarted is named only when enough answers show that it lacks
nothing (`is_compared`). Without a candidate the partition goes offline until one is back, or until
enough are there to compare. Sources: Fluvio's replica election, Liftbridge's reports.
"""

from __future__ import annotations

import itertools
from collections.abc import Iterator
from dataclasses import dataclass, field
from typing import Final

from broker.core.metadata.changes import partition_changes
from broker.core.metadata.commands import (
    Command,
    FenceBroker,
    LogAnswer,
    NameCandidate,
    StartElection,
    TakeOffline,
    UnfenceBroker,
)
from broker.core.metadata.partition_rules import candidates, is_compared, members
from broker.core.metadata.placement import hand_overs
from broker.core.metadata.state import MetadataState, PartitionState
from broker.model.epochs import BrokerEpoch, LeaderEpoch
from broker.model.ids import BrokerId, PartitionId
from broker.model.offsets import Offset


@dataclass(frozen=True, slots=True, kw_only=True)
class ElectionTiming:
    """How patient a controller is. A broker's lease has to end before its session does."""

    session_ms: int = 1_500  # without a heartbeat the broker is fenced
    report_window_ms: int = 3_000  # reports further apart do not add up
    ask_ms: int = 100  # candidates answer how far they are, or are taken last
    ask_again_ms: int = 250  # who has not answered, and is needed, is asked again
    confirm_ms: int = 500  # a candidate promotes itself in this time
    retry_ms: int = 250  # a proposal without effect is made again
    offline_ms: int = 1_000  # an offline partition is tried again
    stall_ms: int = 500  # a tick later than this means that the controller itself was stopped

    def lease_ms(self) -> int:
        """How long a broker may act after it *sent* a heartbeat that was answered.

        Two thirds of the session: the clocks' rates may differ by a quarter, and it still ends
        before anybody else is made leader.
        """
        return self.session_ms * 2 // 3


@dataclass(frozen=True, slots=True)
class ProposeCommand:
    """Propose a command to the metadata log; its fate shows in the state."""

    command: Command


@dataclass(frozen=True, slots=True)
class AskLogEnd:
    """Ask a replica how far its log reaches; report :meth:`ElectionCore.log_end_told`."""

    to: BrokerId
    partition_id: PartitionId
    leader_epoch: LeaderEpoch


ElectionEffect = ProposeCommand | AskLogEnd


@dataclass(slots=True)
class _Race:
    """One partition without a leader, as of one partition epoch."""

    partition_epoch: int
    first_epoch: LeaderEpoch  # the first without a leader: who has seen it follows nobody
    status: str
    since_ms: int
    asked_ms: int
    answers: dict[BrokerId, tuple[LeaderEpoch, LogAnswer]] = field(default_factory=dict)
    proposed_ms: int | None = None

    def take(self, known_epoch: LeaderEpoch, answer: LogAnswer) -> None:
        """Keep the newest answer of a replica; a log that follows nobody only grows."""
        before = self.answers.get(answer.broker)
        if before is None or _order(before) < _order((known_epoch, answer)):
            self.answers[answer.broker] = (known_epoch, answer)

    def end_of(self, broker: BrokerId) -> tuple[LeaderEpoch, Offset]:
        """Return how far a replica's log reaches, as far as it is known."""
        found = self.answers.get(broker)
        return _NEVER if found is None else (found[1].last_epoch, found[1].log_end)

    def settled(self) -> tuple[LogAnswer, ...]:
        """Return the answers of replicas that had let go of the leader before.

        Others may still acknowledge to it, and it may commit what they had not yet when they told.
        """
        return tuple(
            answer
            for _, (known_epoch, answer) in sorted(self.answers.items())
            if known_epoch >= self.first_epoch
        )


_RACES_MAX: Final = 64  # elections under way at a time
_NEVER: Final = (LeaderEpoch(-1), Offset(0))


def _order(told: tuple[LeaderEpoch, LogAnswer]) -> tuple[int, ...]:
    known_epoch, answer = told
    return answer.broker_epoch, known_epoch, answer.last_epoch, answer.log_end


class ElectionCore:
    """Runs on every controller; acts on the one that holds office."""

    def __init__(self, timing: ElectionTiming | None = None) -> None:
        """Start out of office."""
        self._timing = timing or ElectionTiming()
        self._state = MetadataState()
        self._in_office = False
        self._tick_ms = 0
        self._sessions: dict[BrokerId, tuple[BrokerEpoch, int]] = {}
        self._reports: dict[tuple[PartitionId, LeaderEpoch], dict[BrokerId, int]] = {}
        # Partitions without a leader, longest first; those that nobody alive could lead apart.
        self._troubled: dict[PartitionId, None] = {}
        self._offline: dict[PartitionId, None] = {}
        self._races: dict[PartitionId, _Race] = {}
        self._fencing_ms: dict[BrokerId, int] = {}  # when (un)fencing was last proposed
        self._handing_ms: dict[BrokerId, int] = {}

    # ------------------------------------------------------------------ what is heard

    def took_office(self, now_ms: int) -> list[ElectionEffect]:
        """Begin to act, on a state that includes everything committed before (a barrier).

        All sessions start anew: this controller has heard nobody yet, which is not their fault.
        """
        self._in_office = True
        self._tick_ms = now_ms
        self._restart_sessions(now_ms)
        self._reports.clear()
        self._races.clear()
        return []

    def lost_office(self) -> None:
        """Stop acting."""
        self._in_office = False

    def state_changed(self, state: MetadataState, now_ms: int) -> list[ElectionEffect]:
        """Take a newer state in; what is in trouble is looked after at once."""
        for change in partition_changes(self._state, state):
            one = change.after
            partition_id = change.partition_id
            if one is None or one.status == "online":
                self._races.pop(partition_id, None)
            if one is None or one.status not in ("election", "candidate_found"):
                self._troubled.pop(partition_id, None)
            else:
                self._troubled.setdefault(partition_id)
            if one is not None and one.status == "offline":
                self._offline.setdefault(partition_id)
            else:
                self._offline.pop(partition_id, None)
        for broker, registered in state.brokers.items():
            session = self._sessions.get(broker)
            if session is None or session[0] < registered.epoch:
                self._sessions[broker] = (registered.epoch, now_ms)
        self._state = state
        return list(self._settle(now_ms)) if self._in_office else []

    def heartbeat(self, broker: BrokerId, broker_epoch: BrokerEpoch, now_ms: int) -> bool:
        """Note that a broker lives; False when its epoch was replaced and it gets no lease."""
        registered = self._state.brokers.get(broker)
        if not self._in_office or registered is None or registered.epoch != broker_epoch:
            return False
        self._sessions[broker] = (broker_epoch, now_ms)
        return not registered.fenced

    def reported(
        self,
        partition_id: PartitionId,
        *,
        reporter: BrokerId,
        broker_epoch: BrokerEpoch,
        leader_epoch: LeaderEpoch,
        now_ms: int,
    ) -> list[ElectionEffect]:
        """Take a replica's report that its leader does not answer."""
        one = self._state.partition(partition_id)
        registered = self._state.brokers.get(reporter)
        if not self._in_office or one is None or one.status != "online" or registered is None:
            return []
        if leader_epoch != one.leader_epoch or broker_epoch != registered.epoch:
            return []
        # The eligible count, too: a leader that hears nobody shrinks its ISR to itself, below the
        # minimum, before it is reported, and could otherwise stay for ever.
        members = {*one.isr, *one.eligible}
        if reporter not in members or reporter == one.leader or registered.fenced:
            return []
        if len(self._troubled) >= _RACES_MAX:
            return []  # others have no leader at all; it will be reported again
        reports = self._reports.setdefault((partition_id, leader_epoch), {})
        reports[reporter] = now_ms
        recent = [
            who
            for who, at_ms in reports.items()
            if at_ms > now_ms - self._timing.report_window_ms and who in members
        ]
        if len(recent) <= (len(members) - 1) // 2:
            return []
        del self._reports[partition_id, leader_epoch]
        return [
            ProposeCommand(
                StartElection(
                    stream_uuid=partition_id.stream_uuid,
                    partition=partition_id.number,
                    leader_epoch=one.leader_epoch,
                    partition_epoch=one.partition_epoch,
                    suspect=one.leader,
                )
            )
        ]

    def log_end_told(
        self,
        partition_id: PartitionId,
        answer: LogAnswer,
        *,
        leader_epoch: LeaderEpoch,
        now_ms: int,
    ) -> list[ElectionEffect]:
        """Take a replica's answer; ``leader_epoch`` is the newest that it has heard of."""
        race = self._races.get(partition_id)
        registered = self._state.brokers.get(answer.broker)
        if race is None or registered is None or registered.epoch != answer.broker_epoch:
            return []  # a former process may have told of records that its disk has lost
        race.take(leader_epoch, answer)
        return list(self._look_after(partition_id, now_ms))

    def tick(self, now_ms: int) -> list[ElectionEffect]:
        """Time has passed. After a stall of this process, nobody is blamed for the silence."""
        if now_ms - self._tick_ms > self._timing.stall_ms:
            self._restart_sessions(now_ms)
        self._tick_ms = now_ms
        return [*self._settle(now_ms), *self._try_offline(now_ms)] if self._in_office else []

    # ------------------------------------------------------------------ acting

    def _settle(self, now_ms: int) -> Iterator[ElectionEffect]:
        """Judge who lives, and go on with the elections that are due.

        So many at a time: a thousand at once would each take longer than their timers allow, and
        be begun again and again without an end.
        """
        yield from self._judge_sessions(now_ms)
        for partition_id in list(itertools.islice(self._troubled, _RACES_MAX)):
            yield from self._look_after(partition_id, now_ms)

    def _try_offline(self, now_ms: int) -> Iterator[ElectionEffect]:
        room = _RACES_MAX - len(self._troubled)
        for partition_id in list(self._offline):
            if room <= 0:
                return
            effects = list(self._look_after(partition_id, now_ms))
            if effects and partition_id in self._offline:
                del self._offline[partition_id]
                self._offline[partition_id] = None  # the others first, the next time
            room -= len(effects)
            yield from effects

    def _restart_sessions(self, now_ms: int) -> None:
        """Give everybody a whole session again; a fenced broker has to be heard first."""
        for broker, registered in self._state.brokers.items():
            heard_ms = now_ms - self._timing.session_ms if registered.fenced else now_ms
            self._sessions[broker] = (registered.epoch, heard_ms)

    def _judge_sessions(self, now_ms: int) -> Iterator[ElectionEffect]:
        for broker, registered in sorted(self._state.brokers.items()):
            epoch, heard_ms = self._sessions.get(broker, (registered.epoch, now_ms))
            silent = now_ms - heard_ms >= self._timing.session_ms
            if silent != registered.fenced and self._may_repeat(self._fencing_ms, broker, now_ms):
                if silent:
                    yield ProposeCommand(FenceBroker(broker=broker, broker_epoch=registered.epoch))
                elif epoch == registered.epoch:
                    yield ProposeCommand(
                        UnfenceBroker(broker=broker, broker_epoch=registered.epoch)
                    )
            if registered.stopping and self._may_repeat(self._handing_ms, broker, now_ms):
                yield from map(ProposeCommand, hand_overs(self._state, broker)[:_RACES_MAX])

    def _may_repeat(self, last: dict[BrokerId, int], broker: BrokerId, now_ms: int) -> bool:
        if now_ms - last.get(broker, -self._timing.retry_ms) < self._timing.retry_ms:
            return False
        last[broker] = now_ms
        return True

    def _look_after(self, partition_id: PartitionId, now_ms: int) -> Iterator[ElectionEffect]:
        """Take the next step for a partition without a leader."""
        one = self._state.partition(partition_id)
        if not self._in_office or one is None or one.status == "online":
            return
        race = self._races.get(partition_id)
        asks = race is not None and now_ms - race.asked_ms >= self._ask_again_ms(one)
        if race is None or race.partition_epoch != one.partition_epoch:
            race = self._begin(partition_id, one, race, now_ms)
            asks = True
        if asks:
            race.asked_ms = now_ms
            heard = {answer.broker for answer in race.settled()}
            for broker in members(one) or candidates(self._state, one):
                if self._state.is_alive(broker) and broker not in heard:
                    yield AskLogEnd(broker, partition_id, one.leader_epoch)
        command = self._next_command(partition_id, one, race, now_ms)
        retry_ms = self._timing.retry_ms
        if command is not None and (
            race.proposed_ms is None or now_ms - race.proposed_ms >= retry_ms
        ):
            race.proposed_ms = now_ms
            yield ProposeCommand(command)

    def _begin(
        self, partition_id: PartitionId, one: PartitionState, before: _Race | None, now_ms: int
    ) -> _Race:
        race = _Race(one.partition_epoch, one.leader_epoch, one.status, now_ms, now_ms)
        if before is not None:  # what was told a moment ago, without a leader, still holds
            race.first_epoch = before.first_epoch
            race.answers = {
                who: told
                for who, told in before.answers.items()
                if who in self._state.brokers
                and self._state.brokers[who].epoch == told[1].broker_epoch
            }
            if (before.status, one.status) == ("offline", "offline"):
                race.since_ms = before.since_ms
        self._races[partition_id] = race
        return race

    def _ask_again_ms(self, one: PartitionState) -> int:
        timing = self._timing
        return timing.offline_ms if one.status == "offline" else timing.ask_again_ms

    def _next_command(
        self, partition_id: PartitionId, one: PartitionState, race: _Race, now_ms: int
    ) -> Command | None:
        waited_ms = now_ms - race.since_ms
        timing = self._timing
        names = {
            "stream_uuid": partition_id.stream_uuid,
            "partition": partition_id.number,
            "leader_epoch": one.leader_epoch,
            "partition_epoch": one.partition_epoch,
        }
        living = candidates(self._state, one)
        answers = race.settled()
        if one.status == "offline":
            ready = any(is_compared(self._state, one, who, answers) for who in living)
            return StartElection(**names) if ready and waited_ms >= timing.offline_ms else None  # type: ignore[arg-type]
        if one.status == "candidate_found" and waited_ms < timing.confirm_ms:
            return None
        left = [broker for broker in living if broker not in (*one.tried, one.candidate)]
        if waited_ms < timing.ask_ms and not self._all_told(one, race, left):
            return None
        fit = [who for who in left if is_compared(self._state, one, who, answers)]
        if not fit:
            # Others may be on their way: after a power loss they come back one by one.
            waits = left and waited_ms < timing.confirm_ms
            return None if waits else TakeOffline(**names)  # type: ignore[arg-type]
        best = max(fit, key=lambda who: (*race.end_of(who), -fit.index(who)))
        if best not in race.answers and one.restarted and waited_ms < timing.confirm_ms:
            return None  # its process may be gone as well, and the next one not yet registered
        return NameCandidate(
            **names,  # type: ignore[arg-type]
            candidate=best,
            candidate_epoch=self._state.brokers[best].epoch,
            answers=answers if best in one.restarted else (),
        )

    def _all_told(self, one: PartitionState, race: _Race, left: list[BrokerId]) -> bool:
        """Tell whether waiting is of no use: everybody has told what it can."""
        settled = {answer.broker for answer in race.settled()}
        return all(who in (settled if who in one.restarted else race.answers) for who in left)
