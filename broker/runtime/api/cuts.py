"""Cuts of streams, and the leases that keep what a cut needs."""

from __future__ import annotations

import uuid
from collections.abc import Sequence
from typing import Final

from broker.core.cuts import partition_cut
from broker.core.metadata.commands import DropLease, RenewLease, TakeLease
from broker.errors import StreamChangedError
from broker.model.cut import Cut, Lease, PartitionCut
from broker.model.cut_positions import CutPosition
from broker.model.ids import LeaseId, PartitionId, PartitionNumber, StreamUuid
from broker.model.offsets import Offset
from broker.model.stream import Stream
from broker.model.tiering import HeldLease, TableState
from broker.ports.system import Clock
from broker.runtime.api.cold_tier import ColdEnds, ColdTier
from broker.runtime.api.known_lineages import KnownLineages
from broker.runtime.api.leases import checked_ttl_ms, leases_on, require_room_for_lease
from broker.runtime.api.partitions import Partitions
from broker.runtime.api.streams import Streams
from broker.runtime.metadata.metadata_log import WaitingMetadata

_GROWTHS_MAX: Final = 3  # of a stream, while one cut is taken


class Cuts:
    """Implements ``CutsApi``. Any thread."""

    def __init__(
        self,
        cluster: str,
        metadata: WaitingMetadata,
        clock: Clock,
        *,
        streams: Streams,
        partitions: Partitions,
        cold: ColdTier,
        ends: ColdEnds,
        lineages: KnownLineages,
    ) -> None:
        """Take the parts that a cut needs; each cut names ``cluster``."""
        self._cluster = cluster
        self._metadata = metadata
        self._clock = clock
        self._streams = streams
        self._partitions = partitions
        self._cold = cold
        self._ends = ends
        self._lineages = lineages

    # ------------------------------------------------------------------ leases

    def take_lease(self, name: str, *, owner: str, ttl_ms: int) -> Lease:
        """See ``CutsApi.take_lease``."""
        now_us = self._clock.now_us()
        lease = Lease(
            lease_id=LeaseId(uuid.uuid4().hex), expires_us=now_us + checked_ttl_ms(ttl_ms) * 1000
        )
        stream = self._streams.get(name)
        require_room_for_lease(self._metadata.state, stream, now_us)
        command = TakeLease(
            lease_id=lease.lease_id,
            stream_uuid=stream.uuid,
            owner=owner[:200],
            expires_us=lease.expires_us,
            now_us=now_us,
        )
        self._metadata.propose(command)
        return lease

    def renew_lease(self, lease_id: LeaseId, *, ttl_ms: int) -> Lease:
        """See ``CutsApi.renew_lease``."""
        now_us = self._clock.now_us()
        expires_us = now_us + checked_ttl_ms(ttl_ms) * 1000
        command = RenewLease(lease_id=lease_id, expires_us=expires_us, now_us=now_us)
        reply = self._metadata.propose(command)
        return Lease(lease_id=lease_id, expires_us=reply["expires_us"])

    def drop_lease(self, lease_id: LeaseId) -> None:
        """See ``CutsApi.drop_lease``."""
        self._metadata.propose(DropLease(lease_id=lease_id))

    def live_leases(self, name: str) -> list[HeldLease]:
        """See ``CutsApi.live_leases``."""
        stream = self._streams.get(name)
        return leases_on(self._metadata.state, stream.uuid, self._clock.now_us())

    # ------------------------------------------------------------------ cuts

    def take(self, name: str, *, owner: str, ttl_ms: int) -> Cut:
        """See ``CutsApi.take``.

        Raises:
            TableRolledBackError: the table lost a commit that this broker had seen.
            GapError: records between the tiers are on neither side.
            TableMismatchError: the table is ahead of the log that feeds it.
        """
        for _ in range(_GROWTHS_MAX):
            cut = self._take(self._streams.get(name), owner=owner, ttl_ms=ttl_ms)
            if cut is not None:
                return cut
        raise StreamChangedError(
            f"partitions of stream {name!r} were added, time and again, while a cut was taken: try "
            "again",
            stream=name,
        )

    def _take(self, stream: Stream, *, owner: str, ttl_ms: int) -> Cut | None:
        """Take a cut; None if the table has partitions that the stream did not have before."""
        lease = self.take_lease(stream.name, owner=owner, ttl_ms=ttl_ms)
        try:
            # Read before the table: a cold end recorded later may not be in this table version yet.
            recorded = [
                self._ends.of(PartitionId(stream.uuid, PartitionNumber(number)))
                for number in range(stream.config.partitions)
            ]
            table = self._cold.table_state(stream)
            if len(table.ranges) > len(recorded):
                self.drop_lease(lease.lease_id)
                return None
            # The highest partition first: keys only move upwards, so a cut that has a record of a
            # moved key has all of its older ones, and none of them comes after the cut.
            partitions = tuple(
                self._partition_cut(stream, number, table, recorded=recorded[number])
                for number in reversed(range(len(recorded)))
            )[::-1]
        except BaseException:
            self.drop_lease(lease.lease_id)
            raise
        return Cut(
            cluster=self._cluster,
            stream=stream.name,
            stream_uuid=stream.uuid,
            subject=stream.config.subject,
            table_uri=table.table_uri,
            table_version=table.version,
            partitions=partitions,
            taken_us=self._clock.now_us(),
            lease=lease,
            table_digest=table.digest,
            keys_from=stream.keys_from,
        )

    def check(
        self,
        name: str,
        *,
        stream_uuid: StreamUuid,
        positions: Sequence[CutPosition],
        believe_forgotten: bool = False,
    ) -> None:
        """See ``CutsApi.check``."""
        stream = self._streams.get(name)
        self._lineages.require(stream, stream_uuid, positions, believe_forgotten=believe_forgotten)

    def _partition_cut(
        self, stream: Stream, number: int, table: TableState, *, recorded: Offset
    ) -> PartitionCut:
        position = self._partitions.standing_of(stream, number)
        return partition_cut(
            stream,
            number,
            table,
            position,
            recorded=recorded,
            lineage_id=self._lineages.id_of(stream, number, position.leader_epoch),
            purged_end=self._ends.purged(PartitionId(stream.uuid, PartitionNumber(number))),
        )
