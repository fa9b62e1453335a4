"""A broker's streams as tiering sees them."""

from __future__ import annotations

from collections.abc import Callable
from typing import Final, Protocol

from broker.model.ids import PartitionId
from broker.model.lineage import Lineage
from broker.model.offsets import Offset
from broker.model.stream import Stream
from broker.ports.tiering import TierSource
from broker.runtime.metadata.metadata_log import WaitingMetadata

_CONFIRM_MS: Final = 3_000


class TierListeners:
    """Who hears what tiering has to hear at once. Registered before the broker starts."""

    def __init__(self) -> None:
        """Nobody listens."""
        self._sealed: list[Callable[[PartitionId], None]] = []
        self._leading: list[Callable[[PartitionId, Lineage], bool]] = []

    def on_sealed(self, callback: Callable[[PartitionId], None]) -> None:
        """Register a callback for "a segment of this partition was sealed"."""
        self._sealed.append(callback)

    def on_leading(self, callback: Callable[[PartitionId, Lineage], bool]) -> None:
        """Register a callback for "a leadership of a tiered stream begins"."""
        self._leading.append(callback)

    def sealed(self, partition: PartitionId) -> None:
        """Tell of a segment."""
        for callback in self._sealed:
            callback(partition)

    def leading(self, partition: PartitionId, lineage: Lineage) -> bool:
        """Tell of a leadership; return whether anybody claims it."""
        told = [callback(partition, lineage) for callback in self._leading]
        return any(told)


class TieredBroker(Protocol):
    """What the catalog asks of its broker."""

    def streams(self) -> list[Stream]:
        """Return all streams."""

    def sources(self, stream: Stream) -> list[TierSource]:
        """Return the partitions of a stream that this broker leads, by number."""

    def source(self, partition: PartitionId) -> tuple[Stream, TierSource] | None:
        """Return a partition that is here."""

    @property
    def tier_listeners(self) -> TierListeners:
        """Who hears of segments and leaderships."""


class BrokerCatalog:
    """Implements ``TierCatalog`` over a broker and its metadata."""

    def __init__(self, broker: TieredBroker, metadata: WaitingMetadata) -> None:
        """Bind to them."""
        self._broker = broker
        self._metadata = metadata

    def streams(self) -> list[Stream]:
        """Return the streams whose tiering is on."""
        return [stream for stream in self._broker.streams() if stream.config.tiering]

    def sources(self, stream: Stream) -> list[TierSource]:
        """Return the partitions that this broker leads, by number."""
        return self._broker.sources(stream)

    def source(self, partition: PartitionId) -> tuple[Stream, TierSource] | None:
        """Return a partition of a stream whose tiering is on, if it is here."""
        found = self._broker.source(partition)
        return found if found is not None and found[0].config.tiering else None

    def history(self, partition: PartitionId, *, refreshed: bool) -> tuple[Lineage, Offset]:
        """Return whose history a partition is, and how far it is recorded to be cold."""
        if refreshed:
            self._metadata.barrier(timeout_ms=_CONFIRM_MS)
        one = self._metadata.state.partition(partition)
        return ((), Offset(0)) if one is None else (one.lineage, one.cold_end)

    def on_sealed(self, callback: Callable[[PartitionId], None]) -> None:
        """Register a callback."""
        self._broker.tier_listeners.on_sealed(callback)

    def on_leading(self, callback: Callable[[PartitionId, Lineage], bool]) -> None:
        """Register a callback."""
        self._broker.tier_listeners.on_leading(callback)
