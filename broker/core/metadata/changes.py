"""The changes between two states: the events of the metadata log.

The events come from comparing states, not from commands. So a node that got a snapshot sees the
same events as a node that applied every command.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass

from broker.core.metadata.state import MetadataState, PartitionState
from broker.model.ids import PartitionId, PartitionNumber, StreamUuid


@dataclass(frozen=True, slots=True)
class PartitionChanged:
    """A partition is new (``before`` is None), changed, or is gone (``after`` is None)."""

    partition_id: PartitionId
    before: PartitionState | None
    after: PartitionState | None


def partition_changes(before: MetadataState, after: MetadataState) -> Iterator[PartitionChanged]:
    """Yield every partition that differs, in a fixed order; quick if few partitions differ."""
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
