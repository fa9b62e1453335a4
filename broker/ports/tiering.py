"""Tiering, as the broker sees it, and the broker, as tiering sees it."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass
from typing import Protocol

import pyarrow as pa

from broker.errors import HeadwaterError
from broker.model.ids import LeaseId, PartitionId
from broker.model.lineage import Lineage
from broker.model.offsets import Offset, OffsetRange
from broker.model.stream import Stream
from broker.ports.partition import (
    PartitionReader,
    SegmentInfo,
)


class TierSource(PartitionReader, Protocol):
    """What tiering may see of, and ask from, a partition this broker leads. Any thread."""

    @property
    def subject(self) -> str:
        """The partition's NATS subject, stored for rows without one of their own."""

    @property
    def cold_end(self) -> Offset:
        """First offset that the metadata does not know to be in the table."""

    @property
    def lineage(self) -> Lineage:
        """Whose history the log is: starts of leadership, this broker's own one last."""

    def segments(self) -> list[SegmentInfo]:
        """Return all local segments, oldest first; the last is the active one."""

    def seal_active(self) -> None:
        """Seal the active segment if it holds records, so that it can be shipped now."""

    def record_cold_end(self, cold_end: Offset) -> None:
        """Record in metadata that ``[.., cold_end)`` is in the table, read back and in the ledger.

        Local segments below it may be freed from now on, where no lease holds them.
        """

    def admit(self, lineage_id: str) -> None:
        """Hear that this leadership stands: it is claimed in the lake, as far as anybody knows.

        Does not block.
        """

    def refuse_writes(self, lineage_id: str, error: HeadwaterError) -> None:
        """Hear that this leadership is lost: it takes no more writes. Does not block."""


class TierCatalog(Protocol):
    """Which streams this broker tiers, and their partitions. Any thread."""

    def streams(self) -> list[Stream]:
        """Return the streams whose tiering is on."""

    def sources(self, stream: Stream) -> list[TierSource]:
        """Return the partitions of ``stream`` that this broker leads, by number."""

    def history(self, partition: PartitionId, *, refreshed: bool) -> tuple[Lineage, Offset]:
        """Return lineage and recorded cold end of any partition, as far as they are known here.

        ``refreshed``: as of now. Blocks then; raises UnavailableError when nobody can say.
        """

    def on_leading(self, callback: Callable[[Stream, TierSource], bool]) -> None:
        """Register a callback for "a leadership begins, or has slept" (any thread, quick).

        It returns whether the source will be told ``admit`` or ``refuse_writes``.
        """

    def on_sealed(self, callback: Callable[[Stream], None]) -> None:
        """Register a callback for "a segment of this stream was sealed" (any thread, quick)."""


@dataclass(frozen=True, slots=True, kw_only=True)
class TableState:
    """A stream's table at one version."""

    table_uri: str
    version: int | None  # None: no table yet
    ranges: Mapping[int, OffsetRange]  # partition -> [remote start, cold end)
    files_count: int
    files_bytes: int
    digest: str | None = None  # hex SHA-256 of the commit that made the version


@dataclass(frozen=True, slots=True, kw_only=True)
class TierStatus:
    """How far tiering is, for one partition."""

    partition: int
    cold: OffsetRange
    local_start: Offset
    high_watermark: Offset
    unshipped_bytes: int
    last_error: str | None
    last_shipped_us: int | None


@dataclass(frozen=True, slots=True, kw_only=True)
class HeldLease:
    """A lease that has not ended, as others see it."""

    lease_id: LeaseId
    owner: str
    taken_us: int  # no object that was in the table then, or came later, may be deleted
    expires_us: int


class RemoteLog(Protocol):
    """The cold tier as the broker sees it. Blocking; any thread."""

    def table_state(self, stream: Stream) -> TableState:
        """Load the newest table version.

        Raises:
            TableMismatchError, TableRolledBackError, RemoteTierUnavailableError.
        """

    def read(
        self, stream: Stream, partition: int, start: Offset, end: Offset, schema: pa.Schema
    ) -> Iterator[pa.RecordBatch]:
        """Yield the rows of ``[start, end)`` in offset order, from the newest table version.

        Raises:
            GapError, OverlapError, ObjectMissingError, ObjectCorruptError, TableMismatchError,
            RemoteTierUnavailableError.
        """

    def flush(self, stream: Stream, *, timeout_ms: int) -> list[TierStatus]:
        """Ship every committed record now; return when it is in the table."""

    def status(self, stream: Stream) -> list[TierStatus]:
        """Return how far each partition is."""

    def table_name_for(self, name: str, uuid: str, namespace: str) -> str:
        """Choose the table folder of a new stream: its name, or ``<name>-<uuid8>`` if taken."""
