"""Pauses and resumes partitions, and makes them read-only: by commands of the metadata."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Final

import structlog

from broker.core.metadata.commands import (
    Command,
    PausePartitions,
    ResumePartitions,
    SetReadonly,
)
from broker.core.metadata.state import FEATURE_LEVEL_STREAMS
from broker.errors import HeadwaterError
from broker.model.epochs import LeaderEpoch
from broker.model.ids import PartitionId
from broker.model.stream import Stream
from broker.ports.system import Clock
from broker.runtime.api.feature_levels import raise_level
from broker.runtime.api.streams import Streams
from broker.runtime.metadata.metadata_log import SharedMetadata

_PROPOSE_MS: Final = 5_000
_log = structlog.get_logger(__name__)


class Pauses:
    """Implements ``PausesApi``. Any thread."""

    def __init__(
        self,
        metadata: SharedMetadata,
        clock: Clock,
        streams: Streams,
        *,
        follow_soon: Callable[[], None],
    ) -> None:
        """Propose to ``metadata``; ``streams`` lets the replicas here follow it.

        ``follow_soon`` does the same later, and does not block.
        """
        self._follow_soon = follow_soon
        self._metadata = metadata
        self._clock = clock
        self._streams = streams

    def pause(self, name: str, partitions: Sequence[int] = (), *, resume_all: bool = False) -> None:
        """See ``PausesApi.pause``."""
        stream = self._known(name, partitions)
        command = PausePartitions(
            stream_uuid=stream.uuid,
            partitions=tuple(partitions),
            resume_all=resume_all,
            now_us=self._clock.now_us(),
        )
        self._do(stream, command, "stream_paused", partitions, resume_all=resume_all)

    def resume(self, name: str, partitions: Sequence[int] = ()) -> None:
        """See ``PausesApi.resume``."""
        stream = self._known(name, partitions)
        command = ResumePartitions(
            stream_uuid=stream.uuid, partitions=tuple(partitions), now_us=self._clock.now_us()
        )
        self._do(stream, command, "stream_resumed", partitions)

    def set_readonly(
        self, name: str, partitions: Sequence[int] = (), *, readonly: bool = True
    ) -> None:
        """See ``PausesApi.set_readonly``."""
        stream = self._known(name, partitions)
        command = SetReadonly(
            stream_uuid=stream.uuid,
            partitions=tuple(partitions),
            readonly=readonly,
            now_us=self._clock.now_us(),
        )
        self._do(stream, command, "stream_readonly_set", partitions, readonly=readonly)

    def rests(self, name: str, partition: int) -> bool:
        """See ``PausesApi.rests``: by this broker's metadata."""
        state = self._metadata.state
        stream = state.streams.get(name)
        rows = () if stream is None else state.partitions.get(stream.uuid, ())
        if not 0 <= partition < len(rows):
            return False
        row = rows[partition]  # one that is read-only stays paused: the publish is refused anyway
        return not row.readonly and (row.paused or row.resumes_all)

    def wake(self, name: str, partition: int) -> None:
        """See ``PausesApi.wake``."""
        if self.rests(name, partition):
            self.resume(name, (partition,))

    def pause_idle(self, partition_id: PartitionId, leader_epoch: LeaderEpoch) -> None:
        """Pause a partition that this broker leads and that is idle. Does not block."""
        facts = {"partition": str(partition_id), "leader_epoch": leader_epoch}

        def answered(error: HeadwaterError | None) -> None:
            if error is None:
                _log.info("idle_partition_paused", **facts)
                self._follow_soon()  # a broker alone does not follow the metadata by itself
            else:  # another leader by now, or no majority: its leader asks again
                _log.info("idle_partition_not_paused", **facts, reason=error.message)

        command = PausePartitions(
            stream_uuid=partition_id.stream_uuid,
            partitions=(partition_id.number,),
            now_us=self._clock.now_us(),
            leader_epoch=leader_epoch,
        )
        self._metadata.propose_soon(command, answered, timeout_ms=_PROPOSE_MS)

    def _known(self, name: str, partitions: Sequence[int]) -> Stream:
        for number in partitions:
            self._streams.with_partition(name, number)
        return self._streams.get(name)

    def _do(
        self, stream: Stream, command: Command, event: str, partitions: Sequence[int], **facts: bool
    ) -> None:
        raise_level(self._metadata, FEATURE_LEVEL_STREAMS)
        self._metadata.propose(command)
        self._streams.obey(stream.uuid)
        _log.info(
            event,
            stream=stream.name,
            stream_uuid=stream.uuid,
            partitions=list(partitions) or "all",
            **facts,
        )
