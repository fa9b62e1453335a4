"""Raft beneath a house: each broker's process has the product's member of the group.

``TakingPart``, ``RaftMetadataLog`` with its pump, ``RaftCore``, ``RaftJournal`` and the codec are
the product's; the journal is on the machine's disk, the messages on the network. ``RaftWatch`` says
what has to hold.

A call that waits for the metadata blocks the rest of its process, too, for a few hundred
milliseconds at most; Raft and the rest of the world go on. See ``Machine.wait``.
"""

from __future__ import annotations

import random
from collections.abc import Callable, Mapping
from concurrent.futures import Future
from dataclasses import replace
from typing import Any, Final, Protocol, TypeVar

from broker.codec.peer import raft_messages
from broker.core.metadata.commands import Command
from broker.core.metadata.outcome import CommandReply
from broker.core.metadata.state import MetadataState
from broker.core.raft.applier import Outcome
from broker.core.raft.config import RaftConfig
from broker.core.raft.core import RaftCore
from broker.errors import HeadwaterError, UnavailableError
from broker.model.raft import Entry, Floor, NodeId
from broker.model.raft_messages import Message
from broker.ports.cluster import ControlTransport
from broker.ports.pumps import Driven, PumpTurn
from broker.ports.system import Files
from broker.runtime.metadata.controllers_note import note_controllers, noted_controllers
from broker.runtime.metadata.raft.rejoin import ControlDesk, TakingPart
from broker.runtime.metadata.raft.waiting import Reader, Waiter
from broker.runtime.metadata.raft_metadata_log import RaftMetadataLog
from broker.storage.promises.promises import PROMISES_NAME, Promises
from broker.storage.raft.journal import RaftJournal
from simkit.house.beneath.watch import RaftWatch
from simkit.house.process import Machine, crashed, drive_of
from simkit.network.world import World

CLUSTER: Final = "house"
_FOLDER: Final = "raft"
_OPERATOR_MS: Final = 3_000
_T = TypeVar("_T")


class Sender(Protocol):
    """Sends the messages of a broker."""

    def send(self, to: str, message: tuple[str, Any]) -> None:
        """Send to another broker."""


class RaftLane:
    """Implements ``RaftTransport``."""

    def __init__(self, node: Sender, name: str, watch: RaftWatch) -> None:
        self._node = node
        self._name = name
        self._watch = watch
        self._deliver: Callable[[NodeId, Message], None] | None = None

    def start(self, deliver: Callable[[NodeId, Message], None]) -> None:
        """See ``RaftTransport``."""
        self._deliver = deliver

    def send(self, target: NodeId, message: Message) -> None:
        """See ``RaftTransport``."""
        self._watch.sent(self._name, message)
        self._node.send(target, ("raft", raft_messages.encode(message)))

    def arrived(self, sender: str, data: bytes) -> None:
        """Decode and hand over."""
        if self._deliver is not None:
            self._deliver(NodeId(sender), raft_messages.decode(data))

    def close(self) -> None:
        """See ``RaftTransport``."""
        self._deliver = None


