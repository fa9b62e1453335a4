"""Chooses the tier when a task reads: the files of the table, or the log of the broker.

Records below the cold end are in files that any process can read without load on the broker. So a
slice is read from files if the broker's disk may not have it any more, or if the slice is long
enough to be worth opening files. The rest comes from the broker by Flight. Both tiers give the same
rows at the same offsets, bit for bit.

Without credentials in its environment, a task reads by keys that the broker gives out, and asks for
others before they end (headwater/reads/table_access.py).

OPTIMIZE and VACUUM exchange files without changing rows. If a file is missing, the read tries a
newer version of the table, once. If this process cannot reach the store but the broker can, the
broker reads the table and sends the rows.
"""

from __future__ import annotations

import logging
import threading
from collections.abc import Iterator
from dataclasses import dataclass
from typing import TYPE_CHECKING, Final

from broker.errors import (
    EncryptionKeyError,
    InvalidConfigError,
    ObjectMissingError,
    RemoteTierUnavailableError,
    TableMismatchError,
    UnavailableError,
)
from broker.model.ids import StreamUuid
from broker.model.offsets import Offset, OffsetRange
from spark_jobs.source.partitions import OffsetSlice, TableRef
from spark_jobs.source.stream_holds import find_table

if TYPE_CHECKING:
    import pyarrow as pa

    from headwater.client import Client
    from tiering.table.delta_table import DeltaStreamTable
    from tiering.table.table import TableSnapshot

# Opening files costs a listing and some footers; for fewer records the broker's disk is faster.
FILES_RECORDS_MIN: Final = 50_000
_TABLES_MAX: Final = 16

_log = logging.getLogger("headwater.read")


@dataclass(frozen=True, slots=True)
class ColdFiles:
    """A version of a table whose files hold a prefix of the slice: ``[start, end)``."""

    table: DeltaStreamTable
    snapshot: TableSnapshot
    start: Offset
    end: Offset

    def read(self, partition: int, schema: pa.Schema) -> Iterator[pa.RecordBatch]:
        """Yield the rows, every offset once and in order; blocks on the store."""
        from tiering.read.certify import require_sound  # noqa: PLC0415  (it loads pyarrow)
        from tiering.read.reader import read_rows  # noqa: PLC0415

        wanted = OffsetRange(self.start, self.end)
        require_sound(self.snapshot, self.table.store, partition, wanted)
        return read_rows(self.snapshot, self.table.store, partition, wanted, schema)


class OpenTables:
    """The tables that this process has opened, by URI and keyring.

    Any thread; one load at a time.
    """

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._tables: dict[tuple[str, str], tuple[DeltaStreamTable, TableSnapshot]] = {}
        self._refs: dict[StreamUuid, TableRef] = {}

    def ref(self, client: Client, stream: str, uuid: StreamUuid) -> TableRef | None:
        """Return the location of a stream's table; ask the broker once. None without a table."""
        with self._lock:
            known = self._refs.get(uuid)
        if known is None:
            known = find_table(client, stream, uuid)
            if known is not None:
                with self._lock:
                    self._refs[uuid] = known
        return known

    def known(
        self, ref: TableRef, keyring_file: str = ""
    ) -> tuple[DeltaStreamTable, TableSnapshot] | None:
        """Return a table and the version that was loaded last; makes no request."""
        with self._lock:
            return self._tables.get((ref.uri, keyring_file))

    def newest(
        self, client: Client, stream: str, ref: TableRef, uuid: StreamUuid, keyring_file: str = ""
    ) -> tuple[DeltaStreamTable, TableSnapshot]:
        """Return a table and its newest version; ``keyring_file`` has the keys of its files.

        Raises:
            AccessError: the client may not consume the stream, so it gets no keys for the table.
            ObjectMissingError: this process finds no table in the store.
            TableMismatchError: the table belongs to another stream.
            RemoteTierUnavailableError, InvalidConfigError: the store cannot be reached.
        """
        from headwater.reads.table_access import location_of  # noqa: PLC0415  (it loads delta-rs)
        from tiering.read.lake import Lake  # noqa: PLC0415  (as above)

        location = location_of(client, ref.uri, stream, uuid, keyring_file=keyring_file)
        at = ref.uri, keyring_file
        with self._lock:
            held = self._tables.get(at)
            table = (
                Lake.open(location, cluster=ref.cluster).table_at(ref.uri)
                if held is None
                else held[0]
            )
            snapshot = table.snapshot()
            if snapshot.stream_uuid != uuid:
                raise TableMismatchError(
                    f"{ref.uri} belongs to stream {snapshot.stream_uuid}, not to {uuid}",
                    expected=uuid,
                    found=snapshot.stream_uuid,
                )
            if held is None and len(self._tables) >= _TABLES_MAX:
                self._tables.pop(next(iter(self._tables)))
            self._tables[at] = table, snapshot
            return table, snapshot


