"""What a driver of a Raft member needs of it, whichever implementation it is."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Protocol

from broker.core.raft.config import RaftConfig
from broker.core.raft.events import Effect, Event
from broker.core.raft.member import Role
from broker.model.raft import GroupSeen, NodeId, Standing, Stored


class Known(Protocol):
    """What is known of a member; for operators and checkpoints, never for decisions."""

    @property
    def leader(self) -> NodeId | None:
        """Who leads, as far as this member knows."""

    @property
    def applied(self) -> int:
        """Index of the newest entry that was handed over to be applied."""

    @property
    def role(self) -> Role:
        """What this member does in its term."""

    @property
    def term(self) -> int:
        """Its term."""

    @property
    def commit(self) -> int:
        """Index of the newest entry that it knows to be committed."""

    @property
    def voters(self) -> Mapping[NodeId, int]:
        """Who votes, as this member's log has it, and the numbers of their disks."""

    @property
    def is_voter(self) -> bool:
        """Tell whether this member votes, with the disk that it has."""

    @property
    def standing(self) -> Standing:
        """What it tells a member that starts with an empty disk."""


class Consensus(Protocol):
    """One member: an event in, effects out. What they promise stands in `events.py`."""

    @property
    def member(self) -> Known:
        """What is known; not to be changed."""

    @property
    def group(self) -> GroupSeen:
        """Who votes and who watches, as this member sees it; for operators."""

    def start(self, now_ms: int) -> list[Effect]:
        """Begin; the first call, once."""

    def step(self, now_ms: int, event: Event) -> list[Effect]:
        """Take one event; return what to do, in order. ``now_ms`` never goes back."""


class NewConsensus(Protocol):
    """Makes a member from what its disk holds; ``random(low, high)`` includes both ends."""

    def __call__(
        self, config: RaftConfig, me: NodeId, stored: Stored, *, random: Callable[[int, int], int]
    ) -> Consensus:
        """Make it; nothing happens before `Consensus.start`."""
