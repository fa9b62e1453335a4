"""What a member's replicas propose: a candidate repeats itself, its broker does not."""

from __future__ import annotations

from uuid import UUID

from broker.core.metadata.commands import Command, ConfirmLeader
from broker.core.metadata.state import MetadataState
from broker.errors import OverloadedError
from broker.model.epochs import LeaderEpoch
from broker.model.ids import BrokerId, PartitionId, PartitionNumber, StreamUuid
from broker.model.offsets import Offset
from broker.runtime.cluster.proposals import MemberProposals
from broker.runtime.metadata.metadata_log import Answered

P, Q = (PartitionId(StreamUuid(str(UUID(int=1))), PartitionNumber(one)) for one in (0, 1))


class _Metadata:
    """Keeps the proposals; a test answers them."""

    state = MetadataState()

    def __init__(self) -> None:
        self.proposed: list[tuple[Command, Answered]] = []

    def propose_soon(self, command: Command, answered: Answered, *, timeout_ms: int) -> None:
        """Keep it."""
        assert timeout_ms > 0
        self.proposed.append((command, answered))


def test_a_confirmation_is_proposed_once_until_it_is_answered() -> None:
    """A candidate repeats it every 300 ms: in a mass of elections that would make each one late."""
    metadata = _Metadata()
    proposals = MemberProposals(BrokerId("b"), metadata)
    for _ in range(3):
        for partition_id in (P, Q):
            proposals.leader(partition_id, LeaderEpoch(4), Offset(7), LeaderEpoch(3))
    proposals.leader(P, LeaderEpoch(5), Offset(7), LeaderEpoch(3))
    confirmed = [
        (one.partition, one.leader_epoch)
        for one, _ in metadata.proposed
        if isinstance(one, ConfirmLeader)
    ]
    assert confirmed == [(0, 4), (1, 4), (0, 5)]
    metadata.proposed[0][1](OverloadedError("too many wait"))
    proposals.leader(P, LeaderEpoch(4), Offset(7), LeaderEpoch(3))
    assert len(metadata.proposed) == 4
