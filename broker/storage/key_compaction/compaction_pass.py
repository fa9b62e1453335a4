"""One pass of key compaction over a log, in small steps that a pump takes one by one.

The pass reads the chosen segments twice. First it notes the last record of each key. Then, the
oldest segment first, it rewrites each segment that loses a record. The
segments are exchanged in order, so a superseded record is removed, durably, before the tombstone
that superseded it.
If the keys do not fit into memory, the pass does both for one part of the keys after the other.

The pass only reads the log; it never writes to a segment. The log's owner exchanges the files.
"""

from __future__ import annotations

from collections.abc import Collection, Generator, Iterator, Sequence
from dataclasses import dataclass, field
from typing import Final, Protocol

import numpy as np
import numpy.typing as npt
import pyarrow as pa
import pyarrow.compute as pc

from broker.codec.key_hash import Hashes, hash_keys
from broker.codec.key_map import KeyMap, in_parts
from broker.codec.record_batch import BatchHeader, decode_body, offsets_of
from broker.codec.sparse import dense_batches
from broker.model.offsets import Offset
from broker.ports.partition import StoredBatch
from broker.storage.key_compaction.rewriter import Replacement, SegmentRewriter

MAP_BYTES_MAX: Final = 64 * 1024 * 1024
_PIECE_BYTES: Final = 1024 * 1024  # read in one step
_RUN_BYTES: Final = 1024 * 1024  # of small neighbouring batches that are decoded together


@dataclass(frozen=True, slots=True)
class ChosenSegment:
    """A segment that a pass compacts; ``drops_tombstones``: even those that are keys' last."""

    base_offset: Offset
    end_offset: Offset
    drops_tombstones: bool


class CompactedLog(Protocol):
    """The methods of ``PartitionLog`` that a pass uses. Any thread."""

    def read(self, start: Offset, end: Offset, *, bytes_max: int) -> list[StoredBatch]:
        """Return checked batches; see ``PartitionReader.read``."""

    def rewriter(self, base_offset: Offset, retried: Collection[int], /) -> SegmentRewriter:
        """Return the writer of a replacement for the sealed segment at ``base_offset``.

        Raises:
            OffsetOutOfRangeError: it was freed or cut.
        """


@dataclass(slots=True)
class PassCounts:
    """What a pass has done so far."""

    read_bytes: int = 0
    removed_count: int = 0
    parts: int = 1
    tombstones: set[Offset] = field(default_factory=set)  # bases of segments that still have some


@dataclass(frozen=True, slots=True)
class _Neighbours:
    """Neighbouring batches of one shape, decoded: their records' offsets and columns."""

    headers: list[BatchHeader]
    offsets: npt.NDArray[np.int64]
    columns: pa.RecordBatch
    keyed: npt.NDArray[np.int64] = field(repr=False)  # the rows that have a key
    hashes: tuple[Hashes, Hashes] = field(repr=False)  # of these rows


