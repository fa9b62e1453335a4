"""The interface of the simulation to one member of a simulated Raft group."""

from __future__ import annotations

import random
from collections.abc import Mapping
from typing import TYPE_CHECKING, Any, Protocol

from broker.core.raft.applier import Outcome
from broker.core.raft.config import RaftConfig
from broker.core.raft.events import VotersChanged, VotersKept
from broker.model.raft import NodeId
from broker.model.raft_messages import Message
from simkit.raft.truth import Truth

if TYPE_CHECKING:
    from simkit.raft.node import SimNode


class World(Protocol):
    """The services of the simulation for a node."""

    rng: random.Random
    truth: Truth
    config: RaftConfig
    nodes: Mapping[NodeId, SimNode]
    wipes: bool  # disks may be wiped, so an empty one asks before it takes part
    compares: bool  # disks may be put back, so each one asks before it takes part
    changes: bool  # the voters may change, so each member asks for them
    grace: float  # for which a restarted member waits for silent ones
    snapshot_entries: int
    stop_chance: float
    hang_chance: float  # that a sync takes longer than an election
    now: float

    def send(self, sender: SimNode, target: NodeId, message: Message) -> None:
        """Put a message on the network."""

    def tell(self, sender: SimNode, target: NodeId, what: str, argument: Any) -> None:
        """Put a control message on the network: ``happen(what, argument)`` at the target."""

    def later(self, node: SimNode, delay: float, what: str, argument: Any) -> None:
        """Call ``node.happen(what, argument)`` after a while, if it still lives then."""

    def answered(self, node: SimNode, outcome: Outcome) -> None:
        """A proposal that was made through this node is applied here."""

    def read(self, node: SimNode, number: int, index: int | None) -> None:
        """A barrier has passed, or failed."""

    def changed(self, node: SimNode, answer: VotersChanged | VotersKept) -> None:
        """Note the result of a change of the voters."""

    def died(self, node: SimNode) -> None:
        """The node stopped by itself."""