class HouseLog(RaftMetadataLog):
    """The product's log, for a thread that lets the world go on while it waits."""

    def __init__(
        self,
        files: Files,
        config: RaftConfig,
        *,
        machine: Machine,
        watch: RaftWatch,
        patience_ms: int,
        journal: RaftJournal,
        journal_bytes_max: int,
        transport: RaftLane,
    ) -> None:
        self._machine = machine
        self._watch = watch
        self._patience_ms = patience_ms
        super().__init__(
            files,
            config,
            cluster=CLUSTER,
            me=NodeId(machine.name),
            clock=machine,
            on_crash=crashed,
            transport=transport,
            journal=journal,
            journal_bytes_max=journal_bytes_max,
            drive=self._drive,
            random=machine.world.rng.randint,
        )
        self._apply: Any = self._applying.apply
        self._applying.apply = self._watched  # type: ignore[method-assign]  # and looked at

    def _drive(self, name: str, turn: PumpTurn) -> Driven:
        """Drive the pump, and check after each turn that every subscriber got the applied state."""

        def looked_at(now_ms: int) -> int:
            next_ms = turn(now_ms)
            self._watch.turn_ended(self._machine.process, self.applied_index)
            return next_ms

        return drive_of(self._machine, beneath=True)(name, looked_at)

    def _watched(self, entries: tuple[Entry, ...]) -> list[Outcome]:
        outcomes: list[Outcome] = self._apply(entries)
        self._watch.applied(self._machine.name, entries, outcomes)
        return outcomes

    def propose(self, command: Command, *, timeout_ms: int = 10_000) -> CommandReply:
        """See ``RaftMetadataLog.propose``, with less patience."""
        return super().propose(command, timeout_ms=min(timeout_ms, self._patience_ms))

    def barrier(self, *, timeout_ms: int = 10_000) -> int:
        """See ``RaftMetadataLog.barrier``, with less patience."""
        return super().barrier(timeout_ms=min(timeout_ms, self._patience_ms))

    def _ask(self, item: Any, future: Future[_T], timeout_ms: int) -> _T:
        self._put(item)
        self._machine.wait(future.done)
        return future.result(0)

    def _put(self, item: Any) -> None:
        if isinstance(item, Waiter):
            self._watch.proposed(item.payload, item.office)
        if isinstance(item, Reader):
            item.answered = self._looked_at(self._watch.index, item.answered)
        super()._put(item)

    def _looked_at(
        self, index: int, answered: Callable[[int | HeadwaterError], None]
    ) -> Callable[[int | HeadwaterError], None]:
        def found(result: int | HeadwaterError) -> None:
            if not isinstance(result, HeadwaterError):
                self._watch.passed(self._machine.name, index, self.applied_index)
            answered(result)

        return found


