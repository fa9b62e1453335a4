"""The interface of a Raft member for its driver, whichever implementation of Raft it is."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Protocol

from broker.core.raft.config import RaftConfig
from broker.core.raft.events import Effect, Event
from broker.core.raft.member import Role
from broker.model.raft import GroupSeen, NodeId, Standing, Stored


class Known(Protocol):
    """The state of a member; for operators and checkpoints, never for decisions."""

    @property
    def leader(self) -> NodeId | None:
        """The leader, as far as this member knows."""

    @property
    def applied(self) -> int:
        """Index of the newest entry that was handed over to be applied."""

    @property
    def role(self) -> Role:
        """This member's role in its term."""

    @property
    def term(self) -> int:
        """Its term."""

    @property
    def commit(self) -> int:
        """Index of the newest entry that it knows to be committed."""

    @property
    def voters(self) -> Mapping[NodeId, int]:
        """The voters according to this member's log, and the numbers of their disks."""

    @property
    def is_voter(self) -> bool:
        """Tell whether this member votes, with the disk that it has."""

    @property
    def standing(self) -> Standing:
        """Its answer to a member that starts with an empty disk."""


class Consensus(Protocol):
    """One member: it takes an event and returns effects. `events.py` says what they promise."""

    @property
    def member(self) -> Known:
        """The member's state; callers must not change it."""

    @property
    def group(self) -> GroupSeen:
        """Voters and observers, as this member knows them; for operators."""

    def start(self, now_ms: int) -> list[Effect]:
        """Start; call it once, before every other method."""

    def step(self, now_ms: int, event: Event) -> list[Effect]:
        """Take one event; return the effects in order. ``now_ms`` never decreases."""


class NewConsensus(Protocol):
    """Makes a member from the content of its disk; ``random(low, high)`` includes both bounds."""

    def __call__(
        self, config: RaftConfig, me: NodeId, stored: Stored, *, random: Callable[[int, int], int]
    ) -> Consensus:
        """Make the member; it does nothing before `Consensus.start`."""
