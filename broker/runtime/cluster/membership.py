"""The interface between a broker and its cluster, and its implementation for a single broker."""

from __future__ import annotations

import uuid
from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace
from typing import Final, Protocol

from broker.core.metadata.commands import (
    BeginLeaderships,
    BegunLeadership,
    RegisterBroker,
)
from broker.core.metadata.state import FEATURE_LEVEL_MAX
from broker.errors import HeadwaterError, NotEnoughReplicasError, NotLeaderError
from broker.model.control_messages import NewestTold
from broker.model.epochs import BrokerEpoch, LeaderEpoch
from broker.model.ids import BrokerId, PartitionId
from broker.model.lineage import Leadership
from broker.model.offsets import Offset
from broker.model.stream import EVERY_BROKER, Stream, StreamConfig
from broker.ports.partition import PartitionWriter
from broker.ports.pumps import NEVER_MS, Pump
from broker.ports.system import Files
from broker.runtime.ingest.sessions import ALONE, note_clean_stop, take_clean_stop
from broker.runtime.metadata.metadata_log import WaitingMetadata
from broker.runtime.partition.replica_shell import AloneLinks, ReplicaLinks

CONFIRM_MS: Final = 3_000  # to wait for the newest metadata
_BEGUN_AT_ONCE: Final = 1000  # leaderships in one command, whose bytes are limited


class Membership(Protocol):
    """What differs between a single broker and a member of a cluster. Any thread."""

    def registering(
        self, wake: Callable[[], None], answered: Callable[[BrokerEpoch], None]
    ) -> Pump:
        """Return the pump that registers this process; its answer is the broker epoch."""

    def begin_leading(self, ends: Mapping[PartitionId, tuple[LeaderEpoch, Offset]]) -> None:
        """Give each leadership that this broker holds at its start a lineage id.

        ``ends`` has the leader epoch and the log end of each partition. Blocks.
        """

    def giving_up(
        self,
        damaged: Sequence[PartitionId],
        wake: Callable[[], None],
        answered: Callable[[list[PartitionId]], None],
    ) -> Pump:
        """Return the pump that takes damaged replicas out of ISR and eligible.

        Its answer, when the metadata shows it: the partitions whose records another replica has.
        """

    def confirm_metadata(self, passed: Callable[[HeadwaterError | None], None]) -> None:
        """Wait until all commands committed before are applied; ``passed`` gets None or the error.

        Any thread may call it.
        """

    def logs_closed(self) -> None:
        """Note that every log that this process opened is closed and synced to its end."""

    def make_links(self, stream: Stream, partition_id: PartitionId) -> ReplicaLinks:
        """Return the links from a local replica to the other replicas."""

    def resolve(self, config: StreamConfig) -> StreamConfig:
        """Return a new stream's configuration with this cluster's defaults in it."""

    def place(self, config: StreamConfig) -> tuple[tuple[BrokerId, ...], ...]:
        """Return the replicas of each partition of a new stream; empty: this broker alone."""

    def leaders_writer(self, partition_id: PartitionId, name: str) -> PartitionWriter:
        """Return what hands writes to the leader of a partition, on another broker.

        Raises:
            NotLeaderError: there is no other broker.
        """

    def newest(self, partition_id: PartitionId, name: str) -> NewestTold:
        """Ask the leader, on another broker, what is committed. Blocks.

        Raises:
            NotLeaderError: the partition has no leader, or the leader does not know yet.
        """


class _AtOnce:
    """A pump that answers in its first turn."""

    def __init__(self, answer: Callable[[], None]) -> None:
        self._answer = answer

    def turn(self, _: int) -> int:
        """Return the answer."""
        self._answer()
        return NEVER_MS


class Alone:
    """The membership of a single broker: a cluster of one."""

    def __init__(self, metadata: WaitingMetadata, broker_id: BrokerId, files: Files) -> None:
        """Confirm everything locally: no other broker takes part."""
        self._metadata = metadata
        self._broker_id = broker_id
        self._files = files

    def registering(
        self,
        wake: Callable[[], None],  # noqa: ARG002 - nothing to wait for
        answered: Callable[[BrokerEpoch], None],
    ) -> Pump:
        """See ``Membership.registering``."""

        def register() -> None:
            take_clean_stop(self._files)  # the note is for one start only
            command = RegisterBroker(
                broker=self._broker_id, session=ALONE, features_max=FEATURE_LEVEL_MAX
            )
            reply = self._metadata.propose(command)
            answered(BrokerEpoch(reply["broker_epoch"]))

        return _AtOnce(register)

    def begin_leading(self, ends: Mapping[PartitionId, tuple[LeaderEpoch, Offset]]) -> None:
        """See ``Membership.begin_leading``: proposed here, because no controller elects it."""
        begun = [
            BegunLeadership(
                stream_uuid=one.stream_uuid,
                partition=one.number,
                leadership=Leadership(
                    leader_epoch=leader_epoch, lineage_id=uuid.uuid4().hex, start=log_end
                ),
            )
            for one, (leader_epoch, log_end) in ends.items()
        ]
        epoch = self._metadata.state.brokers[self._broker_id].epoch
        for first in range(0, len(begun), _BEGUN_AT_ONCE):
            some = tuple(begun[first : first + _BEGUN_AT_ONCE])
            command = BeginLeaderships(broker=self._broker_id, broker_epoch=epoch, begun=some)
            self._metadata.propose(command)

    def giving_up(
        self,
        damaged: Sequence[PartitionId],  # noqa: ARG002 - no other broker has a copy
        wake: Callable[[], None],  # noqa: ARG002
        answered: Callable[[list[PartitionId]], None],
    ) -> Pump:
        """See ``Membership.giving_up``."""
        return _AtOnce(lambda: answered([]))

    def confirm_metadata(self, passed: Callable[[HeadwaterError | None], None]) -> None:
        """See ``Membership.confirm_metadata``: this broker alone has the whole log."""
        try:
            self._metadata.barrier(timeout_ms=CONFIRM_MS)
        except HeadwaterError as error:
            passed(error)
        else:
            passed(None)

    def logs_closed(self) -> None:
        """See ``Membership.logs_closed``: noted, because the next start may be in a cluster."""
        note_clean_stop(self._files, ALONE)

    def make_links(self, stream: Stream, partition_id: PartitionId) -> ReplicaLinks:  # noqa: ARG002
        """See ``Membership.make_links``."""
        return AloneLinks()

    def resolve(self, config: StreamConfig) -> StreamConfig:
        """See ``Membership.resolve``."""
        every = config.replication_factor == EVERY_BROKER
        return replace(config, replication_factor=1) if every else config

    def place(self, config: StreamConfig) -> tuple[tuple[BrokerId, ...], ...]:
        """See ``Membership.place``."""
        if config.replication_factor > 1:
            raise NotEnoughReplicasError(
                f"{config.replication_factor} replicas need as many brokers, and this broker is "
                "alone: ask for 1 replica",
                isr=[self._broker_id],
                min_isr=config.min_isr,
            )
        return ()

    def leaders_writer(self, partition_id: PartitionId, name: str) -> PartitionWriter:
        """See ``Membership.leaders_writer``: no other broker can lead."""
        raise NotLeaderError(f"{name} is not open here", partition=str(partition_id))

    def newest(self, partition_id: PartitionId, name: str) -> NewestTold:
        """See ``Membership.newest``: no other broker can answer."""
        raise NotLeaderError(f"{name} is not open here", partition=str(partition_id))