class RaftHouse:
    """The checks' view of the metadata, as of ``MetadataHouse``: newest state and leader."""

    def __init__(self, world: World, machines: Mapping[str, Machine], seed: int) -> None:
        self._world = world
        self.draws_older = random.Random(f"older {seed}").random() < 0.4
        self._machines = machines
        rng = world.rng
        names = sorted(NodeId(one) for one in machines)
        count = 5 if len(names) >= 5 else 3
        heartbeat_ms = rng.choice((20, 40))
        election_ms = heartbeat_ms * rng.choice((5, 8))
        self._config = RaftConfig(
            members=tuple(names[:count]),
            observers=tuple(names[count:]),
            heartbeat_ms=heartbeat_ms,
            election_ms_min=election_ms,
            election_ms_max=2 * election_ms,
            keep_entries=rng.choice((0, 5, 1000)),
            restart_grace_ms=rng.choice((100, 400)),
        )
        self._journal_bytes_max = rng.choice((3_000, 20_000, 1 << 22))
        self._patience_ms = rng.choice((100, 300))
        self._watch = RaftWatch()
        self.leader: str = names[0]
        self._term = 0
        self._logs: dict[str, tuple[str, HouseLog]] = {}  # of which process
        self._wiped: set[str] = set()  # have not started since
        # Members with a lost or an older disk, and the index from which on each is whole again.
        self._lost: dict[str, int] = {}
        self._older: set[str] = set()  # have not started since
        self._copies: dict[str, dict[str, bytes]] = {}

    @property
    def state(self) -> MetadataState:
        """The newest state that any member has applied."""
        return self._watch.state

    @property
    def index(self) -> int:
        """The index of that state."""
        return self._watch.index

    # ------------------------------------------------------------------ one process

    def begin(
        self,
        machine: Machine,
        node: Sender,
        files: Files,
        promises: Promises,
        control: ControlTransport,
        ready: Callable[[HouseLog, ControlTransport, RaftLane], None],
    ) -> Callable[[int], int]:
        """Return the turn of the pump that lets a new process into the group; then it is ready.

        See ``broker/process/node.py``.
        """
        me = NodeId(machine.name)
        desk = ControlDesk(control, random=self._world.rng.randint)
        noted = noted_controllers(files)

        def may_start(journal: RaftJournal) -> None:
            if journal.stored.floor > Floor():
                self._world.note("controller rejoined below its floor", machine.name)
            self._watch.starts(
                me, journal.stored, was_wiped=me in self._wiped, is_older=me in self._older
            )
            self._wiped.discard(me)
            self._older.discard(me)
            note_controllers(files, self._config.members)
            lane = RaftLane(node, me, self._watch)
            log = HouseLog(
                files,
                self._config,
                machine=machine,
                watch=self._watch,
                patience_ms=self._patience_ms,
                journal=journal,
                journal_bytes_max=self._journal_bytes_max,
                transport=lane,
            )
            self._logs[machine.name] = (machine.process, log)
            desk.answer_with(log.tell_standing)
            log.subscribe(lambda index, state: self._learn(machine.name, index, state))
            ready(log, desk, lane)

        return TakingPart(
            files,
            self._config,
            desk,
            cluster=CLUSTER,
            me=me,
            stop_asked=lambda: False,
            wake=lambda: None,  # it asks again soon
            answered=may_start,
            has_taken_part=bool(noted),
            promises=promises,
            random=self._world.rng.randint,
        ).turn

    def _log(self, name: str) -> HouseLog | None:
        """Return the log of a member that runs."""
        machine = self._machines[name]
        process, log = self._logs.get(name, ("", None))
        return log if machine.alive and not machine.paused and process == machine.process else None

    def _learn(self, name: str, index: int, state: MetadataState) -> None:
        self._watch.learned(name, index, state)
        self._watch.heard(self._machines[name].process, index)
        log = self._log(name)
        office = None if log is None else log.office
        if office is not None and office > self._term:
            self._term, self.leader = office, name
            self._world.note("metadata leader elected", name)
        needed = self._lost.get(name)
        if needed is None or log is None or index < needed or self._is_below_floor(log):
            return
        del self._lost[name]
        self._world.note("controller has everything again", name)

    def _is_below_floor(self, log: HouseLog) -> bool:
        core = log._core  # no other code needs its floor
        assert isinstance(core, RaftCore), "the product's own"
        return core.member.floor > Floor()

    # ------------------------------------------------------------------ checks and faults

    def may_lose_disk(self, name: str) -> bool:
        """Tell whether the group survives this: a minority without its disks, in all."""
        return NodeId(name) not in self._config.members or not self._lost.keys() - {name}

    def wait_for_all(self) -> None:
        """Make restarting members wait for all others, because one folder may be older."""
        self._config = replace(self._config, restart_grace_ms=1 << 40)

    def lost_disk(self, name: str) -> None:
        """Note a member that is to rejoin with an empty disk; an observer begins anew."""
        if NodeId(name) in self._config.members:
            self._world.note("disk of a controller wiped", name)
            self._lost[name] = self.index
            self._wiped.add(name)
            self._copies.pop(name, None)
        else:
            self._watch.begins_anew(name)

    def copy_folder(self, machine: Machine) -> None:
        """Make a copy of a controller's folder, as a backup does."""
        copy = machine.disk.copy_of(_FOLDER)
        if f"{_FOLDER}/member" in copy and NodeId(machine.name) in self._config.members:
            self._copies[machine.name] = copy

    def put_back(self, machine: Machine) -> None:
        """Put the copy in the place of the folder of a controller that is down."""
        name = machine.name
        copy = self._copies.pop(name, None)
        if copy and self.may_lose_disk(name) and machine.disk.has_file(PROMISES_NAME):
            self._world.note("folder of a controller put back", name)
            machine.disk.exchange(_FOLDER, copy)
            self._lost[name] = self.index
            self._older.add(name)

    def propose(self, command: Command) -> HeadwaterError | None:
        """Let an operator propose at a member; the outcome is seen in the state, or not."""
        for name in (self.leader, *sorted(self._machines)):
            log = self._log(name)
            if log is not None:
                log.propose_soon(command, self._heard, timeout_ms=_OPERATOR_MS)
                return None
        return UnavailableError("no member runs")

    def _heard(self, error: HeadwaterError | None) -> None:
        if error is not None:
            self._world.note("operator's command refused or lost", error.message)

    def ask_newest(self) -> None:
        """Ask a member for the committed index; ``RaftWatch`` checks the answer."""
        log = self._log(self._world.rng.choice(sorted(self._machines)))
        if log is not None:
            log.barrier_soon(lambda _error: None, timeout_ms=self._patience_ms)

    def change_leader(self) -> None:
        """Ask the leader to hand over to another member."""
        log = self._log(self.leader)
        if log is not None:
            target = self._world.rng.choice(self._config.members)
            self._world.note("metadata leader asked to hand over", target)
            log.transfer_leadership(target)
