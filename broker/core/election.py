"""Elections: which brokers are alive, which partitions need a leader, which replica should lead.

The state of this core is volatile and may be wrong. The core only proposes commands; `apply`
decides. So a second controller, or a controller with an old state, does no harm.

A leader is lost when its session expires, when its process is replaced by another, or when a
majority of its possible successors report it within a window. Then all living members of ISR and
eligible are asked for their log ends. The member with the smallest lag is named candidate. If it
does not confirm before a timer ends, the next member is named. A member that has restarted is named
only if enough answers show that it has every committed record (`is_compared`). Without a candidate
the partition goes offline, until a candidate is back or enough members are there to compare.
Sources: Fluvio's replica election, Liftbridge's reports.
"""

from __future__ import annotations

import itertools
from collections.abc import Iterator
from dataclasses import dataclass, field
from typing import Final

from broker.core.election_events import (
    AskLogEnd,
    ElectionEffect,
    ElectionEvent,
    GrantLease,
    HeartbeatCame,
    LeaderReported,
    LogEndAnswered,
    MetadataChanged,
    OfficeLost,
    OfficeTaken,
    ProposeCommand,
)
from broker.core.events import TickElapsed
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
from broker.core.replacements import Replacements, replaced_leaders
from broker.model.epochs import BrokerEpoch, LeaderEpoch
from broker.model.ids import BrokerId, PartitionId
from broker.model.offsets import Offset


@dataclass(frozen=True, slots=True, kw_only=True)
class ElectionTiming:
    """The timers of elections. A broker's lease must end before its session does."""

    session_ms: int = 1_500  # a broker without a heartbeat for this long is fenced
    report_window_ms: int = 3_000  # only reports within this window count together
    ask_ms: int = 100  # a replica that does not tell its log end in this time is named last
    ask_again_ms: int = 250  # a needed replica that has not answered is asked again after this
    confirm_ms: int = 500  # a candidate must confirm within this time
    retry_ms: int = 250  # a proposal without effect is made again after this
    offline_ms: int = 1_000  # an offline partition is tried again after this
    stall_ms: int = 500  # a longer gap between ticks means that this controller was suspended

    def lease_ms(self) -> int:
        """How long a broker may act as leader after it *sent* a heartbeat that was answered.

        Two thirds of the session. So even if the clocks' rates differ by a quarter, the lease ends
        before another broker becomes leader.
        """
        return self.session_ms * 2 // 3

    def beat_ms(self) -> int:
        """How long a broker waits between two heartbeats: a sixth of the session."""
        return self.session_ms // 6

    def hear_ms(self) -> int:
        """How long a broker may take to apply that a leader of its own was replaced.

        The time between two heartbeats. So a replaced leader acts for as long as its lease and this
        time at most, which together are shorter than a session.
        """
        return self.beat_ms()


@dataclass(slots=True)
class _OpenElection:
    """The election of one partition, in one partition epoch: times and answers so far."""

    partition_epoch: int
    first_epoch: (
        LeaderEpoch  # the first leader epoch without a leader; whoever knows it follows none
    )
    status: str
    since_ms: int
    asked_ms: int
    answers: dict[BrokerId, tuple[LeaderEpoch, LogAnswer]] = field(default_factory=dict)
    proposed_ms: int | None = None

    def take(self, known_epoch: LeaderEpoch, answer: LogAnswer) -> None:
        """Keep the newest answer of a replica: its log does not shrink while there is no leader."""
        before = self.answers.get(answer.broker)
        if before is None or _order(before) < _order((known_epoch, answer)):
            self.answers[answer.broker] = (known_epoch, answer)

    def end_of(self, broker: BrokerId) -> tuple[LeaderEpoch, Offset]:
        """Return the last epoch and the end of a replica's log, or _NEVER if not known."""
        found = self.answers.get(broker)
        return _NEVER if found is None else (found[1].last_epoch, found[1].log_end)

    def settled(self) -> tuple[LogAnswer, ...]:
        """Return the answers of replicas that had stopped to follow the former leader.

        Another replica may still fetch from that leader, and the leader may then commit records
        which that replica did not have when it answered.
        """
        return tuple(
            answer
            for _, (known_epoch, answer) in sorted(self.answers.items())
            if known_epoch >= self.first_epoch
        )


_ELECTIONS_MAX: Final = 64  # elections that run at the same time
_PATIENCE: Final = 10  # times `confirm_ms`, for a candidate whose broker confirms others meanwhile
_NEVER: Final = (LeaderEpoch(-1), Offset(0))


def _order(told: tuple[LeaderEpoch, LogAnswer]) -> tuple[int, ...]:
    known_epoch, answer = told
    return answer.broker_epoch, known_epoch, answer.last_epoch, answer.log_end