class CompactionPass:
    """Yields a replacement for each segment that loses records. Single thread."""

    def __init__(
        self,
        log: CompactedLog,
        chosen: Sequence[ChosenSegment],
        *,
        retried: Collection[int],
        map_bytes_max: int = MAP_BYTES_MAX,
    ) -> None:
        """Prepare; ``retried`` are the base offsets of batches that producers may send again."""
        self._log = log
        self._chosen = chosen
        self._retried = retried
        self._map_bytes_max = map_bytes_max
        self._rewriter: SegmentRewriter | None = None
        self.counts = PassCounts()

    def steps(self) -> Generator[Replacement | None, None, None]:
        """Do the pass; None after each small step.

        After a replacement is yielded, it must be in its place before the next step. If it is not,
        end the pass: a tombstone may be removed only after the records that it superseded.

        Raises:
            SegmentCorruptError: a segment is damaged; nothing of it was changed.
            OffsetOutOfRangeError: a segment was freed or cut meanwhile.
            OSError: the disk failed, or is full.
        """
        try:
            yield from in_parts(
                self._map_bytes_max, self._note, self._write_all, split=self._count_a_part
            )
        finally:
            if self._rewriter is not None:
                self._rewriter.abandon()
                self._rewriter = None

    def _note(self, known: KeyMap) -> Iterator[None]:
        for one in self._chosen:
            for run in self._runs(one):
                if run is not None and len(run.keyed):
                    here = known.is_here(run.hashes)
                    first, second = run.hashes
                    known.add((first[here], second[here]), run.offsets[run.keyed[here]])
                yield None

    def _count_a_part(self) -> None:
        self.counts.parts += 1

    def _write_all(self, known: KeyMap) -> Iterator[Replacement | None]:
        for one in self._chosen:
            yield from self._write(one, known)

    def _write(self, one: ChosenSegment, known: KeyMap) -> Iterator[Replacement | None]:
        """Rewrite the segment if it loses a record."""
        if not (yield from self._loses_any(one, known)):
            return
        self._rewriter = rewriter = self._log.rewriter(one.base_offset, self._retried)
        for run in self._runs(one):
            if run is not None:
                rewriter.add(run.headers, run.offsets, run.columns, self._kept(one, run, known))
            yield None
        replacement = rewriter.finish()
        self._rewriter = None
        self.counts.removed_count += replacement.removed_count
        yield replacement

    def _loses_any(self, one: ChosenSegment, known: KeyMap) -> Generator[None, None, bool]:
        for run in self._runs(one):
            if run is not None and not self._kept(one, run, known).all():
                return True
            yield None
        return False

    def _kept(self, one: ChosenSegment, run: _Neighbours, known: KeyMap) -> npt.NDArray[np.bool_]:
        """Tell for each record whether it stays: the last of its key, or without a key."""
        keep = np.ones(len(run.offsets), dtype=bool)
        if not len(run.keyed):
            return keep
        here = known.is_here(run.hashes)
        first, second = run.hashes
        rows = run.keyed[here]
        last = known.last_of((first[here], second[here]))
        newest = last == run.offsets[rows]
        dead = newest & _tombstones(run.columns)[rows]
        if one.drops_tombstones:
            newest &= ~dead
        elif dead.any():
            self.counts.tombstones.add(one.base_offset)
        keep[rows] = newest
        return keep

    def _runs(self, one: ChosenSegment) -> Iterator[_Neighbours | None]:
        """Yield a segment's batches in decoded runs; None between two reads."""
        at = one.base_offset
        while at < one.end_offset:
            batches = self._log.read(at, one.end_offset, bytes_max=_PIECE_BYTES)
            self.counts.read_bytes += sum(batch.header.size for batch in batches)
            at = batches[-1].header.end_offset
            for group in self._groups(batches):
                yield _decoded(group)
            yield None

    def _groups(self, batches: Sequence[StoredBatch]) -> Iterator[list[StoredBatch]]:
        group: list[StoredBatch] = []
        size = 0
        for batch in batches:
            if group and (size >= _RUN_BYTES or not self._continues(group[-1], batch)):
                yield group
                group, size = [], 0
            group.append(batch)
            size += batch.header.size
        yield group

    def _continues(self, one: StoredBatch, other: StoredBatch) -> bool:
        before, after = one.header, other.header
        return (
            before.columns == after.columns
            and before.sparse == after.sparse
            and before.codec == after.codec
            and before.leader_epoch == after.leader_epoch
            and before.base_offset not in self._retried
            and after.base_offset not in self._retried
        )


def _tombstones(columns: pa.RecordBatch) -> npt.NDArray[np.bool_]:
    """Tell for each record whether it has no value."""
    index = columns.schema.get_field_index("value")
    if index < 0:
        return np.ones(columns.num_rows, dtype=bool)
    return np.asarray(pc.is_null(columns.column(index)), dtype=bool)


def _decoded(group: Sequence[StoredBatch]) -> _Neighbours:
    headers = [batch.header for batch in group]
    bodies = [decode_body(batch.header, batch.body) for batch in group]
    if headers[0].sparse:
        parts = [offsets_of(header, body) for header, body in zip(headers, bodies, strict=True)]
        offsets = np.concatenate(parts)
    else:
        offsets = np.arange(headers[0].base_offset, headers[-1].end_offset, dtype=np.int64)
    columns = dense_batches(headers[0], bodies)
    index = columns.schema.get_field_index("key")
    if index < 0:
        nothing = np.empty(0, np.uint64)
        return _Neighbours(headers, offsets, columns, np.empty(0, np.int64), (nothing, nothing))
    keys = columns.column(index)
    if keys.null_count:
        keyed = np.flatnonzero(np.asarray(pc.is_valid(keys), dtype=bool))
        keys = keys.drop_null()
    else:
        keyed = np.arange(len(offsets))
    return _Neighbours(headers, offsets, columns, keyed, hash_keys(keys))
