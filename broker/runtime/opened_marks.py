"""Opened marks: the metadata's note that a replica has a log on this broker."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import Final

from broker.core.metadata.commands import MarkOpened
from broker.core.metadata.state import PartitionState
from broker.model.epochs import BrokerEpoch
from broker.model.ids import BrokerId, PartitionId, StreamUuid
from broker.runtime.metadata.metadata_log import WaitingMetadata

_MARKS_MAX: Final = 4000  # of replicas, in one command


class OpenedMarks:
    """The marks of one process. A log takes no record before its mark is committed."""

    def __init__(self, me: BrokerId, metadata: WaitingMetadata) -> None:
        """Begin without marks; call :meth:`registered` before the first."""
        self._me = me
        self._metadata = metadata
        self._broker_epoch = BrokerEpoch(0)
        self._marked: set[PartitionId] = set()  # by this process

    def registered(self, broker_epoch: BrokerEpoch) -> None:
        """Set the broker epoch under which this process marks from now on."""
        self._broker_epoch = broker_epoch

    def are_needed(self, partition_id: PartitionId, row: PartitionState) -> bool:
        """Tell whether neither the metadata nor this process has a mark of this log."""
        return self._me not in row.opened and partition_id not in self._marked

    def make(self, partition_ids: Sequence[PartitionId]) -> None:
        """Commit marks for these logs to the metadata. Blocks."""
        if partition_ids:
            for command in marks_of(self._me, self._broker_epoch, partition_ids):
                self._metadata.propose(command)
            self._marked.update(partition_ids)

    def forget(self, partition_id: PartitionId) -> None:
        """Forget the mark of a log that is removed."""
        self._marked.discard(partition_id)


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
