"""An ideal metadata log, and what each broker has of it.

A proposal is applied once, in one order, or never; that is Raft's promise, tested elsewhere. What
is not ideal is everything around it: proposals and answers are lost and late, changes are heard of
late, or as a snapshot, and a member may believe that it leads when another does.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, Final

from broker.core.metadata.apply import Rejected, apply
from broker.core.metadata.commands import Command, decode, encode_new
from broker.core.metadata.outcome import CommandReply
from broker.core.metadata.snapshot import decode_snapshot, encode_snapshot
from broker.core.metadata.state import MetadataState
from broker.errors import CommitTimeoutError, HeadwaterError, UnavailableError
from broker.runtime.metadata.metadata_log import Answered, Subscriber
from simkit.house.process import Machine
from simkit.network.world import Network, World

META: Final = "metadata"
_AGAIN_MS: Final = 100
_PUSH_MS: Final = 80
_ELECT_MS: Final = 300


class MetadataHouse:
    """The log, its newest state, and its leader."""

    def __init__(self, world: World, network: Network, machines: Mapping[str, Machine]) -> None:
        self._world = world
        self._network = network
        self._machines = machines
        self.state = MetadataState()
        self.index = 0
        self.log: list[bytes] = []
        self.term, self.leader = 1, min(machines)
        self._leader_seen_ms = 0
        self._replies: dict[tuple[str, int], HeadwaterError | None] = {}  # by process and number
        network.join(META, self.receive)
        world.at(_PUSH_MS, self._push_all)

    def receive(self, sender: str, message: Any) -> None:
        """Take a request of a member."""
        kind, process, number, command, office = message
        if sender == self.leader:
            self._leader_seen_ms = self._world.now_ms
        error: HeadwaterError | None
        if kind == "hello":
            return
        if kind == "barrier":
            led = office is None or (sender, office) == (self.leader, self.term)
            error = None if led else UnavailableError("another member leads")
        elif office is not None and (sender, office) != (self.leader, self.term):
            self._world.note("proposal of an office that is over")
            error = UnavailableError("this broker is no longer the active controller")
        elif (process, number) in self._replies:
            self._world.note("proposal answered again")
            error = self._replies[process, number]
        else:
            error = self._replies[process, number] = self.apply(command)[1]
        self._send(sender, ("answer", process, number, error))

    def may_lose_disk(self, _: str) -> bool:
        """Tell whether a broker may lose its disk: the log is elsewhere."""
        return True

    def lost_disk(self, _: str) -> None:
        """Hear that a broker has lost its disk."""

    def propose(self, command: Command) -> HeadwaterError | None:
        """Apply a command at once, as an operator next to the controllers would."""
        return self.apply(encode_new(command))[1]

    def apply(self, data: bytes) -> tuple[CommandReply, HeadwaterError | None]:
        """Apply a command; return its reply, or its refusal."""
        command = decode(data)
        before = self.state
        self.state, reply = apply(before, command)
        self.index += 1
        self.log.append(data)
        name = type(command).__name__
        if isinstance(reply, Rejected):
            self._world.note(f"refused {name}", reply.error.message)
            return {}, reply.error
        self._world.note(f"applied {name}", command)
        if self.state is not before:
            for member in sorted(self._machines):
                self._send(member, ("state",))
        return reply, None

    def reaches(self, member: str) -> bool:
        """Tell whether a member and the majority hear each other."""
        cut = self._network.links()
        return (member, META) not in cut and (META, member) not in cut

    def change_leader(self) -> None:
        """Let another member that can lead."""
        able = [
            name
            for name, machine in sorted(self._machines.items())
            if machine.alive and not machine.paused and self.reaches(name) and name != self.leader
        ]
        if able:
            self.leader, self.term = self._world.rng.choice(able), self.term + 1
            self._leader_seen_ms = self._world.now_ms
            self._world.note("metadata leader changed", self.leader)

    def _send(self, member: str, message: tuple[Any, ...]) -> None:
        known = (self.index, self.state, self.leader, self.term)
        self._network.send(META, member, ("meta", message, known))

    def _push_all(self) -> None:
        for member in sorted(self._machines):
            self._send(member, ("state",))
        if self._world.now_ms - self._leader_seen_ms > _ELECT_MS:
            self.change_leader()
        self._world.at(_PUSH_MS, self._push_all)


class MetadataView:
    """The log as one process knows it. Implements ``MetadataLog``."""

    def __init__(self, machine: Machine, house: MetadataHouse, network: Network) -> None:
        self._machine = machine
        self._world = machine.world
        self._house = house
        self._network = network
        self._process = machine.process
        self.state = MetadataState()
        self.applied_index = 0
        self.leader: str | None = None
        self._term = 0
        self._numbers = 0
        self._under_way: dict[int, Answered] = {}
        self._subscribers: list[Subscriber] = []
        machine.later(_AGAIN_MS, self._say_hello)

    # ------------------------------------------------------------------ what members ask

    @property
    def office(self) -> int | None:
        """See ``ControllerMetadata.office``: as far as this member has heard."""
        return self._term if self.leader == self._machine.name else None

    def subscribe(self, subscriber: Subscriber) -> None:
        """See ``RaftMetadataLog.subscribe``."""
        self._subscribers.append(subscriber)
        subscriber(self.applied_index, self.state)

    def propose_soon(
        self,
        command: Command,
        answered: Answered,
        *,
        timeout_ms: int = 10_000,
        office: int | None = None,
    ) -> None:
        """See ``RaftMetadataLog.propose_soon``."""
        self._ask(("propose", encode_new(command), office), answered, timeout_ms)

    def barrier_soon(self, passed: Answered, *, timeout_ms: int = 1_000) -> None:
        """See ``RaftMetadataLog.barrier_soon``."""
        self._ask(("barrier", b"", self.office), passed, timeout_ms)

    def propose(self, command: Command, *, timeout_ms: int = 10_000) -> CommandReply:
        """See ``MetadataLog.propose``, but nothing here waits.

        Applied at once, or with an outcome that its caller is not told: as after a timeout.
        """
        if self._house.reaches(self._machine.name) and self._world.chance(0.8):
            reply, error = self._house.apply(encode_new(command))
            self._learn(self._house.index, self._house.state)
            if error is not None:
                raise error
            return reply
        self._world.note("blocking proposal with an unknown outcome")
        self.propose_soon(command, lambda _: None, timeout_ms=timeout_ms)
        raise CommitTimeoutError("simulated: the answer did not come in time")

    def barrier(self, *, timeout_ms: int = 3_000) -> int:
        """See ``MetadataLog.barrier``, but nothing here waits."""
        if not self._house.reaches(self._machine.name):
            raise UnavailableError(f"simulated: nobody waits {timeout_ms} ms here")
        self._learn(self._house.index, self._house.state)
        return self.applied_index

    # ------------------------------------------------------------------ messages

    def take(self, message: tuple[Any, ...], known: tuple[int, MetadataState, str, int]) -> None:
        """Hear the log, and perhaps an answer; what is older than what is known here is not news.

        Changes come before answers: a caller with an answer finds its change in ``state``.
        """
        index, state, leader, term = known
        if term >= self._term:
            self.leader, self._term = leader, term
        self._learn(index, state)
        if message[0] == "answer" and message[1] == self._process:
            answered = self._under_way.pop(message[2], None)
            if answered is not None:
                answered(message[3])

    def _learn(self, index: int, state: MetadataState) -> None:
        if index <= self.applied_index:
            return
        if state is not self.state and self._world.chance(0.05):
            state, _ = decode_snapshot(encode_snapshot(state, index))
            self._world.note("metadata learned by a snapshot")
        self.applied_index, self.state = index, state
        for subscriber in self._subscribers:
            subscriber(index, state)

    def _ask(
        self, question: tuple[str, bytes, int | None], answered: Answered, timeout_ms: int
    ) -> None:
        self._numbers += 1
        self._under_way[self._numbers] = answered
        deadline_ms = self._world.now_ms + timeout_ms
        self._send(self._numbers, question, deadline_ms)

    def _send(self, number: int, question: tuple[str, bytes, int | None], end_ms: int) -> None:
        if number not in self._under_way:
            return
        if self._world.now_ms >= end_ms:
            self._world.note("proposal ran out of time")
            self._under_way.pop(number)(CommitTimeoutError("simulated: no answer"))
            return
        kind, command, office = question
        message = (kind, self._process, number, command, office)
        self._network.send(self._machine.name, META, message)
        self._machine.later(_AGAIN_MS, self._send, number, question, end_ms)

    def _say_hello(self) -> None:
        """Show the other members that this one lives, as Raft's own messages do."""
        self._network.send(self._machine.name, META, ("hello", "", 0, b"", None))
        self._machine.later(_AGAIN_MS, self._say_hello)
