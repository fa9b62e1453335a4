"""The places of partitions, the local replicas, and what is committed at any leader."""

from __future__ import annotations

from broker.core.replication.view import view_of
from broker.model.cut_positions import CutPosition
from broker.model.ids import PartitionId, PartitionNumber
from broker.model.offsets import Offset
from broker.model.stream import Stream
from broker.ports.api import BrokerPlace, PartitionPlace, PartitionStanding
from broker.ports.partition import PartitionWriter
from broker.runtime.api.known_lineages import KnownLineages
from broker.runtime.api.streams import Streams
from broker.runtime.cluster.directory import brokers_in, places_in
from broker.runtime.cluster.membership import Membership
from broker.runtime.hosted_partitions import HostedPartitions
from broker.runtime.metadata.metadata_log import WaitingMetadata
from broker.runtime.partition.driver import PartitionDriver
from broker.runtime.partition.replica_shell import not_leader


class Partitions:
    """Implements ``PartitionsApi``. Any thread."""

    def __init__(
        self,
        metadata: WaitingMetadata,
        membership: Membership,
        streams: Streams,
        replicas: HostedPartitions,
        lineages: KnownLineages,
    ) -> None:
        """Answer from local replicas first; ``membership`` asks the leaders on other brokers."""
        self._metadata = metadata
        self._membership = membership
        self._streams = streams
        self._replicas = replicas
        self._lineages = lineages

    def handle(self, name: str, partition: int) -> PartitionDriver:
        """See ``PartitionsApi.handle``: the local replica, leader or follower."""
        stream = self._streams.with_partition(name, partition)
        partition_id = PartitionId(stream.uuid, PartitionNumber(partition))
        driver = self._replicas.find(partition_id)
        if driver is None:
            refusal = self._replicas.refusal(partition_id)
            if refusal is not None:
                raise refusal.with_traceback(None)  # else it grows with each caller
            raise not_leader(f"{name}/{partition}", view_of(self._metadata.state, partition_id))
        return driver

    def writer(self, name: str, partition: int) -> PartitionWriter:
        """See ``PartitionsApi.writer``."""
        stream = self._streams.with_partition(name, partition)
        partition_id = PartitionId(stream.uuid, PartitionNumber(partition))
        driver = self._replicas.find(partition_id)
        if driver is not None and driver.leads:
            return driver.writes
        row = self._metadata.state.partition(partition_id)
        if row is None or row.leader is None:
            raise not_leader(f"{name}/{partition}", view_of(self._metadata.state, partition_id))
        if driver is None:
            self._refuse_unopened(partition_id)
        return self._membership.leaders_writer(partition_id, f"{name}/{partition}")

    def led_here(self, name: str, partition: int) -> tuple[Stream, PartitionWriter] | None:
        """See ``PartitionsApi.led_here``: by this broker's metadata."""
        stream = self._metadata.state.streams.get(name)
        if stream is None or not 0 <= partition < stream.config.partitions:
            return None
        driver = self._replicas.find(PartitionId(stream.uuid, PartitionNumber(partition)))
        return None if driver is None or not driver.leads else (stream, driver.writes)

    def brokers(self) -> list[BrokerPlace]:
        """See ``PartitionsApi.brokers``."""
        return brokers_in(self._metadata.state)

    def places(self, name: str) -> list[PartitionPlace]:
        """See ``PartitionsApi.places``."""
        return places_in(self._metadata.state, self._streams.get(name).uuid)

    def standing(self, name: str, partition: int) -> PartitionStanding:
        """See ``PartitionsApi.standing``."""
        return self.standing_of(self._streams.with_partition(name, partition), partition)

    def leaders_end(self, name: str, partition: int) -> Offset | None:
        """See ``PartitionsApi.leaders_end``."""
        stream = self._streams.with_partition(name, partition)
        driver = self._replicas.find(PartitionId(stream.uuid, PartitionNumber(partition)))
        if driver is None or driver.health.lost_end is not None or driver.refusal is not None:
            return None
        return driver.replication.whole_end

    def history_position(self, name: str, partition: int) -> CutPosition:
        """See ``PartitionsApi.history_position``."""
        stream = self._streams.with_partition(name, partition)
        at = self.standing_of(stream, partition)
        lineage_id = self._lineages.id_of(stream, partition, at.leader_epoch)
        return CutPosition(lineage_id, at.high_watermark)

    def standing_of(self, stream: Stream, number: int) -> PartitionStanding:
        """Return what the leader knows to be committed; raises as ``standing`` does."""
        partition_id = PartitionId(stream.uuid, PartitionNumber(number))
        driver = self._replicas.find(partition_id)
        if driver is not None and driver.leads:
            if (unknown := driver.health.lost_end or driver.lost_leadership) is not None:
                raise unknown
            reads, failed = driver.reads, driver.health.failure is not None
            newest = reads.high_watermark if failed else driver.replication.newest_committed
            if newest is not None:
                left = driver.records_left(newest)
                return PartitionStanding(reads.log_start, newest, reads.leader_epoch, left)
        if driver is None:
            self._refuse_unopened(partition_id)
        told = self._membership.newest(partition_id, f"{stream.name}/{number}")
        assert told.high_watermark is not None, "an answer has a high watermark"
        return PartitionStanding(
            told.log_start, told.high_watermark, told.leader_epoch, told.records_left
        )

    def _refuse_unopened(self, partition_id: PartitionId) -> None:
        """Raise why the replica here is not open, if it is the leader: no other broker can help."""
        row, refusal = self._metadata.state.partition(partition_id), None
        if row is not None and row.leader == self._replicas.me:
            refusal = self._replicas.refusal(partition_id)
        if refusal is not None:
            raise refusal.with_traceback(None)  # else it grows with each caller
