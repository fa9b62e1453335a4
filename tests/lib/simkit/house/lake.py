"""The lake of a house: the product's tables in a real folder, behind a store that misbehaves.

Objects, ledger, claims and Delta log are the product's, written by the product and delta-rs. A
broker that cannot reach the store gets the error that S3 would give; while the store is shaky, an
object may be stored after its writer was told that the time was up, the answer is lost, or an
object is accepted and not stored.
"""

from __future__ import annotations

import shutil
import tempfile
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any, Final, TypeVar
from zlib import crc32

from broker.errors import RemoteTierUnavailableError
from broker.model.offsets import Offset, OffsetRange
from broker.model.stream import Stream
from checkkit.readings import Row
from simkit.house.process import Machine
from simkit.network.world import World
from simkit.tier.lab import forget_proofs
from tiering.read.certify import require_sound
from tiering.read.lake import Lake
from tiering.read.reader import read_rows
from tiering.read.verify import verify_table
from tiering.store.location import StoreConfig
from tiering.store.object_store import ObjectInfo, ObjectStore
from tiering.store.opening import open_store
from tiering.table.accounts import accounts
from tiering.table.commit_files import file_of
from tiering.table.delta_table import DeltaStreamTable
from tiering.table.expiries import Expiries
from tiering.table.table import TableSnapshot, table_path
from tiering.tiering import Tiering

CLUSTER: Final = "house"
_LATE_MS_MAX: Final = 2_000
_MEMORY: Final = Path("/dev/shm")

_T = TypeVar("_T")


class HouseLake:
    """The folder, and the brokers that reach it."""

    def __init__(self, world: World) -> None:
        self.world = world
        folder = _MEMORY if _MEMORY.is_dir() else None
        self.root = Path(tempfile.mkdtemp(prefix="headwater-house-", dir=folder))
        self._config = StoreConfig.from_env(str(self.root))
        self.away: set[str] = set()  # machines that do not reach it
        self.shaky = 0.0  # how many of the writes end in an answer that is lost, or late
        forget_proofs()

    def close(self) -> None:
        """Remove the folder."""
        shutil.rmtree(self.root, ignore_errors=True)

    def of(self, machine: Machine) -> Lake:
        """Return the lake as one process reaches it."""
        return _ReachedLake(self, machine, ReachedStore(self, machine, open_store(self._config)))

    def require(self, machine: Machine, what: str) -> None:
        """Raise if the machine does not reach the lake."""
        if machine.name in self.away:
            self.world.note("lake out of reach")
            raise RemoteTierUnavailableError(f"{what}: 503", key=what)

    # ------------------------------------------------------------------ for the judge

    def snapshot(self, stream: Stream) -> TableSnapshot | None:
        """Return a stream's newest table version, whatever the brokers reach."""
        return self._table(stream).find()

    def rows(
        self, stream: Stream, partition: int, wanted: OffsetRange, *, version: int | None = None
    ) -> list[Row]:
        """Read rows of a table version, or the newest, proved as every read of the product is."""
        table = self._table(stream)
        snapshot = table.find() if version is None else table.snapshot(version)
        assert snapshot is not None, "rows of no table were asked for"
        require_sound(snapshot, table.store, partition, wanted)
        found = table_rows(read_rows(snapshot, table.store, partition, wanted, sparse=True))
        return self.completed(stream, partition, found, wanted, snapshot.whole_start(partition))

    def served(
        self, tiering: Tiering, stream: Stream, partition: int, wanted: OffsetRange
    ) -> list[Row]:
        """Read rows as a broker serves them from the table; see :meth:`completed`."""
        found = tiering.read(stream, partition, wanted.start, wanted.end)
        return self.completed(stream, partition, table_rows(found.rows), wanted, found.whole_start)

    def completed(
        self, stream: Stream, partition: int, found: list[Row], wanted: OffsetRange, whole: Offset
    ) -> list[Row]:
        """Return rows of a table with those that key compaction has removed, as they were shipped.

        Checks that below ``whole`` exactly the last record of each key is there.
        """
        end = min(wanted.end, whole)
        if end <= wanted.start:
            return found
        shipped = self.shipped_rows(stream, partition, OffsetRange(wanted.start, whole))
        last = {key_of(row.fingerprint): row for row in shipped}
        below = [row for row in shipped if row.offset < end]
        due = [row for row in below if last[key_of(row.fingerprint)] == row]
        left = [row for row in found if row.offset < end]
        assert left == due, f"{partition}: {left} are left of {below}, and not {due}"
        return [*below, *found[len(left) :]]

    def whole_start(self, stream: Stream, partition: int) -> Offset:
        """Return from where on the newest table version has each record."""
        snapshot = self.snapshot(stream)
        return Offset(0) if snapshot is None else snapshot.whole_start(partition)

    def shipped_rows(self, stream: Stream, partition: int, wanted: OffsetRange) -> list[Row]:
        """Read rows from the objects as they were shipped, whether a version still has them."""
        if not wanted:
            return []
        table = self._table(stream)
        found = table.find()
        assert found is not None, "rows of no table were asked for"
        snapshot = replace(found, sparse={})  # before any key compaction
        entries = accounts(snapshot, table.store, partition, wanted)
        held = OffsetRange(entries[0].start, entries[-1].end)
        shipped = replace(snapshot, files=tuple(map(file_of, entries)), ranges={partition: held})
        return table_rows(read_rows(shipped, table.store, partition, wanted))

    def noted_end(self, stream: Stream, partition: int) -> int:
        """Return the end of the newest expiry that is noted beside the table."""
        last = Expiries(self._table(stream).store).last(partition)
        return 0 if last is None else last.end

    def require_expiries(self, stream: Stream, partition: int, start: Offset) -> None:
        """Check that expiries beside the table explain everything below its start."""
        Expiries(self._table(stream).store).entries(partition, start)

    def verify(self, stream: Stream) -> None:
        """Compare every row of the table with the digests of its ledger."""
        table = self._table(stream)
        snapshot = table.find()
        if snapshot is not None:
            verify_table(snapshot, table.store)

    def _table(self, stream: Stream) -> DeltaStreamTable:
        store = open_store(self._config).under(table_path(stream.namespace, stream.table_name))
        return DeltaStreamTable(store, stream=stream, cluster=CLUSTER)


