"""The cold tier of a broker: its tables, and how far they reach according to the metadata."""

from __future__ import annotations

from collections.abc import Callable

import pyarrow as pa

from broker.core.metadata.commands import RecordColdEnd
from broker.errors import InvalidRequestError, RemoteTierUnavailableError
from broker.model.ids import PartitionId, PartitionNumber, StreamUuid
from broker.model.offsets import Offset
from broker.model.stream import Stream
from broker.model.tiering import StreamRemains, TableState, TierStatus
from broker.ports.tiering import ColdRows, RemoteLog
from broker.runtime.api.streams import Streams
from broker.runtime.metadata.metadata_log import WaitingMetadata


class ColdEnds:
    """The cold ends that the metadata has. Any thread."""

    def __init__(self, metadata: WaitingMetadata) -> None:
        """Read and write them in ``metadata``."""
        self._metadata = metadata

    def of(self, at: PartitionId) -> Offset:
        """Return the recorded cold end of a partition; 0 if none is recorded."""
        row = self._metadata.state.partition(at)
        return Offset(0) if row is None else row.cold_end

    def purged(self, at: PartitionId) -> Offset:
        """Return the end of the records of a partition that were deleted on purpose."""
        row = self._metadata.state.partition(at)
        return Offset(0) if row is None else row.purged_end

    def remote_start(self, at: PartitionId) -> Offset:
        """Return the first offset of a partition that remote retention has left; 0: all."""
        row = self._metadata.state.partition(at)
        return Offset(0) if row is None else row.remote_start

    def record(self, at: PartitionId, end: Offset) -> None:
        """Record a cold end durably, if it is higher than the recorded one. Blocks."""
        if end > self.of(at):
            command = RecordColdEnd(stream_uuid=at.stream_uuid, partition=at.number, cold_end=end)
            self._metadata.propose(command)


class ColdTier:
    """Implements ``ColdTierApi``. Any thread; blocks while it asks the lake."""

    def __init__(self, streams: Streams, ends: ColdEnds) -> None:
        """Begin without a lake; :meth:`attach` adds it."""
        self._streams = streams
        self._ends = ends
        self._remote: RemoteLog | None = None

    def attach(self, remote: RemoteLog) -> None:
        """Use this lake; call before the broker starts."""
        self._remote = remote

    def table_name(self, stream: Stream) -> str:
        """Return the name of a new stream's table; see ``RemoteLog.table_name_for``."""
        if self._remote is None:
            return stream.name
        return self._remote.table_name_for(stream.name, stream.uuid, stream.namespace)

    def table_state(self, stream: Stream) -> TableState:
        """Return the newest state of a stream's table; an empty one if it has no table.

        Raises:
            RemoteTierUnavailableError: records are in a table, and this broker has no lake.
        """
        if self._remote is None and stream in self._streams.in_tables():
            raise RemoteTierUnavailableError(
                f"records of {stream.name!r} are in its table, and this broker runs without a "
                "lake; set lake.uri",
                stream=stream.name,
            )
        if self._remote is None or not stream.config.tiering:
            return TableState(table_uri="", version=None, ranges={}, files_count=0, files_bytes=0)
        return self._remote.table_state(stream)

    def read(
        self, name: str, partition: int, start: Offset, end: Offset, schema: pa.Schema
    ) -> ColdRows:
        """See ``ColdTierApi.read``."""
        return self._lake().read(self._streams.get(name), partition, start, end, schema)

    def offset_at(
        self, name: str, partition: int, start: Offset, end: Offset, timestamp_us: int
    ) -> Offset | None:
        """See ``ColdTierApi.offset_at``."""
        stream = self._streams.get(name)
        return self._lake().offset_at(stream, partition, start, end, timestamp_us)

    def status(self, name: str) -> list[TierStatus]:
        """See ``ColdTierApi.status``."""
        return self._lake().status(self._streams.get(name))

    def remains(self, name: str, stream_uuid: StreamUuid) -> StreamRemains:
        """See ``ColdTierApi.remains``."""
        known = self._streams.knows(name, stream_uuid)
        if known is None:
            return StreamRemains(present=False, deleted=False, shipping=False)
        present, deleted = known
        shipping = self._remote is not None and self._remote.is_shipping(stream_uuid)
        return StreamRemains(present=present, deleted=deleted, shipping=shipping)

    def table_start(self, name: str, partition: int) -> Offset | None:
        """See ``ColdTierApi.table_start``; reads the table, because another broker may feed it."""
        stream = self._streams.get(name)
        found = self.table_state(stream).ranges.get(partition)
        if not found:
            return None
        at = PartitionId(stream.uuid, PartitionNumber(partition))
        return max(found.start, self._ends.remote_start(at))

    def learn_end(self, name: str, partition: int) -> None:
        """Record how far the table reaches, as the table itself says.

        The metadata may be behind: a leader may have died between its commit to the table and its
        note in the metadata. Blocks.

        Raises:
            RemoteTierUnavailableError: the table cannot be asked.
            CorruptDataError: the table is damaged or not of this stream.
        """
        stream = self._streams.with_partition(name, partition)
        found = self.table_state(stream).ranges.get(partition)
        if found is not None:
            self._ends.record(PartitionId(stream.uuid, PartitionNumber(partition)), found.end)

    def flush(
        self, name: str, *, timeout_ms: int, is_wanted: Callable[[], bool] = lambda: True
    ) -> list[TierStatus]:
        """See ``ColdTierApi.flush``."""
        stream = self._streams.get(name)
        if not stream.config.tiering:
            raise InvalidRequestError(f"tiering is off for stream {name!r}", stream=name)
        return self._lake().flush(stream, timeout_ms=timeout_ms, is_wanted=is_wanted)

    def _lake(self) -> RemoteLog:
        if self._remote is None:
            raise RemoteTierUnavailableError("this broker runs without a lake; set lake.uri")
        return self._remote
