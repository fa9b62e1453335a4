"""The commands that let the metadata know which replicas have a log on this broker."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import Final

from broker.core.metadata.commands import MarkOpened
from broker.model.epochs import BrokerEpoch
from broker.model.ids import BrokerId, PartitionId, StreamUuid

_MARKS_MAX: Final = 4000  # of replicas, in one command


def marks_of(
    broker: BrokerId, broker_epoch: BrokerEpoch, partition_ids: Sequence[PartitionId]
) -> Iterator[MarkOpened]:
    """Yield the commands, each well below a command's limit: one for most streams."""
    for first in range(0, len(partition_ids), _MARKS_MAX):
        numbers: dict[StreamUuid, list[int]] = {}
        for one in partition_ids[first : first + _MARKS_MAX]:
            numbers.setdefault(one.stream_uuid, []).append(one.number)
        yield MarkOpened(
            broker=broker,
            broker_epoch=broker_epoch,
            partitions={uuid: tuple(found) for uuid, found in numbers.items()},
        )
