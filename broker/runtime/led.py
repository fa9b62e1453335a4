"""The partitions that this broker leads and that are not paused, and those who serve them."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Protocol

from broker.model.ids import PartitionId, PartitionNumber
from broker.model.stream import Stream


@dataclass(frozen=True, slots=True)
class LedPartitions:
    """The partitions of a stream that this broker leads now, without those that are paused.

    None: serve the stream no more.
    """

    stream: Stream
    numbers: frozenset[int]

    def partition_ids(self) -> list[PartitionId]:
        """Return their identities, by number."""
        uuid = self.stream.uuid
        return [PartitionId(uuid, PartitionNumber(number)) for number in sorted(self.numbers)]


class LeadListener(Protocol):
    """Serves the partitions that this broker leads, for example by a NATS subscription."""

    def led_changed(self, led: LedPartitions) -> None:
        """Serve exactly these partitions of the stream. Blocks until it does."""
