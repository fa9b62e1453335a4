"""What being alone, or one of several, changes for a broker; and being alone."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any, Protocol

from broker.core.metadata.commands import RegisterBroker, encode
from broker.core.metadata.state import MetadataState
from broker.errors import NotEnoughReplicasError, NotLeaderError
from broker.model.control_messages import NewestTold
from broker.model.epochs import BrokerEpoch
from broker.model.ids import BrokerId, PartitionId
from broker.model.stream import Stream, StreamConfig
from broker.runtime.replica_shell import AloneLinks, ReplicaLinks


class Metadata(Protocol):
    """The metadata log with the state it has reached."""

    @property
    def state(self) -> MetadataState:
        """What is applied here."""

    def propose(self, command: bytes) -> Mapping[str, Any]:
        """See ``MetadataLog.propose``."""

    def barrier(self, *, timeout_ms: int = ...) -> int:
        """See ``MetadataLog.barrier``."""


class Membership(Protocol):
    """What being alone, or one of several, changes for a broker. Any thread."""

    def register(self) -> BrokerEpoch:
        """Register this process; return its broker epoch. Blocks."""

    def give_up(self, damaged: Sequence[PartitionId]) -> list[PartitionId]:
        """Take damaged replicas out of ISR and eligible; return those that others stand in for.

        Blocks until the metadata shows it.
        """

    def make_links(self, stream: Stream, partition_id: PartitionId) -> ReplicaLinks:
        """Return what a replica here uses to reach the others."""

    def resolve(self, config: StreamConfig) -> StreamConfig:
        """Return a new stream's configuration with this cluster's defaults in it."""

    def place(self, config: StreamConfig) -> tuple[tuple[BrokerId, ...], ...]:
        """Return the replicas of each partition of a new stream; empty: this broker alone."""

    def newest(self, partition_id: PartitionId, name: str) -> NewestTold:
        """Ask the leader, on another broker, what is committed. Blocks.

        Raises:
            NotLeaderError: nobody leads the partition, or its leader does not know yet.
        """


class Alone:
    """The membership of a broker that is its own cluster."""

    def __init__(self, metadata: Metadata, broker_id: BrokerId) -> None:
        """Vouch for oneself."""
        self._metadata = metadata
        self._broker_id = broker_id

    def register(self) -> BrokerEpoch:
        """See ``Membership.register``."""
        reply = self._metadata.propose(encode(RegisterBroker(broker=self._broker_id)))
        return BrokerEpoch(reply["broker_epoch"])

    def give_up(self, damaged: Sequence[PartitionId]) -> list[PartitionId]:  # noqa: ARG002
        """See ``Membership.give_up``: nobody else has a copy."""
        return []

    def make_links(self, stream: Stream, partition_id: PartitionId) -> ReplicaLinks:  # noqa: ARG002
        """See ``Membership.make_links``."""
        return AloneLinks()

    def resolve(self, config: StreamConfig) -> StreamConfig:
        """See ``Membership.resolve``."""
        return config

    def place(self, config: StreamConfig) -> tuple[tuple[BrokerId, ...], ...]:
        """See ``Membership.place``."""
        if config.replication_factor > 1:
            raise NotEnoughReplicasError(
                f"{config.replication_factor} replicas need as many brokers; this one is alone",
                isr=[self._broker_id],
                min_isr=config.min_isr,
            )
        return ()

    def newest(self, partition_id: PartitionId, name: str) -> NewestTold:
        """See ``Membership.newest``: there is nobody else to ask."""
        raise NotLeaderError(f"{name} is not open here", partition=str(partition_id))
