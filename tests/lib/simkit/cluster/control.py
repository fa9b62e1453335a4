"""The metadata side of a simulated cluster: a linearizable log and the controllers on it.

The log is ideal (that is Raft's promise, tested elsewhere): a proposal is applied once, in one
order, or never, and its answer may be lost on the way. What is not ideal is everything around it:
controllers come and go, two may believe that they hold office, and brokers hear of changes late.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from broker.core.election import (
    AskLogEnd,
    ElectionCore,
    ElectionEffect,
    ElectionTiming,
    ProposeCommand,
)
from broker.core.metadata.apply import Rejected, apply
from broker.core.metadata.commands import (
    ChangeIsr,
    Command,
    LogAnswer,
    NameCandidate,
    RegisterBroker,
    decode,
    encode,
)
from broker.core.metadata.state import MetadataState
from broker.errors import HeadwaterError
from broker.model.epochs import BrokerEpoch, LeaderEpoch
from broker.model.ids import BrokerId, PartitionId
from simkit.cluster import sightings
from simkit.network.world import Network, World

CONTROL = "control"


@dataclass(frozen=True, slots=True)
class Heartbeat:
    """A broker lives. ``sent_ms`` is on its own clock and comes back with the lease."""

    broker: BrokerId
    broker_epoch: BrokerEpoch
    sent_ms: int
    index: int  # of the newest state that it has


@dataclass(frozen=True, slots=True)
class HeartbeatAnswer:
    """``granted`` extends the lease that began at ``sent_ms``."""

    broker_epoch: BrokerEpoch
    sent_ms: int
    granted: bool


@dataclass(frozen=True, slots=True)
class StatePush:
    """The state as of an index; brokers may see only some of them."""

    index: int
    state: MetadataState


@dataclass(frozen=True, slots=True)
class Proposal:
    """A command on its way to the log."""

    number: int
    session: str  # of the process that waits for the answer
    command: bytes


@dataclass(frozen=True, slots=True)
class ProposalAnswer:
    """What became of a proposal."""

    number: int
    session: str
    reply: Mapping[str, Any] | None
    error: HeadwaterError | None


@dataclass(frozen=True, slots=True)
class LeaderReport:
    """A follower does not hear its leader."""

    partition_id: PartitionId
    reporter: BrokerId
    broker_epoch: BrokerEpoch
    leader_epoch: LeaderEpoch


@dataclass(frozen=True, slots=True)
class LogEndAsked:
    """How far does your log reach?"""

    partition_id: PartitionId
    leader_epoch: LeaderEpoch


@dataclass(frozen=True, slots=True)
class LogEndTold:
    """So far, as of the newest epoch that the replica has heard of."""

    partition_id: PartitionId
    answer: LogAnswer
    leader_epoch: LeaderEpoch


class Control:
    """The log, its state, and two controllers of which usually one holds office."""

    def __init__(self, world: World, network: Network, timing: ElectionTiming) -> None:
        self._world = world
        self._network = network
        self._timing = timing
        self.state = MetadataState()
        self.index = 0
        self.log: list[bytes] = []
        self.brokers: list[str] = []
        self.paused = False
        self._paused_ms = 0
        self._missed: list[tuple[str, Any]] = []
        self._cores = [ElectionCore(timing), ElectionCore(timing)]
        self._indexes = [0, 0]
        self._officers = [0]  # the last one really holds office; others have yet to notice
        network.join(CONTROL, self.receive)
        self._cores[0].took_office(0)
        self._world.at(20, self._tick)

    # ------------------------------------------------------------------ messages

    def receive(self, sender: str, message: Any) -> None:
        """Take a broker's message; a controller that is stopped reads it later."""
        if self.paused:
            self._missed.append((sender, message))
            return
        now_ms = self._world.now_ms
        core = self._cores[self._officers[-1]]
        match message:
            case Heartbeat():
                granted = core.heartbeat(message.broker, message.broker_epoch, now_ms)
                if not granted:
                    self._world.note("heartbeat without a lease")
                answer = HeartbeatAnswer(message.broker_epoch, message.sent_ms, granted)
                self._network.send(CONTROL, sender, answer)
                if message.index < self.index:
                    self._network.send(CONTROL, sender, StatePush(self.index, self.state))
            case Proposal():
                reply, error = self._apply(message.command)
                answered = ProposalAnswer(message.number, message.session, reply, error)
                self._network.send(CONTROL, sender, answered)
            case LeaderReport():
                if len(self._officers) > 1:
                    self._world.note("A15 two controllers propose")
                self._world.note("leader reported", message.reporter)
                for officer in self._officers:
                    self._do(
                        self._cores[officer].reported(
                            message.partition_id,
                            reporter=message.reporter,
                            broker_epoch=message.broker_epoch,
                            leader_epoch=message.leader_epoch,
                            now_ms=now_ms,
                        )
                    )
            case LogEndTold():
                for officer in self._officers:
                    self._do(
                        self._cores[officer].log_end_told(
                            message.partition_id,
                            message.answer,
                            leader_epoch=message.leader_epoch,
                            now_ms=now_ms,
                        )
                    )

    def propose(self, command: Command) -> HeadwaterError | None:
        """Apply a command at once, as an operator next to the controller would."""
        return self._apply(encode(command))[1]

    def _apply(self, data: bytes) -> tuple[Mapping[str, Any] | None, HeadwaterError | None]:
        command = decode(data)
        before = self.state
        rows = next(iter(before.partitions.values()), None)
        if rows is not None:
            sightings.before_command(rows[0], command, self._world.note)
        self.state, reply = apply(before, command)
        self.index += 1
        self.log.append(data)
        kind = type(command).__name__
        if isinstance(reply, Rejected):
            assert self.state is before, "a refused command changed something"
            error = type(reply.error).__name__
            self._world.note(f"refused {kind} {error}", reply.error)
            if isinstance(command, ChangeIsr) and rows is not None:
                sightings.refused_isr(rows[0], command, error, self._world.note)
            return None, reply.error
        self._world.note(f"applied {kind}", command)
        self._note_applied(before, command)
        if self.state is not before:
            for broker in self.brokers:
                self._network.send(CONTROL, broker, StatePush(self.index, self.state))
            self._world.at(0, self._inform, self._officers[-1], self.index)
            for late in self._officers[:-1]:
                self._world.at(self._world.rng.randrange(400), self._inform, late, self.index)
        return reply, None

    def _note_applied(self, before: MetadataState, command: Command) -> None:
        rows, now = (next(iter(one.partitions.values()), None) for one in (before, self.state))
        if rows is None or now is None:
            return
        if isinstance(command, RegisterBroker) and command.broker in {*rows[0].isr} - {*now[0].isr}:
            self._world.note("A8 wiped replica registered while in the ISR")
        if isinstance(command, RegisterBroker) and command.broker in sightings.places(rows[0]):
            kept = command.broker in sightings.places(now[0])
            if command.clean and kept:
                self._world.note("I clean stop believed, a place is kept")
            elif not kept:
                self._world.note("I place given up by a new process")
        if isinstance(command, RegisterBroker) and rows[0].leader == command.broker:
            self._world.note("A25 leader restarted, and an election was opened")
        if isinstance(command, NameCandidate) and now[0].candidate in rows[0].restarted:
            self._world.note("D14 elected after a comparison")
        if set(rows[0].restarted) - {*now[0].restarted} and now[0].leader == rows[0].leader:
            self._world.note("D14 restarted follower proved by its leader")
        if isinstance(command, ChangeIsr) and command.forgotten:
            self._world.note("D14 follower that has forgotten leaves")
        if rows[0].target and not now[0].target:
            self._world.note("A23 reassignment finished")

    def _inform(self, officer: int, index: int) -> None:
        """Let a controller apply up to an index; a controller never goes back."""
        if not self.paused and index > self._indexes[officer]:
            self._indexes[officer] = self.index
            self._do(self._cores[officer].state_changed(self.state, self._world.now_ms))

    def _do(self, effects: list[ElectionEffect]) -> None:
        for effect in effects:
            match effect:
                case ProposeCommand(command):
                    self._world.at(1, self._apply_later, encode(command))
                case AskLogEnd(to, partition_id, leader_epoch):
                    self._network.send(CONTROL, to, LogEndAsked(partition_id, leader_epoch))

    def _apply_later(self, data: bytes) -> None:
        self._apply(data)

    # ------------------------------------------------------------------ office

    def _tick(self) -> None:
        if not self.paused:
            for officer in list(self._officers):
                self._do(self._cores[officer].tick(self._world.now_ms))
        self._world.at(50, self._tick)

    def change_office(self, overlap_ms: int) -> None:
        """Give office to the other controller; the old one notices after a while."""
        new = 1 - self._officers[-1]
        core = ElectionCore(self._timing)
        self._cores[new], self._indexes[new] = core, self.index
        core.state_changed(self.state, self._world.now_ms)  # the barrier
        core.took_office(self._world.now_ms)
        self._officers = [1 - new, new]
        self._world.note("office changed")
        self._world.at(overlap_ms, self._leave_office, 1 - new, core)

    def _leave_office(self, old: int, successor: ElectionCore) -> None:
        if successor in self._cores and self._officers[-1] != old:
            self._officers = [self._officers[-1]]
            self._cores[old].lost_office()

    def pause(self) -> None:
        """Stop the controllers' process: their clock goes on, they hear nothing."""
        self.paused = True
        self._paused_ms = self._world.now_ms
        self._world.note("controller paused")

    def resume(self) -> None:
        """Let it go on; what was sent meanwhile is read only after the first tick."""
        self.paused = False
        if self._world.now_ms - self._paused_ms > self._timing.session_ms:
            self._world.note("A17 controller resumed after a session's length")
        for officer in self._officers:
            self._do(self._cores[officer].tick(self._world.now_ms))
            self._inform(officer, self.index)
        missed, self._missed = self._missed, []
        for sender, message in missed:
            self.receive(sender, message)
