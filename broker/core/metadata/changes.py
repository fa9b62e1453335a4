"""What changed between two states: the events of the metadata log.

They come from comparing states, not from commands, so a node that jumped ahead by a snapshot hears
exactly what one that applied every command hears.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass

from broker.core.metadata.state import MetadataState, PartitionState
from broker.model.ids import PartitionId, PartitionNumber, StreamUuid


@dataclass(frozen=True, slots=True)
class PartitionChanged:
    """A partition appeared (no ``before``), changed, or is gone (no ``after``)."""

    partition_id: PartitionId
    before: PartitionState | None
    after: PartitionState | None


def partition_changes(before: MetadataState, after: MetadataState) -> Iterator[PartitionChanged]:
    """Yield every partition that differs, in a fixed order; costs little where nothing does."""
    if before.partitions is after.partitions:
        return
    for uuid in sorted(before.partitions.keys() | after.partitions.keys()):
        old, new = before.partitions.get(uuid, ()), after.partitions.get(uuid, ())
        if old is not new:
            yield from _changes_of(uuid, old, new)


def _changes_of(
    uuid: StreamUuid, old: tuple[PartitionState, ...], new: tuple[PartitionState, ...]
) -> Iterator[PartitionChanged]:
    for number in range(max(len(old), len(new))):
        was = old[number] if number < len(old) else None
        now = new[number] if number < len(new) else None
        if was is not now and was != now:
            yield PartitionChanged(PartitionId(uuid, PartitionNumber(number)), was, now)
