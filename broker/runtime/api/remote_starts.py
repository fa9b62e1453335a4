"""The remote starts in the metadata: what retention may let expire, and what it decided."""

from __future__ import annotations

from typing import Final

import structlog

from broker.core.metadata.commands import ExpireRecords
from broker.core.metadata.state import FEATURE_LEVEL_STREAMS
from broker.core.metadata.stream_expiry import expiry_limit
from broker.model.epochs import LeaderEpoch
from broker.model.ids import PartitionId
from broker.model.offsets import Offset
from broker.ports.system import Clock
from broker.ports.tiering import RetentionStanding
from broker.runtime.api.feature_levels import raise_level
from broker.runtime.api.leases import leases_on
from broker.runtime.metadata.metadata_log import WaitingMetadata

_CONFIRM_MS: Final = 3_000
_log = structlog.get_logger(__name__)


class MetadataRemoteStarts:
    """Implements ``RemoteStarts``. Any thread."""

    def __init__(self, metadata: WaitingMetadata, clock: Clock) -> None:
        """Read and write them in ``metadata``."""
        self._metadata = metadata
        self._clock = clock

    def is_there(self, partition: PartitionId) -> bool:
        """See ``RemoteStarts.is_there``."""
        return self._metadata.state.partition(partition) is not None

    def standing(self, partition: PartitionId) -> RetentionStanding | None:
        """See ``RemoteStarts.standing``. Cold end and leases are of one state.

        A lease that is taken later begins at or above that cold end. So it holds nothing that may
        expire by this answer.
        """
        state = self._metadata.state
        present = state.partition(partition)
        stream = next(
            (one for one in state.streams.values() if one.uuid == partition.stream_uuid), None
        )
        if present is None or stream is None:
            return None
        number, now_us = int(partition.number), self._clock.now_us()
        return RetentionStanding(
            config=stream.config,
            cold_end=present.cold_end,
            remote_start=present.remote_start,
            limit=expiry_limit(state, stream, number, present, now_us),
        )

    def oldest_lease_us(self, partition: PartitionId) -> int | None:
        """See ``RemoteStarts.oldest_lease_us``."""
        self._metadata.barrier(timeout_ms=_CONFIRM_MS)
        leases = leases_on(self._metadata.state, partition.stream_uuid, self._clock.now_us())
        return min((one.taken_us for one in leases), default=None)

    def expire(
        self, partition: PartitionId, before: Offset, leader_epoch: LeaderEpoch, *, is_done: bool
    ) -> Offset:
        """See ``RemoteStarts.expire``."""
        raise_level(self._metadata, FEATURE_LEVEL_STREAMS)
        command = ExpireRecords(
            stream_uuid=partition.stream_uuid,
            partition=partition.number,
            before=before,
            leader_epoch=leader_epoch,
            now_us=self._clock.now_us(),
            is_done=is_done,
        )
        start = Offset(self._metadata.propose(command)["remote_start"])
        _log.info("records_expired", partition=str(partition), remote_start=start, done=is_done)
        return start
