"""Which partitions this broker leads, and who is told of changes."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Protocol

from broker.model.ids import PartitionId, PartitionNumber
from broker.model.stream import Stream


@dataclass(frozen=True, slots=True)
class LedPartitions:
    """The partitions of a stream that this broker leads now; none: serve the stream no more."""

    stream: Stream
    numbers: frozenset[int]

    def partition_ids(self) -> list[PartitionId]:
        """Return their identities, by number."""
        uuid = self.stream.uuid
        return [PartitionId(uuid, PartitionNumber(number)) for number in sorted(self.numbers)]


class LeadListener(Protocol):
    """Somebody who serves what this broker leads, e.g. by a subscription."""

    def led_changed(self, led: LedPartitions) -> None:
        """Serve these partitions of the stream and no others. Blocks until it is so."""
