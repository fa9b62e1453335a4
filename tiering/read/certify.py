"""The cheap proof of a table version: its counts and bounds, its commits, its objects.

The cost is one listing of the table's folder, and one request for each commit since the last proof
(proof/proofs.py). Offset columns are read only from files that interleave (after a foreign
OPTIMIZE) or have no statistics. proof/object_proof.py checks the objects. verify.py is the full
proof.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import replace

import numpy as np

from broker.errors import (
    ForeignHistoryError,
    InvalidCutError,
    ObjectCorruptError,
    ObjectMissingError,
    StreamRecreatedError,
    TableRolledBackError,
)
from broker.model.certificate import Hole, PartitionCertificate
from broker.model.cut import Cut
from broker.model.offsets import Offset, OffsetRange
from broker.model.purge import expired_error
from tiering.proof.coverage import require_contiguous, require_left, unproven_groups
from tiering.proof.object_proof import require_objects
from tiering.proof.proofs import prove
from tiering.read.listing import PROVED, data_objects
from tiering.read.parquet_source import Offsets, ParquetObject
from tiering.read.reader import require_whole
from tiering.store.object_store import ObjectInfo, ObjectStore
from tiering.table.delta_log import commit_digest
from tiering.table.expiries import Expiries
from tiering.table.table import DataFile, TableSnapshot


def certify_counts(
    snapshot: TableSnapshot | None, cut: Cut, store: ObjectStore, *, sparse: bool = False
) -> tuple[list[PartitionCertificate], int, int]:
    """Prove that the cold part of a cut is complete: each offset of ``[start, cold end)`` once.

    ``store`` holds the table (``table.store``). Returns the certificates of the cold part
    (``hot_count`` is 0 and ``end`` the cold end; the reader adds the tail), the number of files
    and their bytes. With ``sparse`` the caller can read a range of which key compaction has removed
    records: the certificate counts the rows that are left, and has the hole. Blocks.

    Raises:
        CompactedRangeError: records of the cut went by key compaction, and not ``sparse``.
        StreamRecreatedError: the table belongs to another incarnation of the stream.
        TableRolledBackError: the version's transactions differ from the cut's.
        ObjectMissingError, ObjectCorruptError: a file is missing, or has another size.
        GapError, OverlapError, TableMismatchError: offsets are missing, doubled, or were never
            committed; a commit is not ours (facts: version, operation, author).
        RemoteTierUnavailableError: the store does not answer.
    """
    if cut.table_version is None:
        return (
            [
                replace(_certificate(part.partition, part.start, part.start), holes=part.holes)
                for part in cut.partitions
            ],
            0,
            0,
        )
    if snapshot is None or snapshot.version != cut.table_version:
        raise InvalidCutError(
            f"the cut names table version {cut.table_version}, "
            f"but version {None if snapshot is None else snapshot.version} was loaded"
        )
    _check_identity(snapshot, cut, store)
    if not sparse:
        for part in cut.partitions:
            require_whole(snapshot, part.partition, OffsetRange(part.start, part.cold_stop))
    _require_files_and_commits(
        snapshot,
        store,
        {one.partition: OffsetRange(one.start, one.cold_stop) for one in cut.partitions},
    )
    certificates = []
    for part in cut.partitions:
        left = compacted_hole(snapshot, part.partition)
        certificates.append(
            replace(
                _certificate(part.partition, part.start, part.cold_end),
                cold_count=snapshot.records_count(part.partition),
                holes=(*part.holes, *([] if left is None else [left])),
            )
        )
    return certificates, len(snapshot.files), snapshot.files_bytes


def _require_files_and_commits(
    snapshot: TableSnapshot, store: ObjectStore, within: Mapping[int, OffsetRange]
) -> None:
    """Prove whole partitions and the objects of these ranges of them, unless a listing does."""
    objects = data_objects(snapshot, store)
    known = PROVED.proof_of(snapshot, within, objects)
    if known is not None and prove(snapshot, store) is known:
        return
    listed = require_files(snapshot, store, objects)
    for partition in within:
        prove_partition(snapshot, partition, store)
    proof = prove(snapshot, store)
    require_objects(proof, snapshot, store, within=within, listed=listed)
    if len(listed) == len(objects):  # every file is in the listing
        PROVED.put(snapshot, within, objects, proof)


def require_sound(
    snapshot: TableSnapshot, store: ObjectStore, partition: int, wanted: OffsetRange
) -> None:
    """Prove the commits of a version, and the objects of one range, before the range is read.

    The reader itself checks, row by row, that the range is complete. Errors as in certify_counts.
    """
    require_objects(prove(snapshot, store), snapshot, store, within={partition: wanted})


def prove_partition(snapshot: TableSnapshot, partition: int, store: ObjectStore) -> None:
    """Prove that one partition's files hold its range exactly; errors as in certify_counts."""
    files = [file for file in snapshot.files if file.partition == partition]
    bounded = [_with_bounds(file, store) for file in files if file.records_count != 0]
    filled, held = [file for file in bounded if file.records_count], snapshot.range_of(partition)

    def offsets_of(group: Sequence[DataFile]) -> Offsets:
        return np.concatenate([ParquetObject(store, file).offsets() for file in group])

    if snapshot.sparse_range(partition):
        filled, held = require_left(
            filled, held, snapshot.sparse[partition], partition=partition, offsets_of=offsets_of
        )
    for group in unproven_groups(filled, held, partition=partition):
        require_contiguous(offsets_of(group), partition=partition)


