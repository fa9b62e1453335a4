"""The brokers of a simulated group: the product's ``Groups`` and ``Members`` over an ideal log.

The log of the metadata is one list of states. A broker has applied it up to some index; cut off
from the controllers it learns nothing and can propose nothing. A proposal may be applied and its
answer lost.
"""

from __future__ import annotations

import random
from collections.abc import Callable
from dataclasses import replace

from broker.core.metadata import apply as applying
from broker.core.metadata.commands import Command, JoinMember, LeaveMember
from broker.core.metadata.outcome import CommandReply, Rejected
from broker.core.metadata.size import weigh
from broker.core.metadata.state import (
    FEATURE_LEVEL_STREAMS,
    BrokerState,
    MetadataState,
    PartitionState,
)
from broker.errors import CommitTimeoutError, HeadwaterError, UnavailableError
from broker.model.epochs import BrokerEpoch, LeaderEpoch
from broker.model.ids import BrokerId, StreamUuid
from broker.model.offsets import Offset
from broker.model.stream import Stream, StreamConfig
from broker.runtime.api.groups import Groups
from broker.runtime.api.members import Members
from broker.runtime.metadata.metadata_log import Answered

UUID = StreamUuid("00000000-0000-0000-0000-000000000001")
_PROPOSAL_MS = (5, 5, 20, 20, 100, 400, 1_500)  # a new leader of the controllers takes a second
Soon = Callable[[int, Callable[[], None]], None]  # does something after so many milliseconds
FENCED_MS = 3_000  # a broker that is away for so long is fenced


class SimClock:
    """The time of a simulation."""

    def __init__(self) -> None:
        self.ms = 0

    def now_us(self) -> int:
        """Return microseconds."""
        return self.ms * 1000

    def monotonic_ms(self) -> int:
        """Return milliseconds."""
        return self.ms


class MetadataHistory:
    """Every state of the metadata, in order, and what is checked of each step."""

    def __init__(self, brokers: list[BrokerId], partitions: int) -> None:
        told = {
            one: BrokerState(epoch=BrokerEpoch(1), addresses={"flight": one}) for one in brokers
        }
        bare = MetadataState(brokers=told, feature_level=FEATURE_LEVEL_STREAMS)
        self.states = [bare]
        self.expelled: list[tuple[str, int]] = []  # process, session
        self.wrong: list[str] = []
        self._replaced: set[str] = set()  # processes
        self.grow(partitions)

    @property
    def state(self) -> MetadataState:
        """The newest state."""
        return self.states[-1]

    def apply(self, command: Command) -> CommandReply:
        """Apply a command; raise its refusal."""
        before = self.state
        after, reply = applying.apply(before, command)
        if isinstance(reply, Rejected):
            raise reply.error
        if after is not before:
            self.states.append(after)
        if isinstance(command, LeaveMember) and command.expelled_by is not None:
            session = before.groups[command.group].sessions[command.member]
            self.expelled.append((session.instance, session.session_ms))
        self._check(before, after, command)
        return reply

    def _check(self, before: MetadataState, after: MetadataState, command: Command) -> None:
        if isinstance(command, LeaveMember):
            session = before.groups[command.group].sessions[command.member]
            if command.membership < session.membership:
                self.wrong.append(f"a late leave has ended membership {session.membership}")
        if after.weight != weigh(after):
            self.wrong.append("the weight of the metadata is wrong")
        if isinstance(command, JoinMember) and command.static:
            was, now = before.groups.get("g"), after.groups.get("g")
            held = {} if was is None else was.claims
            kept = {} if now is None else now.claims
            mine = [key for key, one in held.items() if one.member == command.member]
            if any(kept[key].member != command.member for key in mine):
                self.wrong.append(f"{command.member} came back and lost its partitions")
        if isinstance(command, JoinMember):
            group = before.groups.get(command.group)
            known = None if group is None else group.sessions.get(command.member)
            if known is not None and known.instance != command.instance:
                if command.instance in self._replaced:
                    self.wrong.append(f"{command.instance} came back after it was replaced")
                self._replaced.add(known.instance)

    def grow(self, partitions: int) -> None:
        """Give the stream more partitions."""
        row = PartitionState(
            leader=BrokerId("a"),
            leader_epoch=LeaderEpoch(1),
            cold_end=Offset(0),
            isr=(BrokerId("a"),),
        )
        stream = Stream(
            name="s",
            uuid=UUID,
            config=StreamConfig(subject="s", partitions=partitions),
            created_us=1,
            table_name="s",
        )
        state = replace(self.state, streams={"s": stream}, partitions={UUID: (row,) * partitions})
        self.states.append(replace(state, weight=weigh(state)))

    def fence(self, broker: BrokerId, *, fenced: bool) -> None:
        """Let the controllers miss a broker, or see it again."""
        present = self.state.brokers[broker]
        if present.fenced != fenced:
            brokers = {**self.state.brokers, broker: replace(present, fenced=fenced)}
            self.states.append(replace(self.state, brokers=brokers))


