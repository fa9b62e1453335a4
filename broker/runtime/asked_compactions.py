"""A request of an operator to compact the logs of a broker's replicas of one stream now."""

from __future__ import annotations

import dataclasses
from collections.abc import Sequence
from typing import Protocol

from broker.core.key_compaction import PassReport
from broker.errors import HeadwaterError, InvalidRequestError
from broker.model.cluster_status import ReplicaCompaction
from broker.model.ids import BrokerId, PartitionId, PartitionNumber
from broker.model.replica_state import PassState
from broker.model.stream import Stream
from broker.runtime.partition.driver import PartitionDriver


class CompactedReplicas(Protocol):
    """The local replicas."""

    def find(self, partition_id: PartitionId) -> PartitionDriver | None:
        """Return the local replica of a partition, or None."""

    def refusal(self, partition_id: PartitionId) -> HeadwaterError | None:
        """Return why a replica that belongs here is not open yet; None if it is open."""


def ask_to_compact(
    replicas: CompactedReplicas,
    me: BrokerId,
    stream: Stream,
    partitions: Sequence[int],
    ticket: str,
) -> list[ReplicaCompaction]:
    """Ask each of the replicas of these partitions, which belong to this broker.

    Raises:
        InvalidRequestError: the stream's setting ``compact`` is off.
        OverloadedError: too many other requests wait.
    """
    if not stream.config.compact:
        raise InvalidRequestError(
            f"stream {stream.name!r} keeps every record: its setting compact is off. `headwater "
            f"stream alter {stream.name} --compact` switches key compaction on",
            stream=stream.name,
            field="compact",
        )
    found = []
    for number in partitions:
        told = _ask(replicas, PartitionId(stream.uuid, PartitionNumber(number)), ticket)
        report = {**dataclasses.asdict(told), "state": told.state.value}
        found.append(ReplicaCompaction(broker=me, stream=stream.name, partition=number, **report))
    return found


def _ask(replicas: CompactedReplicas, partition_id: PartitionId, ticket: str) -> PassReport:
    driver = replicas.find(partition_id)
    if driver is not None:
        return driver.compaction.ask(ticket)
    error = replicas.refusal(partition_id)
    reason = "the replica is being opened or closed" if error is None else error.message
    return PassReport(state=PassState.FAILED, reason=reason)