def compacted_hole(
    snapshot: TableSnapshot, partition: int, stop: Offset | None = None, left: int | None = None
) -> Hole | None:
    """Return the hole that key compaction has left in a partition below ``stop``; None: none.

    ``left`` is the number of rows below ``stop``, which a read that ends within the hole has
    counted.
    """
    thinned = snapshot.sparse_range(partition)
    count = snapshot.left_count(partition)
    if stop is not None and stop < thinned.end:
        assert left is not None, "only a read tells how many rows are in a part of the range"
        thinned, count = OffsetRange(thinned.start, stop), left
    missing = len(thinned) - count
    return Hole(thinned.start, thinned.end, "compaction", missing) if missing else None


def require_files(
    snapshot: TableSnapshot, store: ObjectStore, objects: Iterable[ObjectInfo]
) -> Mapping[str, ObjectInfo]:
    """Check that every file of a version exists with its recorded size; return objects by key.

    ``objects`` is a listing of the data files.

    Raises:
        ObjectMissingError, ObjectCorruptError: for the first such file; names its key.
        ExpiredError: the file had records of an earlier version that have expired since.
    """
    listed = {info.key: info for info in objects}
    for file in snapshot.files:
        if file.path not in listed:  # a foreign writer may use another folder; head() raises
            try:
                listed[file.path] = store.head(file.path)
            except ObjectMissingError:
                _refuse_expired(file, store, snapshot)
                raise
        found = listed[file.path].size_bytes
        if found != file.size_bytes:
            raise ObjectCorruptError(
                f"{file.path} has {found} bytes, but the table's log says {file.size_bytes}",
                key=file.path,
                expected=file.size_bytes,
                found=found,
            )
    return listed


def _refuse_expired(file: DataFile, store: ObjectStore, snapshot: TableSnapshot) -> None:
    """Raise ExpiredError if an object is missing because its records expired long ago."""
    last = Expiries(store).last(file.partition)
    if last is not None and file.end_offset is not None and file.end_offset <= last.end:
        name = f"partition {file.partition} of {snapshot.uri} version {snapshot.version}"
        held = snapshot.ranges[file.partition]
        raise expired_error(name, held.start, start=last.end, end=held.end)


def _check_identity(snapshot: TableSnapshot, cut: Cut, store: ObjectStore) -> None:
    if snapshot.stream_uuid != cut.stream_uuid:
        raise StreamRecreatedError(
            f"the table belongs to stream {snapshot.stream_uuid}, but the cut to {cut.stream_uuid}",
            expected=cut.stream_uuid,
            found=snapshot.stream_uuid,
        )
    # The certificate repeats the names in the cut, and anybody may have edited a saved cut.
    named = snapshot.properties.get("headwater.stream", cut.stream)
    if named != cut.stream or snapshot.cluster != cut.cluster:
        raise InvalidCutError(
            f"the table is that of stream {named!r} of cluster {snapshot.cluster!r}, but the cut "
            f"names stream {cut.stream!r} of cluster {cut.cluster!r}"
        )
    # A stream may have more partitions than its table knows, never fewer.
    if len(cut.partitions) < len(snapshot.ranges):
        raise InvalidCutError(
            f"the cut names {len(cut.partitions)} partitions, but the table has "
            f"{len(snapshot.ranges)}"
        )
    if cut.table_digest is not None:
        digest = commit_digest(store, snapshot.version)
        if digest != cut.table_digest:
            raise ForeignHistoryError(
                f"version {snapshot.version} of {snapshot.uri} is not the commit that the cut "
                "names: the table was replaced by an older copy and has been written to since. "
                "Take a new cut",
                uri=snapshot.uri,
                version=snapshot.version,
                expected=cut.table_digest,
                found=digest,
            )
    for part in cut.partitions:
        found = snapshot.range_of(part.partition)
        if (found.start, found.end) != (part.start, part.cold_end):
            raise TableRolledBackError(
                f"version {snapshot.version} of {snapshot.uri} covers {found} of partition "
                f"{part.partition}, but the cut recorded [{part.start}, {part.cold_end})",
                partition=part.partition,
                expected=part.cold_end,
                found=int(found.end),
            )


def _with_bounds(file: DataFile, store: ObjectStore) -> DataFile:
    """Return the file with count and bounds; without statistics, they are read from its offsets."""
    if file.records_count is not None and file.min_offset is not None:
        return file
    offsets = ParquetObject(store, file).offsets()
    if len(offsets) == 0:
        return replace(file, records_count=0)
    return replace(
        file,
        records_count=len(offsets),
        min_offset=Offset(int(offsets.min())),
        max_offset=Offset(int(offsets.max())),
    )


def _certificate(partition: int, start: int, end: int) -> PartitionCertificate:
    return PartitionCertificate(
        partition=partition,
        start=Offset(start),
        end=Offset(end),
        cold_count=end - start,
        hot_count=0,
    )
