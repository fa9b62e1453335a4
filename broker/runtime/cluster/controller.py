"""The controller's shell: every controller runs one, and only the Raft leader's shell acts.

``ControllerPump`` carries out what an ``ElectionCore`` decides; ``Controller`` has it driven.

The leader becomes the active controller (it *takes office*) and grants leases only after a barrier:
a round trip to a majority that begins after the heartbeat came and ends in the same term. The
barrier proves that no other controller was active when the heartbeat was sent, so no other
controller's session clock was running against the sender.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable
from dataclasses import dataclass
from typing import Final

import structlog

from broker.core.election import ElectionCore, ElectionTiming
from broker.core.election_events import (
    AskLogEnd,
    ElectionEffect,
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
from broker.core.metadata.commands import Command, LogAnswer
from broker.core.metadata.state import MetadataState
from broker.errors import HeadwaterError
from broker.model.control_messages import (
    ControlMessage,
    Heartbeat,
    HeartbeatAnswer,
    LeaderReport,
    LogEndAsked,
    LogEndTold,
)
from broker.model.ids import BrokerId
from broker.ports.cluster import ControlTransport
from broker.ports.pumps import Drive
from broker.ports.system import Clock
from broker.runtime.inbox import Inbox
from broker.runtime.metadata.metadata_log import ControllerMetadata
from broker.runtime.pumps import on_threads

_log = structlog.get_logger(__name__)

_TICK_MS: Final = 50
_BARRIER_MS: Final = 1_000
_PROPOSE_MS: Final = 2_000
_WAITING_MAX: Final = 10_000  # one of each kind for a partition or a broker
_TURN_MAX: Final = 256  # messages and results that one turn takes


@dataclass(frozen=True, slots=True)
class _State:
    state: MetadataState
    index: int


@dataclass(frozen=True, slots=True)
class _Passed:
    """The result of a barrier that began in the term ``office``."""

    office: int
    error: HeadwaterError | None
    heartbeats: tuple[tuple[BrokerId, Heartbeat], ...]  # received before the barrier began


class ControllerPump:
    """The pump of a controller. Any thread delivers; one thread at a time takes turns."""

    def __init__(
        self,
        *,
        metadata: ControllerMetadata,
        control: ControlTransport,
        timing: ElectionTiming,
        wake: Callable[[], None],
    ) -> None:
        """Prepare; ``wake`` is called when a message or a result has come."""
        self._metadata = metadata
        self._control = control
        self._core = ElectionCore(timing)
        self._inbox = Inbox(waiting_max=_WAITING_MAX, wake=wake)
        self._office: int | None = None  # the term in which it is active
        self._taking: int | None = None  # the term whose barrier is under way
        self._waiting: dict[BrokerId, Heartbeat] = {}  # the newest of each broker
        self._barrier_under_way = False
        self._next_tick_ms: int | None = None
        # Proposals that are not answered yet. Repeats of them would only queue behind them.
        self._under_way: set[Command] = set()

    def changed(self, index: int, state: MetadataState) -> None:
        """Take a newer state of the metadata. Any thread."""
        self._inbox.put(_State, _State(state, index))

    def deliver(self, sender: BrokerId, message: ControlMessage) -> None:
        """Take a broker's message. Any thread.

        The newest message of each kind counts. Brokers repeat all of them, so messages are dropped
        when too many wait.
        """
        about = getattr(message, "partition_id", None)
        self._inbox.offer((sender, type(message), about), (sender, message))

    @property
    def dropped_messages(self) -> int:
        """How many messages were dropped because too many waited."""
        return self._inbox.dropped

    @property
    def in_office(self) -> bool:
        """Whether this is the active controller. For operators."""
        return self._office is not None

    def turn(self, now_ms: int) -> int:
        """Tick if due, take what has come; return when the next turn is due."""
        self._look_at_office()
        if self._next_tick_ms is None or now_ms >= self._next_tick_ms:
            # First: after a stall of this process no broker may be fenced for its silence.
            self._next_tick_ms = now_ms + _TICK_MS
            self._do(self._core.step(TickElapsed(now_ms)))
        for _ in range(_TURN_MAX):
            found = self._inbox.take()
            if found is None:
                break
            self._take(found[1], now_ms)
        self._begin_barrier()
        return now_ms if len(self._inbox) else self._next_tick_ms

    def _look_at_office(self) -> None:
        term = self._metadata.office
        if self._office is not None and term != self._office:
            _log.info("office_lost", term=self._office)
            self._office = None
            self._core.step(OfficeLost())
        self._taking = term if term != self._office else None

    def _take(self, item: _State | _Passed | tuple[BrokerId, ControlMessage], now_ms: int) -> None:
        match item:
            case _State(state, index):
                self._do(self._core.step(MetadataChanged(state, index, now_ms)))
            case _Passed():
                self._barrier_under_way = False
                if item.error is None and item.office == self._metadata.office:
                    self._passed(item, now_ms)
            case (sender, Heartbeat() as heartbeat):
                self._waiting[sender] = heartbeat
            case (sender, LeaderReport() as report):
                reported = LeaderReported(
                    partition_id=report.partition_id,
                    reporter=sender,
                    broker_epoch=report.broker_epoch,
                    leader_epoch=report.leader_epoch,
                    now_ms=now_ms,
                )
                effects = self._core.step(reported)
                self._do(effects if self._office is not None else [])
            case (sender, LogEndTold() as told):
                answer = LogAnswer(
                    broker=sender,
                    broker_epoch=told.broker_epoch,
                    last_epoch=told.last_epoch,
                    log_end=told.log_end,
                )
                answered = LogEndAnswered(
                    partition_id=told.partition_id,
                    answer=answer,
                    leader_epoch=told.leader_epoch,
                    now_ms=now_ms,
                )
                self._do(self._core.step(answered))

    def _begin_barrier(self) -> None:
        """Begin a barrier, to become active or to answer the waiting heartbeats."""
        office = self._metadata.office
        if office is None:
            self._waiting.clear()
            return
        if self._barrier_under_way or not (self._waiting or self._taking is not None):
            return
        heartbeats, self._waiting = tuple(self._waiting.items()), {}
        self._barrier_under_way = True
        self._metadata.barrier_soon(
            lambda error: self._inbox.put(_Passed, _Passed(office, error, heartbeats)),
            timeout_ms=_BARRIER_MS,
        )

    def _passed(self, passed: _Passed, now_ms: int) -> None:
        if self._office is None:
            self._office = passed.office
            self._taking = None
            _log.info("office_taken", term=passed.office)
            self._do(self._core.step(OfficeTaken(now_ms)))
        for broker, heartbeat in passed.heartbeats:
            came = HeartbeatCame(broker, heartbeat.broker_epoch, heartbeat.applied_index, now_ms)
            effects = self._core.step(came)
            answer = HeartbeatAnswer(
                broker_epoch=heartbeat.broker_epoch,
                sent_ms=heartbeat.sent_ms,
                granted=GrantLease(broker) in effects,
            )
            self._control.send(broker, answer)

    def _do(self, effects: list[ElectionEffect]) -> None:
        proposed: Counter[str] = Counter()
        for effect in effects:
            match effect:
                case ProposeCommand(command) if command not in self._under_way:
                    proposed[type(command).__name__] += 1
                    self._propose(command)
                case AskLogEnd(to, partition_id, leader_epoch):
                    asked = LogEndAsked(partition_id=partition_id, leader_epoch=leader_epoch)
                    self._control.send(to, asked)
        if proposed:
            _log.info("controller_proposes", commands=dict(proposed))

    def _propose(self, command: Command) -> None:
        def answered(error: HeadwaterError | None) -> None:
            self._under_way.discard(command)
            if error is not None:  # usually another change came first; the core sees it
                name = type(command).__name__
                _log.debug("controller_refused", command=name, reason=error.message)

        self._under_way.add(command)  # first: the answer may come at once
        self._metadata.propose_soon(command, answered, timeout_ms=_PROPOSE_MS, office=self._office)


class Controller:
    """A controller pump with its driver, by default a thread of its own."""

    def __init__(
        self,
        *,
        metadata: ControllerMetadata,
        control: ControlTransport,
        clock: Clock,
        timing: ElectionTiming,
        on_crash: Callable[[BaseException], None],
        drive: Drive | None = None,
    ) -> None:
        """Prepare; :meth:`start` begins."""
        self._metadata = metadata
        self._pump = ControllerPump(
            metadata=metadata, control=control, timing=timing, wake=self._wake
        )
        self._driven = (drive or on_threads(clock, on_crash))("controller", self._pump.turn)

    def start(self) -> None:
        """Begin to follow the metadata and, while active, to act."""
        self._driven.start()
        self._metadata.subscribe(self._pump.changed)

    def stop(self) -> None:
        """Stop. Blocks; returns at once if it was never started."""
        self._driven.stop()

    def deliver(self, sender: BrokerId, message: ControlMessage) -> None:
        """See ``ControllerPump.deliver``."""
        self._pump.deliver(sender, message)

    def _wake(self) -> None:
        self._driven.wake()

    @property
    def dropped_messages(self) -> int:
        """How many messages were dropped because too many waited."""
        return self._pump.dropped_messages

    @property
    def in_office(self) -> bool:
        """Whether this is the active controller. For operators."""
        return self._pump.in_office
