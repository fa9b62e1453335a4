"""The broker, as its servers see it."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import Protocol

import pyarrow as pa

from broker.model.cut import Cut, Lease
from broker.model.cut_positions import CutPosition
from broker.model.epochs import LeaderEpoch
from broker.model.ids import BrokerId, LeaseId, StreamUuid
from broker.model.offsets import Offset
from broker.model.stream import Stream, StreamConfig
from broker.ports.partition import (
    PartitionHandle,
)
from broker.ports.tiering import (
    HeldLease,
    TierStatus,
)


@dataclass(frozen=True, slots=True, kw_only=True)
class BrokerPlace:
    """Where one broker of the cluster is."""

    broker: BrokerId
    flight: str | None  # its Flight address, if it told one
    alive: bool


@dataclass(frozen=True, slots=True, kw_only=True)
class PartitionPlace:
    """Where one partition is, as far as this broker knows."""

    partition: int
    leader: BrokerId | None  # None: nobody leads now
    leader_epoch: LeaderEpoch
    replicas: tuple[BrokerId, ...]
    isr: tuple[BrokerId, ...]


@dataclass(frozen=True, slots=True)
class PartitionStanding:
    """What a partition's leader says of it."""

    log_start: Offset
    high_watermark: Offset
    leader_epoch: LeaderEpoch


class BrokerApi(Protocol):
    """What network services may ask of the broker. Blocking; any thread."""

    @property
    def cluster(self) -> str:
        """Name of the cluster."""

    def create_stream(self, name: str, config: StreamConfig) -> Stream:
        """Create a stream durably and start it; the same name and configuration again is fine."""

    def delete_stream(self, name: str) -> Stream:
        """Delete a stream's local log and metadata. Its table stays in the lake."""

    def stream(self, name: str) -> Stream:
        """Return a stream.

        Raises:
            UnknownStreamError: there is none; a majority of the controllers was asked. Has names.
            UnavailableError: it is not known here, and nobody could say whether that is the newest.
        """

    def streams(self) -> list[Stream]:
        """Return all streams by name."""

    def partition(self, name: str, partition: int) -> PartitionHandle:
        """Return the replica that is here; it takes writes only if this broker leads.

        Raises:
            UnknownStreamError, UnknownPartitionError; NotLeaderError: no replica is here.
        """

    def brokers(self) -> list[BrokerPlace]:
        """Return the brokers of the cluster, by name."""

    def places(self, name: str) -> list[PartitionPlace]:
        """Return who leads and who holds each partition of a stream, by number."""

    def standing(self, name: str, partition: int) -> PartitionStanding:
        """Return what is committed now, as the partition's leader knows it, wherever that is.

        Raises:
            UnknownStreamError, UnknownPartitionError; NotLeaderError: nobody can say now.
        """

    def history_position(self, name: str, partition: int) -> CutPosition:
        """Return what is committed now, and under which leadership; errors as for standing."""

    def table_start(self, name: str, partition: int) -> Offset | None:
        """Return the first offset of a partition that is in the table; None: none is."""

    def take_lease(self, name: str, *, owner: str, ttl_ms: int) -> Lease:
        """Hold everything of the stream, in both tiers, from now until the lease ends."""

    def renew_lease(self, lease_id: LeaseId, *, ttl_ms: int) -> Lease:
        """Extend a lease; raises UnknownLeaseError once it has expired."""

    def drop_lease(self, lease_id: LeaseId) -> None:
        """End a lease; an unknown one is fine."""

    def live_leases(self, name: str) -> list[HeldLease]:
        """Return the leases on a stream that have not ended, the oldest first."""

    def cut(self, name: str, *, owner: str, ttl_ms: int) -> Cut:
        """Take a cut: lease first, then the table version, then the high watermarks."""

    def check_cut(
        self,
        name: str,
        *,
        stream_uuid: StreamUuid,
        positions: Sequence[CutPosition],
        believe_forgotten: bool = False,
    ) -> None:
        """Confirm that a cut with these positions, by partition, is of the history that is here.

        A position of a leadership that is too old to be remembered is refused, or believed.

        Raises:
            ForeignHistoryError: other records may be at its offsets now.
            InvalidCutError: it does not name every partition, or not whose history it is of.
            UnknownStreamError, StreamRecreatedError.
        """

    def read_cold(
        self, name: str, partition: int, start: Offset, end: Offset, schema: pa.Schema
    ) -> Iterator[pa.RecordBatch]:
        """Yield rows that are no longer on local disk, from the table, in offset order."""

    def tier_status(self, name: str) -> list[TierStatus]:
        """Return how far tiering is."""

    def tier_flush(self, name: str, *, timeout_ms: int) -> list[TierStatus]:
        """Ship every committed record into the table now."""
