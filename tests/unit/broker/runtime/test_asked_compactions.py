"""An operator's request to compact logs reaches the replicas of the broker that is asked."""

from __future__ import annotations

from typing import Any

import pytest

from broker.core.key_compaction import PassReport
from broker.core.metadata.apply import Rejected, apply
from broker.core.metadata.commands import Command, CreateStream, RegisterBroker
from broker.core.metadata.state import FEATURE_LEVEL_MAX, MetadataState
from broker.errors import (
    DiskFullError,
    HeadwaterError,
    InvalidRequestError,
    UnknownPartitionError,
    UnknownStreamError,
)
from broker.model.cluster_status import ReplicaCompaction
from broker.model.ids import BrokerId, PartitionId, PartitionNumber, StreamUuid
from broker.model.offsets import Offset
from broker.model.replica_state import PassState
from broker.model.stream import Stream, StreamConfig
from broker.runtime.operations import ClusterOperations
from simkit.brokers.memory_broker import FakeClock

UUID = StreamUuid("00000000-0000-0000-0000-000000000001")
OTHER = StreamUuid("00000000-0000-0000-0000-000000000002")
A, B = BrokerId("a"), BrokerId("b")


class Replica:
    """A replica that has been compacted as soon as it is asked."""

    def __init__(self) -> None:
        self.tickets: list[str] = []
        self.compaction = self

    def ask(self, ticket: str) -> PassReport:
        """Note the request."""
        self.tickets.append(ticket)
        return PassReport(state=PassState.COMPACTED, end=Offset(5), removed_count=2)


class House:
    """A broker with replicas, and the metadata; two streams, of which the first compacts."""

    def __init__(self) -> None:
        self.state = MetadataState()
        self.open: dict[PartitionId, Any] = {}
        self.refusals: dict[PartitionId, HeadwaterError] = {}
        self.replicas = self.cold = self
        for broker in (A, B):
            self._do(RegisterBroker(broker=broker, session=broker, features_max=FEATURE_LEVEL_MAX))
        for name, uuid, compact in (("s", UUID, True), ("whole", OTHER, False)):
            config = StreamConfig(subject=name, partitions=2, compact=compact, tiering=False)
            stream = Stream(name=name, uuid=uuid, config=config, created_us=1, table_name=name)
            both = ((A, B), (B,))
            self._do(CreateStream(stream=stream, leader=A, assignment=both, min_isr=1))

    def _do(self, command: Command) -> None:
        self.state, reply = apply(self.state, command)
        assert not isinstance(reply, Rejected), reply

    def find(self, partition_id: PartitionId) -> Any:
        """Return an open replica."""
        return self.open.get(partition_id)

    def refusal(self, partition_id: PartitionId) -> HeadwaterError | None:
        """Return why a replica is not open."""
        return self.refusals.get(partition_id)

    def of(self, me: BrokerId) -> ClusterOperations:
        """Return the operators' side of one broker."""
        house: Any = self
        return ClusterOperations(
            cluster="hw", me=me, metadata=house, broker=house, clock=FakeClock()
        )


def _at(number: int) -> PartitionId:
    return PartitionId(UUID, PartitionNumber(number))


def test_a_broker_compacts_the_logs_that_it_has() -> None:
    """Of all partitions or of those asked for, with the ticket of the request."""
    house = House()
    first, second = house.open[_at(0)], house.open[_at(1)] = Replica(), Replica()
    (one,) = house.of(A).compact("s", (), ticket="t")
    assert one == ReplicaCompaction(
        broker="a", stream="s", partition=0, state="compacted", end=5, removed_count=2
    )
    assert ReplicaCompaction.from_dict(one.to_dict()) == one
    assert (first.tickets, second.tickets) == (["t"], [])
    assert house.of(A).compact("s", [1], ticket="t") == [], "it has no replica of it"
    found = house.of(B).compact("s", (), ticket="u")
    assert [one.partition for one in found] == [0, 1]
    assert second.tickets == ["u"]


def test_a_replica_that_is_not_open_says_why() -> None:
    """It has not been compacted."""
    house = House()
    (one,) = house.of(A).compact("s", [0], ticket="t")
    assert (one.state, one.reason) == ("failed", "the replica is being opened or closed")
    house.refusals[_at(0)] = DiskFullError("no room for a log")
    (one,) = house.of(A).compact("s", [0], ticket="t")
    assert (one.state, one.reason) == ("failed", "no room for a log")


def test_only_a_stream_with_compact_is_compacted() -> None:
    """And only one that is there; the refusal says what to do."""
    operations = House().of(A)
    with pytest.raises(InvalidRequestError, match="stream alter whole --compact"):
        operations.compact("whole", (), ticket="t")
    with pytest.raises(UnknownStreamError):
        operations.compact("nowhere", (), ticket="t")
    with pytest.raises(UnknownPartitionError):
        operations.compact("s", [0, 2], ticket="t")
