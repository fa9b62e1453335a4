"""The broker's interface for its network servers."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, Protocol

import pyarrow as pa

from broker.model.cut import Cut, Lease
from broker.model.cut_positions import CutPosition
from broker.model.epochs import LeaderEpoch
from broker.model.ids import BrokerId, LeaseId, StreamUuid
from broker.model.offsets import Offset
from broker.model.purge import Purged
from broker.model.stream import AlteredStream, Stream, StreamConfig
from broker.model.tiering import HeldLease, StreamRemains, TierStatus
from broker.ports.groups import CursorsApi, GroupsApi, MembersApi
from broker.ports.partition import (
    PartitionHandle,
    PartitionWriter,
)
from broker.ports.pauses import PausesApi
from broker.ports.tiering import ColdRows


@dataclass(frozen=True, slots=True, kw_only=True)
class BrokerPlace:
    """Where one broker of the cluster is."""

    broker: BrokerId
    flight: str | None  # its Flight address; None if it registered none
    alive: bool
    addresses: Mapping[str, str] = field(default_factory=dict)  # all of them, by protocol


@dataclass(frozen=True, slots=True, kw_only=True)
class PartitionPlace:
    """Where one partition is, as far as this broker knows."""

    partition: int
    leader: BrokerId | None  # None: no broker leads now
    leader_epoch: LeaderEpoch
    replicas: tuple[BrokerId, ...]
    isr: tuple[BrokerId, ...]
    purged_end: Offset = Offset(0)  # noqa: RUF009 - records below it were deleted on purpose
    remote_start: Offset = Offset(0)  # noqa: RUF009 - records below it expired, in both tiers
    paused: bool = False  # takes no records until it is resumed
    readonly: bool = False  # takes no records until an operator allows them
    # The first and the latest time of an event, in microseconds; 0: never.
    pause_us: tuple[int, int] = (0, 0)  # paused or resumed
    readonly_us: tuple[int, int] = (0, 0)  # made read-only, or writable again


@dataclass(frozen=True, slots=True)
class PartitionStanding:
    """The committed range of a partition, according to its leader."""

    log_start: Offset
    high_watermark: Offset
    leader_epoch: LeaderEpoch
    # Of a compacted stream without a table: the records that are left. None: all, or not known.
    records_left: int | None = None


class StreamsApi(Protocol):
    """The cluster's streams. The methods block; any thread may call them."""

    def create(self, name: str, config: StreamConfig, *, exclusive: bool = False) -> Stream:
        """Create a stream durably and start it.

        If a stream with this name and the same configuration exists, return that stream; with
        ``exclusive`` raise StreamExistsError instead.

        Raises:
            StreamExistsError: a stream with this name has another configuration.
            EncryptionKeyError, KeyProviderUnavailableError: the stream is to be encrypted, and no
                key can be used now; nothing was created.
        """

    def alter(
        self, name: str, changes: Mapping[str, Any], *, dry_run: bool = False
    ) -> AlteredStream:
        """Change settings of a stream, durably; with ``dry_run`` only return what would change.

        ``changes`` has the new values of settings by name. This broker applies them before the call
        returns, the other brokers when they apply the metadata. Records that were stored before
        stay as they are.

        Raises:
            InvalidStreamError: a value is out of bounds, or contradicts another one.
            FixedSettingError: this setting cannot change after the creation of the stream.
            FeatureLevelError: a broker of the cluster is too old to follow the change.
            UnknownStreamError, StreamRecreatedError, StreamChangedError, UnavailableError.
        """

    def purge(
        self,
        name: str,
        partition: int,
        *,
        before: Offset | None = None,
        before_us: int | None = None,
        operator: str,
    ) -> Purged:
        """Delete the records of a partition below an offset, durably, on every replica.

        ``before`` is the first offset that stays. With ``before_us`` instead, that is the base
        offset of the first batch with a record at or after this time. One of the two is needed; if
        both are given, ``before_us`` counts. ``operator`` is logged. The offsets are not given out
        again. Disk space becomes free when segments are freed: they must be sealed, and their
        message ids out of the deduplication window. The table of a tiered stream keeps its rows.

        Raises:
            OffsetOutOfRangeError: ``before`` is above the high watermark.
            HeldByLeaseError: readers hold some of these records.
            NotShippedError: the stream is tiered, and some of these records are not in its table.
            NotLeaderError: this broker does not lead the partition.
            FeatureLevelError, UnknownStreamError, UnknownPartitionError, StaleLeaderEpochError.
        """

    def rotate_key(self, name: str, version: int) -> Stream:
        """Give an encrypted stream a new data key, durably; return the stream.

        ``version`` is the newest version that the caller knows; if there is a newer one already,
        nothing is changed, so a repeated call makes one key.

        Records that are stored stay as they are: the earlier keys are kept. All data keys are
        wrapped anew by the present key of the key provider. This broker uses the new key before the
        call returns, the other brokers when they apply the metadata.

        Raises:
            InvalidRequestError: the stream is not encrypted.
            EncryptionKeyError, KeyProviderUnavailableError: a key cannot be used here; nothing was
                changed.
            FeatureLevelError, UnknownStreamError, StreamChangedError, UnavailableError.
        """

    def delete(self, name: str) -> Stream:
        """Delete a stream's local log and metadata. Its table stays in the lake.

        Raises:
            UnknownStreamError, StreamRecreatedError, UnavailableError.
        """

    def get(self, name: str) -> Stream:
        """Return a stream.

        Raises:
            UnknownStreamError: no stream has this name; a majority of the controllers confirmed
                it. The error lists the names that exist.
            UnavailableError: this broker does not know the stream, and could not confirm that its
                metadata is the newest.
        """

    def all(self) -> list[Stream]:
        """Return all streams by name."""


