"""A broker's streams as tiering sees them."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Final

from broker.model.ids import PartitionId, StreamUuid
from broker.model.lineage import Lineage
from broker.model.offsets import Offset
from broker.model.stream import Stream
from broker.ports.tiering import RemoteStarts, TierSource
from broker.runtime.api.streams import Streams
from broker.runtime.hosted_partitions import HostedPartitions
from broker.runtime.metadata.metadata_log import WaitingMetadata

_CONFIRM_MS: Final = 3_000


class TierListeners:
    """The callbacks of tiering for urgent events. Registered before the broker starts."""

    def __init__(self) -> None:
        """Begin without callbacks."""
        self._sealed: list[Callable[[PartitionId], None]] = []
        self._leading: list[Callable[[PartitionId, Lineage], bool]] = []

    def on_sealed(self, callback: Callable[[PartitionId], None]) -> None:
        """Register a callback for "a segment of this partition was sealed"."""
        self._sealed.append(callback)

    def on_leading(self, callback: Callable[[PartitionId, Lineage], bool]) -> None:
        """Register a callback for "a leadership of a tiered stream begins"."""
        self._leading.append(callback)

    def sealed(self, partition: PartitionId) -> None:
        """Call the callbacks: a segment was sealed."""
        for callback in self._sealed:
            callback(partition)

    def leading(self, partition: PartitionId, lineage: Lineage) -> bool:
        """Call the callbacks: a leadership begins; return whether one of them claims it."""
        told = [callback(partition, lineage) for callback in self._leading]
        return any(told)


class BrokerCatalog:
    """Implements ``TierCatalog`` over a broker's streams, replicas and metadata."""

    def __init__(
        self,
        streams: Streams,
        replicas: HostedPartitions,
        metadata: WaitingMetadata,
        listeners: TierListeners,
        remote_starts: RemoteStarts,
    ) -> None:
        """Read from these parts of the broker."""
        self._remote_starts = remote_starts
        self._streams = streams
        self._replicas = replicas
        self._metadata = metadata
        self._listeners = listeners

    def streams(self) -> list[Stream]:
        """Return the streams whose tiering is on."""
        return [stream for stream in self._streams.all() if stream.config.tiering]

    def sources(self, stream: Stream) -> list[TierSource]:
        """Return the partitions of a stream that this broker leads, by number."""
        drivers = self._replicas.of_stream(stream.uuid)
        return [drivers[number].tier for number in sorted(drivers) if drivers[number].leads]

    def source(self, partition: PartitionId) -> tuple[Stream, TierSource] | None:
        """Return the local replica of a partition whose stream has tiering on, or None."""
        driver = self._replicas.find(partition)
        if driver is None or not driver.stream.config.tiering:
            return None
        return driver.stream, driver.tier

    def history(self, partition: PartitionId, *, refreshed: bool) -> tuple[Lineage, Offset]:
        """Return the lineages of a partition and its recorded cold end."""
        if refreshed:
            self._metadata.barrier(timeout_ms=_CONFIRM_MS)
        one = self._metadata.state.partition(partition)
        return ((), Offset(0)) if one is None else (one.lineage, one.cold_end)

    def cold_ends(self, stream: StreamUuid) -> Mapping[int, Offset]:
        """See ``TierCatalog.cold_ends``."""
        rows = self._metadata.state.partitions.get(stream, ())
        return {number: row.cold_end for number, row in enumerate(rows)}

    @property
    def remote_starts(self) -> RemoteStarts:
        """See ``TierCatalog.remote_starts``."""
        return self._remote_starts

    def on_sealed(self, callback: Callable[[PartitionId], None]) -> None:
        """Register a callback."""
        self._listeners.on_sealed(callback)

    def on_leading(self, callback: Callable[[PartitionId, Lineage], bool]) -> None:
        """Register a callback."""
        self._listeners.on_leading(callback)