class ElectionCore:
    """Runs on every controller, but proposes only on the active controller."""

    def __init__(self, timing: ElectionTiming | None = None) -> None:
        """Start as a controller that is not active."""
        self._timing = timing or ElectionTiming()
        self._state = MetadataState()
        self._in_office = False
        self._tick_ms = 0
        self._sessions: dict[BrokerId, tuple[BrokerEpoch, int]] = {}
        self._reports: dict[tuple[PartitionId, LeaderEpoch], dict[BrokerId, int]] = {}
        # Partitions without a leader, the longest leaderless first. Offline ones are kept apart.
        self._leaderless: dict[PartitionId, None] = {}
        self._offline: dict[PartitionId, None] = {}
        self._elections: dict[PartitionId, _OpenElection] = {}
        self._fencing_ms: dict[BrokerId, int] = {}  # time of the last proposal to fence or unfence
        self._fences: set[BrokerId] = set()  # proposed in this office, and not seen applied yet
        self._handed_ms: dict[BrokerId, int] = {}
        self._replacements = Replacements(self._timing.hear_ms())
        self._confirmed_ms: dict[BrokerId, int] = {}  # when a candidate there last became leader

    def step(self, event: ElectionEvent) -> list[ElectionEffect]:
        """Take one event; return the effects, in the order in which they are performed."""
        match event:
            case TickElapsed(now_ms):
                return list(self._tick(now_ms))
            case OfficeTaken(now_ms):
                self._take_office(now_ms)
            case OfficeLost():
                self._in_office = False
            case MetadataChanged():
                return list(self._take_state(event))
            case HeartbeatCame():
                return list(self._hear(event))
            case LeaderReported():
                return list(self._weigh_report(event))
            case LogEndAnswered():
                return list(self._take_log_end(event))
        return []

    # ------------------------------------------------------------------ events

    def _take_office(self, now_ms: int) -> None:
        """Restart all sessions, because this controller has received no heartbeats so far."""
        self._in_office = True
        self._tick_ms = now_ms
        self._restart_sessions(now_ms)
        self._reports.clear()
        self._elections.clear()
        self._fences.clear()  # a fence of an earlier office was applied before, or never is

    def _take_state(self, event: MetadataChanged) -> Iterator[ElectionEffect]:
        """Take a newer state, and take the next step for each partition without a leader."""
        state, now_ms = event.state, event.now_ms
        replaced: set[BrokerId] = set()
        for change in partition_changes(self._state, state):
            before, one = change.before, change.after
            partition_id = change.partition_id
            replaced.update(replaced_leaders(before, one, state.brokers))
            if before is not None and (one is None or one.leader_epoch != before.leader_epoch):
                self._reports.pop((partition_id, before.leader_epoch), None)
            if one is None or one.status == "online":
                self._elections.pop(partition_id, None)
                if before is not None and before.candidate is not None:
                    self._confirmed_ms[before.candidate] = now_ms
            if one is None or one.status not in ("election", "candidate_found"):
                self._leaderless.pop(partition_id, None)
            else:
                self._leaderless.setdefault(partition_id)
            if one is not None and one.status == "offline":
                self._offline.setdefault(partition_id)
            else:
                self._offline.pop(partition_id, None)
        for broker, registered in state.brokers.items():
            session = self._sessions.get(broker)
            is_new = session is None or session[0] < registered.epoch
            if is_new:
                self._sessions[broker] = (registered.epoch, now_ms)
            if is_new or registered.fenced:
                self._fences.discard(broker)
        self._replacements.add(replaced, event.index, now_ms)
        self._state = state
        if self._in_office:
            yield from self._act(now_ms)

    def _hear(self, event: HeartbeatCame) -> Iterator[ElectionEffect]:
        """Note a heartbeat. A former process of a broker, or a fenced broker, gets no lease.

        A broker that does not know that it was replaced somewhere is as good as silent: with a new
        lease it would go on as the leader. Its session ends too, because without a lease it serves
        none of its partitions. Nor is a broker heard while its fence is under way: the fence would
        cut the new lease short, and other brokers lead while it lasts.
        """
        broker, now_ms = event.broker, event.now_ms
        registered = self._state.brokers.get(broker)
        if not self._in_office or registered is None or registered.epoch != event.broker_epoch:
            return
        if broker in self._fences:
            return
        if event.applied_index < self._replacements.index_due(broker, now_ms):
            return
        self._sessions[broker] = (event.broker_epoch, now_ms)
        if not registered.fenced:
            yield GrantLease(broker)

    def _weigh_report(self, report: LeaderReported) -> Iterator[ElectionEffect]:
        """Begin an election if enough replicas say that their leader does not answer."""
        partition_id, reporter, now_ms = report.partition_id, report.reporter, report.now_ms
        one = self._state.partition(partition_id)
        registered = self._state.brokers.get(reporter)
        if not self._in_office or one is None or one.status != "online" or registered is None:
            return
        if report.leader_epoch != one.leader_epoch or report.broker_epoch != registered.epoch:
            return
        # Eligible replicas count too. A leader that is cut off from its followers shrinks its ISR
        # to itself before it is reported. Otherwise it could lead for ever, below the minimum ISR.
        members = {*one.isr, *one.eligible}
        if reporter not in members or reporter == one.leader or registered.fenced:
            return
        if len(self._leaderless) >= _ELECTIONS_MAX:
            return  # partitions without any leader come first; the replica will report again
        reports = self._reports.setdefault((partition_id, report.leader_epoch), {})
        reports[reporter] = now_ms
        recent = [
            who
            for who, at_ms in reports.items()
            if at_ms > now_ms - self._timing.report_window_ms and who in members
        ]
        if len(recent) <= (len(members) - 1) // 2:
            return
        del self._reports[partition_id, report.leader_epoch]
        yield ProposeCommand(
            StartElection(
                stream_uuid=partition_id.stream_uuid,
                partition=partition_id.number,
                leader_epoch=one.leader_epoch,
                partition_epoch=one.partition_epoch,
                suspect=one.leader,
            )
        )

    def _take_log_end(self, told: LogEndAnswered) -> Iterator[ElectionEffect]:
        election = self._elections.get(told.partition_id)
        answer = told.answer
        registered = self._state.brokers.get(answer.broker)
        if election is None or registered is None or registered.epoch != answer.broker_epoch:
            return  # of a former process: its disk may have lost records since
        election.take(told.leader_epoch, answer)
        yield from self._take_step(told.partition_id, told.now_ms)

    def _tick(self, now_ms: int) -> Iterator[ElectionEffect]:
        """Handle the passing of time. After a stall of this process all sessions are restarted."""
        if now_ms - self._tick_ms > self._timing.stall_ms:
            self._restart_sessions(now_ms)
        self._tick_ms = now_ms
        if self._in_office:
            yield from self._act(now_ms)
            yield from self._try_offline(now_ms)

    # ------------------------------------------------------------------ acting

    def _act(self, now_ms: int) -> Iterator[ElectionEffect]:
        """Fence silent brokers, and take the next step of at most ``_ELECTIONS_MAX`` elections.

        If all elections ran at once, each of a thousand would take longer than its timers allow,
        and would begin again without an end.
        """
        yield from self._judge_sessions(now_ms)
        for partition_id in list(itertools.islice(self._leaderless, _ELECTIONS_MAX)):
            yield from self._take_step(partition_id, now_ms)

    def _try_offline(self, now_ms: int) -> Iterator[ElectionEffect]:
        room = _ELECTIONS_MAX - len(self._leaderless)
        for partition_id in list(self._offline):
            if room <= 0:
                return
            effects = list(self._take_step(partition_id, now_ms))
            if effects and partition_id in self._offline:
                del self._offline[partition_id]
                self._offline[partition_id] = None  # move it to the end: others are tried next
            room -= len(effects)
            yield from effects

    def _restart_sessions(self, now_ms: int) -> None:
        """Give each broker a whole new session; a fenced broker must send a heartbeat first."""
        for broker, registered in self._state.brokers.items():
            heard_ms = now_ms - self._timing.session_ms if registered.fenced else now_ms
            self._sessions[broker] = (registered.epoch, heard_ms)

    def _judge_sessions(self, now_ms: int) -> Iterator[ElectionEffect]:
        for broker, registered in sorted(self._state.brokers.items()):
            epoch, heard_ms = self._sessions.get(broker, (registered.epoch, now_ms))
            silent = now_ms - heard_ms >= self._timing.session_ms
            if silent != registered.fenced and self._may_repeat(self._fencing_ms, broker, now_ms):
                if silent:
                    self._fences.add(broker)
                    yield ProposeCommand(FenceBroker(broker=broker, broker_epoch=registered.epoch))
                elif epoch == registered.epoch:
                    yield ProposeCommand(
                        UnfenceBroker(broker=broker, broker_epoch=registered.epoch)
                    )
            if registered.stopping and self._may_repeat(self._handed_ms, broker, now_ms):
                yield from map(ProposeCommand, hand_overs(self._state, broker)[:_ELECTIONS_MAX])

    def _may_repeat(self, last: dict[BrokerId, int], broker: BrokerId, now_ms: int) -> bool:
        if now_ms - last.get(broker, -self._timing.retry_ms) < self._timing.retry_ms:
            return False
        last[broker] = now_ms
        return True

    def _take_step(self, partition_id: PartitionId, now_ms: int) -> Iterator[ElectionEffect]:
        """Take the next step for a partition without a leader."""
        one = self._state.partition(partition_id)
        if not self._in_office or one is None or one.status == "online":
            return
        election = self._elections.get(partition_id)
        asks = election is not None and now_ms - election.asked_ms >= self._ask_again_ms(one)
        if election is None or election.partition_epoch != one.partition_epoch:
            election = self._begin(partition_id, one, election, now_ms)
            asks = True
        if asks:
            election.asked_ms = now_ms
            heard = {answer.broker for answer in election.settled()}
            for broker in members(one) or candidates(self._state, one):
                if self._state.is_alive(broker) and broker not in heard:
                    yield AskLogEnd(broker, partition_id, one.leader_epoch)
        command = self._next_command(partition_id, one, election, now_ms)
        retry_ms = self._timing.retry_ms
        if command is not None and (
            election.proposed_ms is None or now_ms - election.proposed_ms >= retry_ms
        ):
            election.proposed_ms = now_ms
            yield ProposeCommand(command)

    def _begin(
        self,
        partition_id: PartitionId,
        one: PartitionState,
        before: _OpenElection | None,
        now_ms: int,
    ) -> _OpenElection:
        election = _OpenElection(one.partition_epoch, one.leader_epoch, one.status, now_ms, now_ms)
        if before is not None:  # answers since the leader was lost are still valid
            election.first_epoch = before.first_epoch
            election.answers = {
                who: told
                for who, told in before.answers.items()
                if who in self._state.brokers
                and self._state.brokers[who].epoch == told[1].broker_epoch
            }
            if (before.status, one.status) == ("offline", "offline"):
                election.since_ms = before.since_ms
        self._elections[partition_id] = election
        return election

    def _ask_again_ms(self, one: PartitionState) -> int:
        timing = self._timing
        return timing.offline_ms if one.status == "offline" else timing.ask_again_ms

    def _next_command(
        self, partition_id: PartitionId, one: PartitionState, election: _OpenElection, now_ms: int
    ) -> Command | None:
        waited_ms = now_ms - election.since_ms
        timing = self._timing
        names = {
            "stream_uuid": partition_id.stream_uuid,
            "partition": partition_id.number,
            "leader_epoch": one.leader_epoch,
            "partition_epoch": one.partition_epoch,
        }
        living = candidates(self._state, one)
        answers = election.settled()
        if one.status == "offline":
            ready = any(is_compared(self._state, one, who, answers) for who in living)
            return StartElection(**names) if ready and waited_ms >= timing.offline_ms else None  # type: ignore[arg-type]
        if one.status == "candidate_found" and self._may_confirm(one, election, now_ms):
            return None
        left = [broker for broker in living if broker not in (*one.tried, one.candidate)]
        if waited_ms < timing.ask_ms and not self._all_told(one, election, left):
            return None
        fit = [who for who in left if is_compared(self._state, one, who, answers)]
        if not fit:
            # More brokers may come back soon: after a power loss they start one by one.
            waits = left and waited_ms < timing.confirm_ms
            return None if waits else TakeOffline(**names)  # type: ignore[arg-type]
        best = max(fit, key=lambda who: (*election.end_of(who), -fit.index(who)))
        if best not in election.answers and one.restarted and waited_ms < timing.confirm_ms:
            return None  # its process may have ended, and the next one not be registered yet
        return NameCandidate(
            **names,  # type: ignore[arg-type]
            candidate=best,
            candidate_epoch=self._state.brokers[best].epoch,
            answers=answers if best in one.restarted else (),
        )

    def _may_confirm(self, one: PartitionState, election: _OpenElection, now_ms: int) -> bool:
        """Tell whether the candidate still has time to confirm.

        A broker that has just confirmed another leadership works on, and this one may be next. If
        it was given up in the middle of a thousand, each of them would be elected many times.
        """
        waited_ms, confirm_ms = now_ms - election.since_ms, self._timing.confirm_ms
        candidate = one.candidate
        works = candidate is not None and (
            now_ms - self._confirmed_ms.get(candidate, -confirm_ms) < confirm_ms
        )
        return waited_ms < confirm_ms * (_PATIENCE if works else 1)

    def _all_told(self, one: PartitionState, election: _OpenElection, left: list[BrokerId]) -> bool:
        """Tell whether every possible candidate has answered, so that waiting is of no use."""
        settled = {answer.broker for answer in election.settled()}
        return all(who in (settled if who in one.restarted else election.answers) for who in left)
