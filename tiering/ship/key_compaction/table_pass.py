"""One pass of key compaction over the first files of a partition: what is left, as new objects.

The keys are read first. Of each key the last offset stays, in a table of bounded memory
(broker/codec/key_map.py); if the keys do not fit, they are read again, part by part. Then all rows
are read, proved against the digests of their ranges, and written without those that a later row of
the range supersedes. Nothing is committed here.
"""

from __future__ import annotations

import secrets
from collections.abc import Iterator
from dataclasses import replace
from typing import Final

import numpy as np
import numpy.typing as npt
import pyarrow as pa
import pyarrow.compute as pc

from broker.codec.key_hash import hash_keys
from broker.codec.key_map import KeyMap, Offsets, in_parts
from broker.codec.schema import ROW_SCHEMA
from broker.errors import RemoteTierUnavailableError
from broker.model.ids import PartitionId, PartitionNumber
from broker.model.offsets import Offset
from tiering.proof.range_proof import proved_rows
from tiering.read.reader import read_rows
from tiering.ship.key_compaction.compaction_plan import KeyCompactionPlan
from tiering.ship.segment_writer import SegmentPlace, WrittenSegment, check_segment, write_left
from tiering.store.object_store import ObjectStore
from tiering.table.accounts import accounts
from tiering.table.table import TableSnapshot

MAP_BYTES_MAX: Final = 64 * 1024 * 1024  # of the table of keys: more than a million
_KEYS: Final = pa.schema([ROW_SCHEMA.field(name) for name in ("offset", "key")])


class KeyCompactionPass:
    """Writes what is left of a plan's rows, in small steps. Single thread; blocks on the store."""

    def __init__(
        self,
        snapshot: TableSnapshot,
        store: ObjectStore,
        plan: KeyCompactionPlan,
        *,
        tombstones_end: Offset,
        object_bytes: int,
        map_bytes_max: int = MAP_BYTES_MAX,
    ) -> None:
        """Prepare; tombstones below ``tombstones_end`` go, too.

        ``tombstones_end`` is below the end of the plan: so the last record of the range stays.
        ``object_bytes``: this many bytes of rows become one object.
        """
        assert tombstones_end < plan.range.end, "a sparse range ends where a file ends"
        self.plan = plan
        self.snapshot = snapshot
        self.written: list[WrittenSegment] = []  # stored and read back
        self._store = store
        self._tombstones_end = tombstones_end
        self._map_bytes_max = map_bytes_max
        self._object_bytes = object_bytes
        self._is_last: npt.NDArray[np.bool_] = np.ones(
            plan.rows_count, dtype=bool
        )  # of its key, or without a key
        self._group: list[pa.RecordBatch] = []

    @property
    def left_count(self) -> int:
        """Number of rows in the objects."""
        return sum(one.entry.records_count for one in self.written)

    def steps(self) -> Iterator[None]:
        """Do the pass; the objects are complete, and the rows proved, when it ends.

        Ends early, without an object, if no row would go.

        Raises:
            CorruptDataError: the rows differ from the committed ones, or a file is damaged or gone.
            RemoteTierUnavailableError: the store does not answer.
        """
        yield from in_parts(self._map_bytes_max, self._note, self._mark)
        if self._tombstones_end == 0 and self._is_last.all():
            return
        yield from self._write()

    def _keyed(self) -> Iterator[tuple[Offsets, Offsets, pa.Array]]:
        """Yield of each batch the rows that have a key: their numbers, offsets and keys."""
        wanted, at = self.plan.range, 0
        for batch in read_rows(
            self.snapshot, self._store, self.plan.partition, wanted, _KEYS, sparse=True
        ):
            keyed = np.flatnonzero(np.asarray(pc.is_valid(batch.column("key")), dtype=bool))
            offsets = np.asarray(batch.column("offset"))[keyed]
            yield at + keyed, offsets, batch.column("key").drop_null()
            at += batch.num_rows

    def _note(self, known: KeyMap) -> Iterator[None]:
        for _, offsets, keys in self._keyed():
            first, second = hash_keys(keys)
            here = known.is_here((first, second))
            known.add((first[here], second[here]), offsets[here])
            yield None

    def _mark(self, known: KeyMap) -> Iterator[None]:
        for rows, offsets, keys in self._keyed():
            first, second = hash_keys(keys)
            here = known.is_here((first, second))
            last = known.last_of((first[here], second[here]))
            self._is_last[rows[here]] = last == offsets[here]
            yield None

    def _write(self) -> Iterator[None]:
        plan, at, size = self.plan, 0, 0
        entries = accounts(self.snapshot, self._store, plan.partition, plan.range)
        for rows in proved_rows(self.snapshot, self._store, plan.partition, plan.range, entries):
            left = rows.filter(pa.array(self._stays(rows, at)))
            at += rows.num_rows
            if left.num_rows:
                self._group.append(left)
                size += left.nbytes
            if size >= self._object_bytes:
                self._finish_object()
                size = 0
            yield None
        self._finish_object()

    def _stays(self, rows: pa.RecordBatch, at: int) -> npt.NDArray[np.bool_]:
        keep = self._is_last[at : at + rows.num_rows].copy()
        offsets = np.asarray(rows.column("offset"))
        dead = np.asarray(pc.is_null(rows.column("value")), dtype=bool)
        dead &= np.asarray(pc.is_valid(rows.column("key")), dtype=bool)
        keep &= ~(dead & (offsets < self._tombstones_end))
        return keep

    def _finish_object(self) -> None:
        if not self._group:
            return
        group, self._group = self._group, []
        start, end = group[0].column("offset")[0].as_py(), group[-1].column("offset")[-1].as_py()
        number = self.plan.partition
        name = f"{start:020}-{end + 1:020}-{secrets.token_hex(8)}.parquet"
        place = SegmentPlace(
            cluster=self.snapshot.cluster,
            partition=PartitionId(self.snapshot.stream_uuid, PartitionNumber(number)),
            subject="",  # unused: rows from the table carry their subjects
            path=f"partition={number}/{name}",
        )
        written = write_left(iter(group), place)
        entry = written.entry
        stored = self._store.put_if_absent(entry.path, written.body, crc32c=entry.crc32c)
        if stored is None:
            raise RemoteTierUnavailableError(
                f"{entry.path} exists already as another object", key=entry.path
            )
        check_segment(self._store.get(entry.path), entry)
        self.written.append(replace(written, body=b"", etag=stored.etag))
