"""The cluster's streams: create, delete and look up."""

from __future__ import annotations

import threading
import uuid
from collections.abc import Callable
from dataclasses import dataclass
from typing import Final

import structlog

from broker.core.metadata.commands import CreateStream, DeleteStream
from broker.errors import UnknownPartitionError, UnknownStreamError
from broker.model.ids import BrokerId, StreamUuid
from broker.model.stream import Stream, StreamConfig
from broker.ports.system import Clock
from broker.runtime.cluster.membership import CONFIRM_MS, Membership
from broker.runtime.hosted_partitions import HostedPartitions
from broker.runtime.metadata.metadata_log import WaitingMetadata

_OPEN_S: Final = 10.0  # for the replicas of a new stream that are here
_log = structlog.get_logger(__name__)

TableName = Callable[[str, StreamUuid, str], str]  # of a new stream: name, uuid, namespace


@dataclass(frozen=True, slots=True, kw_only=True)
class StreamDefaults:
    """What a stream gets that is created at this broker."""

    leader: BrokerId  # where a broker alone places it
    namespace: str
    table_name: TableName


class Streams:
    """Implements ``StreamsApi``. Any thread."""

    def __init__(
        self,
        metadata: WaitingMetadata,
        membership: Membership,
        clock: Clock,
        *,
        defaults: StreamDefaults,
        replicas: HostedPartitions,
        follow: Callable[[], None],
    ) -> None:
        """Call ``follow`` after each change: it opens or closes ``replicas``, and blocks."""
        self._metadata = metadata
        self._membership = membership
        self._clock = clock
        self._defaults = defaults
        self._replicas = replicas
        self._follow = follow
        self._change = threading.RLock()  # one stream is created or deleted at a time

    def create(self, name: str, config: StreamConfig) -> Stream:
        """See ``StreamsApi.create``. Replicas are placed by the newest metadata."""
        self._metadata.barrier(timeout_ms=CONFIRM_MS)
        config = self._membership.resolve(config)
        defaults = self._defaults
        with self._change:
            present = self._metadata.state.streams.get(name)
            stream_uuid = StreamUuid(present.uuid if present else str(uuid.uuid4()))
            table_name = (
                present.table_name
                if present
                else defaults.table_name(name, stream_uuid, defaults.namespace)
            )
            command = CreateStream(
                stream=Stream(
                    name=name,
                    uuid=stream_uuid,
                    config=config,
                    created_us=self._clock.now_us(),
                    table_name=table_name,
                    namespace=defaults.namespace,
                ),
                leader=defaults.leader,
                assignment=self._membership.place(config),
                min_isr=max(1, config.min_isr),
            )
            reply = self._metadata.propose(command)
            self._follow()
            if self._replicas.wait_for(stream_uuid, _OPEN_S):
                self._follow()
            if reply["created"]:
                _log.info("stream_created", stream=name, stream_uuid=stream_uuid)
            return self.get(name)

    def delete(self, name: str) -> Stream:
        """See ``StreamsApi.delete``."""
        with self._change:
            stream = self.get(name)
            command = DeleteStream(name=name, expected_uuid=stream.uuid)
            self._metadata.propose(command)
            self._follow()
            _log.info("stream_deleted", stream=name, stream_uuid=stream.uuid)
            return stream

    def get(self, name: str) -> Stream:
        """See ``StreamsApi.get``. What is not known here may have been made at another broker."""
        found = self._metadata.state.streams.get(name)
        if found is None:
            self._metadata.barrier(timeout_ms=CONFIRM_MS)
            found = self._metadata.state.streams.get(name)
        if found is None:
            known = sorted(self._metadata.state.streams)
            hint = f"there are {', '.join(known[:20])}" if known else "there are none yet"
            raise UnknownStreamError(
                f"no stream is named {name!r}; {hint}", stream=name, known=known[:20]
            )
        return found

    def with_partition(self, name: str, partition: int) -> Stream:
        """Return a stream that has this partition.

        Raises:
            UnknownStreamError, UnknownPartitionError, UnavailableError: see ``StreamsApi.get``.
        """
        stream = self.get(name)
        if not 0 <= partition < stream.config.partitions:
            raise UnknownPartitionError(
                f"stream {name!r} has partitions 0 to {stream.config.partitions - 1}, "
                f"not {partition}",
                stream=name,
                partition=partition,
                partitions_count=stream.config.partitions,
            )
        return stream

    def all(self) -> list[Stream]:
        """Return all streams by name."""
        state = self._metadata.state
        return [state.streams[name] for name in sorted(state.streams)]

    def in_tables(self) -> list[Stream]:
        """Return the streams of which the metadata says that records are in a table, by name."""
        rows = self._metadata.state.partitions
        return [
            stream
            for stream in self.all()
            if any(row.cold_end > 0 for row in rows.get(stream.uuid, ()))
        ]