class SimMetadata:
    """Implements ``SharedMetadata`` for one broker."""

    def __init__(self, history: MetadataHistory, chance: random.Random, soon: Soon) -> None:
        self._history = history
        self._chance = chance
        self._soon = soon
        self._index = len(history.states) - 1
        self.is_cut = False

    @property
    def state(self) -> MetadataState:
        """What this broker has applied."""
        return self._history.states[self._index]

    def learn(self, *, all_of_it: bool = False) -> None:
        """Apply some more of the log."""
        newest = len(self._history.states) - 1
        if not self.is_cut:
            self._index = newest if all_of_it else self._chance.randint(self._index, newest)

    def propose(self, command: Command, *, timeout_ms: int = 0) -> CommandReply:
        """See ``WaitingMetadata.propose``."""
        if self.is_cut:
            raise UnavailableError("cut off from the controllers")
        reply = self._history.apply(command)
        if self._chance.random() < 0.05:
            raise CommitTimeoutError("the answer was lost")
        self.learn(all_of_it=True)
        return reply

    def barrier(self, *, timeout_ms: int = 0) -> int:
        """See ``WaitingMetadata.barrier``."""
        if self.is_cut:
            raise UnavailableError("cut off from the controllers")
        self.learn(all_of_it=True)
        return self._index

    def propose_soon(self, command: Command, answered: Answered, *, timeout_ms: int) -> None:
        """See ``ProposingMetadata.propose_soon``: a while passes until it is applied."""

        def propose() -> None:
            try:
                self.propose(command)
            except HeadwaterError as error:
                answered(error)
            else:
                answered(None)

        self._soon(self._chance.choice(_PROPOSAL_MS), propose)


class SimBroker:
    """One broker: up or down, in touch or cut off, running or paused."""

    def __init__(
        self,
        name: BrokerId,
        history: MetadataHistory,
        clock: SimClock,
        chance: random.Random,
        soon: Soon,
    ) -> None:
        self.name = name
        self._soon = soon
        self.is_up = True
        self.paused_until_ms = 0
        self.away_since_ms: int | None = None
        self._history, self._clock, self._chance = history, clock, chance
        self.start()

    def start(self) -> None:
        """Begin a process: what members it has heard is not known any more."""
        self.is_up = True
        self.metadata = SimMetadata(self._history, self._chance, self._soon)
        self.groups = Groups(self.name, self.metadata, self._clock)
        self.members = Members(self.name, self.metadata, self._clock, self.groups)

    @property
    def is_away(self) -> bool:
        """Whether the controllers hear nothing of it."""
        return not self.is_up or self.metadata.is_cut or self._clock.ms < self.paused_until_ms

    def turn(self) -> None:
        """Let its pumps run, and its controllers look at it."""
        now_ms = self._clock.ms
        if self.is_away:
            self.away_since_ms = now_ms if self.away_since_ms is None else self.away_since_ms
            if now_ms - self.away_since_ms > FENCED_MS:
                self._history.fence(self.name, fenced=True)
        else:
            self.away_since_ms = None
            self._history.fence(self.name, fenced=False)
        if self.is_up and now_ms >= self.paused_until_ms:
            self.metadata.learn()
            self.groups.turn(now_ms)