class PartitionsApi(Protocol):
    """Where partitions are, and how far they are committed. Any thread; most methods block."""

    def handle(self, name: str, partition: int) -> PartitionHandle:
        """Return this broker's replica; it takes writes only if this broker leads.

        Raises:
            UnknownStreamError, UnknownPartitionError.
            NotLeaderError: this broker has no replica of the partition.
        """

    def writer(self, name: str, partition: int) -> PartitionWriter:
        """Return a writer for a partition, whichever broker leads it.

        If another broker leads, the writer takes :meth:`PartitionWriter.submit_records` only,
        without message ids, and hands the rows to the leader. If the outcome is lost on the way,
        the caller gets CommitTimeoutError.

        Raises:
            UnknownStreamError, UnknownPartitionError.
            NotLeaderError: no broker leads the partition now, or the leader cannot be reached.
            HeadwaterError: the leader is this broker and cannot open its log; the error says why.
        """

    def led_here(self, name: str, partition: int) -> tuple[Stream, PartitionWriter] | None:
        """Return a partition that this broker leads, and its stream, else None. Does not block."""

    def brokers(self) -> list[BrokerPlace]:
        """Return the brokers of the cluster, by name."""

    def places(self, name: str) -> list[PartitionPlace]:
        """Return leader, replicas and ISR of each partition of a stream, by number."""

    def standing(self, name: str, partition: int) -> PartitionStanding:
        """Return the committed range now, from the partition's leader on any broker.

        Raises:
            UnknownStreamError, UnknownPartitionError.
            NotLeaderError: no leader answers now.
            HeadwaterError: the leader is this broker and cannot open its log; the error says why.
        """

    def leaders_end(self, name: str, partition: int) -> Offset | None:
        """Return where the leader's log ends, committed or not. Does not block.

        None if this broker does not lead, or if another one may have led since.
        """

    def history_position(self, name: str, partition: int) -> CutPosition:
        """Return the high watermark now and the id of its leadership; raises as ``standing``."""


class CutsApi(Protocol):
    """Cuts of streams, and leases. Any thread; the methods block."""

    def take_lease(self, name: str, *, owner: str, ttl_ms: int) -> Lease:
        """Take a lease: until it ends, no record that the stream has now is deleted in any tier."""

    def renew_lease(self, lease_id: LeaseId, *, ttl_ms: int) -> Lease:
        """Extend a lease; raises UnknownLeaseError once it has expired."""

    def drop_lease(self, lease_id: LeaseId) -> None:
        """End a lease; does nothing if the lease is unknown."""

    def live_leases(self, name: str) -> list[HeldLease]:
        """Return the leases on a stream that have not ended, the oldest first."""

    def take(self, name: str, *, owner: str, ttl_ms: int) -> Cut:
        """Take a cut: lease first, then the table version, then the high watermarks."""

    def check(
        self,
        name: str,
        *,
        stream_uuid: StreamUuid,
        positions: Sequence[CutPosition],
        believe_forgotten: bool = False,
    ) -> None:
        """Check that a saved cut belongs to the present history of its stream.

        ``positions`` has the position of each partition, by number.

        A position of a leadership that is too old to be remembered is refused; with
        ``believe_forgotten`` it is accepted.

        Raises:
            ForeignHistoryError: other records may be at the cut's offsets now.
            InvalidCutError: the cut does not name every partition, or has no lineage ids.
            UnknownStreamError, StreamRecreatedError.
        """


class ColdTierApi(Protocol):
    """The records of streams that are in tables. Any thread; the methods block."""

    def read(
        self, name: str, partition: int, start: Offset, end: Offset, schema: pa.Schema
    ) -> ColdRows:
        """Return rows that are no longer on local disk, from the table, in offset order."""

    def offset_at(
        self, name: str, partition: int, start: Offset, end: Offset, timestamp_us: int
    ) -> Offset | None:
        """Return the table's first offset in ``[start, end)`` at or after a time, or None."""

    def status(self, name: str) -> list[TierStatus]:
        """Return how far each partition is shipped to the table."""

    def remains(self, name: str, stream_uuid: StreamUuid) -> StreamRemains:
        """Return what this broker knows, by itself, of a stream that may be deleted. Quick.

        Of the stream of another name nothing is told: it is as if it were not there.
        """

    def table_start(self, name: str, partition: int) -> Offset | None:
        """Return the first offset of a partition in the table; None if the table has no record."""

    def flush(
        self, name: str, *, timeout_ms: int, is_wanted: Callable[[], bool] = lambda: True
    ) -> list[TierStatus]:
        """Ship every committed record into the table now, in at most ``timeout_ms``.

        The call ends early when ``is_wanted`` returns False, because its caller no longer waits.
        """


class BrokerApi(Protocol):
    """The broker for network services."""

    @property
    def cluster(self) -> str:
        """Name of the cluster."""

    @property
    def streams(self) -> StreamsApi:
        """The cluster's streams."""

    @property
    def pauses(self) -> PausesApi:
        """Partitions that are paused or read-only."""

    @property
    def partitions(self) -> PartitionsApi:
        """Where partitions are, and how far they are committed."""

    @property
    def cuts(self) -> CutsApi:
        """Cuts and leases."""

    @property
    def cold(self) -> ColdTierApi:
        """The records that are in tables."""

    @property
    def cursors(self) -> CursorsApi:
        """Cursors of consumers."""

    @property
    def groups(self) -> GroupsApi:
        """Consumer groups."""

    @property
    def members(self) -> MembersApi:
        """Consumer groups of Headwater's own client."""