TABLES: Final = OpenTables()


class Tiers:
    """Chooses the tier for the pieces of one slice. One thread."""

    def __init__(
        self,
        client: Client,
        stream: str,
        uuid: StreamUuid,
        table: TableRef | None,
        *,
        tables: OpenTables = TABLES,
        keyring_file: str = "",
    ) -> None:
        self._keyring_file = keyring_file
        self._client = client
        self._stream = stream
        self._uuid = uuid
        self._ref = table
        self._tables = tables
        self._renewed_from: int | None = None
        self._learnt = False  # whether the data keys were asked for again
        self._left_to_broker: int | None = None  # where a short piece began that the broker got

    def cold(self, piece: OffsetSlice) -> ColdFiles | None:
        """Return the files for a prefix of the piece; None if the broker should send the rows.

        A short piece is left to the broker at once: to ask which tier has it would cost as much as
        the read. If the broker does not answer, the second call chooses as for long pieces.

        Raises:
            UnavailableError: the broker does not answer, and the files lack the piece's start.
        """
        if piece.records_count < FILES_RECORDS_MIN and piece.start != self._left_to_broker:
            self._left_to_broker = piece.start
            return None
        if self._ref is not None and piece.records_count >= FILES_RECORDS_MIN:
            known = self._tables.known(self._ref, self._keyring_file)
            files = None if known is None else self._prefix(*known, piece)
            if files is not None and files.end == piece.end:
                return files
        try:
            worth = self._cold_end(piece)
        except RemoteTierUnavailableError:
            return None  # a broker without a lake has all records on its disk
        except UnavailableError:
            files = None if self._ref is None else self._newest(piece)
            if files is None:
                raise
            return files
        return None if worth is None else self._newest(piece, through=worth)

    def renew(self, files: ColdFiles, error: ObjectMissingError) -> None:
        """Load a newer version after a file was missing; raises ``error`` if there is none."""
        if self._renewed_from == files.snapshot.version or self._ref is None:
            raise error
        self._renewed_from = files.snapshot.version
        _, snapshot = self._load(self._ref)
        if snapshot.version == files.snapshot.version:
            raise error
        _log.info(
            "table_moved_on stream=%s from=%d to=%d: %s",
            self._stream,
            files.snapshot.version,
            snapshot.version,
            error,
        )

    def learn(self, files: ColdFiles, error: EncryptionKeyError) -> None:
        """Ask for the stream's data keys, once, after a key was missing; or raise ``error``.

        A rotation may have wrapped them anew since this process opened the table.
        """
        from headwater.reads.table_access import with_data_keys  # noqa: PLC0415  (it loads delta-rs)
        from tiering.store.table_keys import keys_at  # noqa: PLC0415  (it loads pyarrow)

        if self._learnt or error.retriable:
            raise error
        self._learnt = True
        keys_at(with_data_keys(self._client, files.table.store.config, self._stream, self._uuid))

    def _cold_end(self, piece: OffsetSlice) -> Offset | None:
        """Ask the broker up to which offset files should be read; None for no files."""
        for status in self._client.tier_status(self._stream):
            if status.partition == piece.partition:
                end = min(piece.end, status.cold.end)
                if end <= piece.start:
                    return None
                local = piece.start >= status.local_start
                return None if local and end - piece.start < FILES_RECORDS_MIN else end
        return None

    def _newest(self, piece: OffsetSlice, through: Offset | None = None) -> ColdFiles | None:
        """Return files of the newest version, or of a loaded one that reaches ``through``.

        None if this process cannot reach them; then the broker is asked.
        """
        try:
            if self._ref is None:
                self._ref = self._tables.ref(self._client, self._stream, self._uuid)
            if self._ref is None:
                return None
            known = self._tables.known(self._ref, self._keyring_file)
            if through is not None and known is not None:
                files = self._prefix(*known, piece)
                if files is not None and files.end >= through:
                    return files
            return self._prefix(*self._load(self._ref), piece)
        except (UnavailableError, InvalidConfigError, ObjectMissingError, ImportError) as error:
            _log.warning("table_not_reached stream=%s, asking the broker: %s", self._stream, error)
            return None

    def _load(self, ref: TableRef) -> tuple[DeltaStreamTable, TableSnapshot]:
        return self._tables.newest(self._client, self._stream, ref, self._uuid, self._keyring_file)

    def _prefix(
        self, table: DeltaStreamTable, snapshot: TableSnapshot, piece: OffsetSlice
    ) -> ColdFiles | None:
        held = snapshot.ranges.get(piece.partition)
        if held is None or snapshot.stream_uuid != self._uuid or piece.start not in held:
            return None
        if snapshot.is_encrypted and not table.store.config.key_provider:
            return None  # the broker has the keys
        return ColdFiles(table, snapshot, piece.start, min(piece.end, held.end))