def key_of(value: bytes) -> bytes:
    """Return the key of a record, if its life has keys: one of three."""
    return b"k%d" % (crc32(value) % 3)


def table_rows(batches: Iterator[Any]) -> list[Row]:
    """Return the rows of a read of a table, each known by its value."""
    rows: list[Row] = []
    for batch in batches:
        columns = batch.select(["offset", "value", "leader_epoch", "timestamp"]).to_pydict()
        for offset, value, epoch, time in zip(*columns.values(), strict=True):
            rows.append(Row(offset, value, epoch, round(time.timestamp() * 1_000_000)))
    return rows


class _ReachedLake(Lake):
    """The lake of one process."""

    def __init__(self, room: HouseLake, machine: Machine, store: ReachedStore) -> None:
        super().__init__(store, cluster=CLUSTER)
        self._room, self._machine = room, machine

    def with_deadline(self, seconds: float) -> Lake:
        """Return itself: no time passes in a call."""
        return self

    def table(
        self, stream: Stream, *, recorded: Callable[[], Mapping[int, int]] = dict
    ) -> DeltaStreamTable:
        """Return a stream's table; delta-rs reaches the folder as the machine does."""
        table = super().table(stream, recorded=recorded)
        library = table._library
        library.guarded = self._guard(library.guarded)  # type: ignore[method-assign]
        return table

    def _guard(self, guarded: Callable[..., _T]) -> Callable[..., _T]:
        room = self._room

        def reached(call: Callable[[], Any], what: str, version: int | None = None) -> Any:
            room.require(self._machine, what)
            found = guarded(call, what, version)
            if what not in ("open", "update") and room.world.chance(room.shaky):
                room.world.note("answer of a commit lost")
                raise RemoteTierUnavailableError(f"{what}: timed out")
            return found

        return reached


class ReachedStore:
    """Implements ``ObjectStore`` for one process."""

    def __init__(self, room: HouseLake, machine: Machine, store: ObjectStore) -> None:
        self._room, self._machine, self._store = room, machine, store

    @property
    def config(self) -> StoreConfig:
        """See the port."""
        return self._store.config

    def put_if_absent(self, key: str, body: Any, *, crc32c: int) -> ObjectInfo | None:
        """See the port."""
        room, world = self._room, self._room.world
        room.require(self._machine, key)
        if key.endswith(".parquet") and world.chance(room.shaky / 4):
            world.note("object accepted and not stored")
            return ObjectInfo(key, len(body))
        if not world.chance(room.shaky):
            return self._store.put_if_absent(key, body, crc32c=crc32c)
        data = bytes(body)
        if world.chance(0.5):
            world.note("object stored late")
            world.at(world.rng.randrange(_LATE_MS_MAX), self._put_late, key, data, crc32c)
        else:
            world.note("answer of a PUT lost")
            self._store.put_if_absent(key, data, crc32c=crc32c)
        raise RemoteTierUnavailableError(f"{key}: timed out", key=key)

    def _put_late(self, key: str, data: bytes, crc32c: int) -> None:
        self._store.put_if_absent(key, data, crc32c=crc32c)

    def get(self, key: str, start: int | None = None, end: int | None = None) -> bytes:
        """See the port."""
        self._room.require(self._machine, key)
        return self._store.get(key, start, end)

    def head(self, key: str) -> ObjectInfo:
        """See the port."""
        self._room.require(self._machine, key)
        return self._store.head(key)

    def list(self, prefix: str, *, start_after: str = "") -> Iterator[ObjectInfo]:
        """See the port."""
        self._room.require(self._machine, prefix)
        return self._store.list(prefix, start_after=start_after)

    def make_durable(self, keys: Sequence[str]) -> None:
        """See the port."""
        self._room.require(self._machine, "sync")
        self._store.make_durable(keys)

    def under(self, path: str) -> ReachedStore:
        """See the port."""
        return ReachedStore(self._room, self._machine, self._store.under(path))
