"""The cheap proof of a table version: counts and bounds, whose commits they are, which objects.

Costs one listing of the table's folder and the commits since the last proof (proof/proofs.py). Only
where files interleave (after somebody's OPTIMIZE), or carry no statistics, are their offset columns
read. What is asked of the objects is proof/object_proof.py's. The full proof is verify.py's.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace

import numpy as np

from broker.errors import (
    ForeignHistoryError,
    InvalidCutError,
    ObjectCorruptError,
    StreamRecreatedError,
    TableRolledBackError,
)
from broker.model.certificate import PartitionCertificate
from broker.model.cut import Cut
from broker.model.offsets import Offset, OffsetRange
from tiering.proof.coverage import require_contiguous, unproven_groups
from tiering.proof.object_proof import require_objects
from tiering.proof.proofs import prove
from tiering.read.parquet_source import ParquetObject
from tiering.store.object_store import ObjectInfo, ObjectStore
from tiering.table.delta_log import commit_digest
from tiering.table.table import DataFile, TableSnapshot


def certify_counts(
    snapshot: TableSnapshot | None, cut: Cut, store: ObjectStore
) -> tuple[list[PartitionCertificate], int, int]:
    """Prove that the cold part of a cut is complete: each offset of ``[start, cold end)`` once.

    ``store`` is the table's own (``table.store``). Returns the certificates of the cold part
    (``hot_count`` 0, ``end`` the cold end: the tail is the reader's to add), the number of files
    and their bytes. Blocks.

    Raises:
        StreamRecreatedError: the table is another incarnation's.
        TableRolledBackError: the version's transactions are not what the cut recorded.
        ObjectMissingError, ObjectCorruptError: a file is not there, or not of its size.
        GapError, OverlapError, TableMismatchError: offsets missing, twice, or never committed; a
            commit that is none of ours (facts: version, operation, author).
        RemoteTierUnavailableError: the store does not answer.
    """
    if cut.table_version is None:
        return (
            [_certificate(part.partition, part.start, part.start) for part in cut.partitions],
            0,
            0,
        )
    if snapshot is None or snapshot.version != cut.table_version:
        raise InvalidCutError(
            f"the cut is of table version {cut.table_version}, "
            f"not of {None if snapshot is None else snapshot.version}"
        )
    _check_identity(snapshot, cut, store)
    listed = require_files(snapshot, store)
    certificates = []
    for part in cut.partitions:
        prove_partition(snapshot, part.partition, store)
        certificates.append(_certificate(part.partition, part.start, part.cold_end))
    require_objects(
        prove(snapshot, store),
        snapshot,
        store,
        within={one.partition: OffsetRange(one.start, one.cold_stop) for one in cut.partitions},
        listed=listed,
    )
    return certificates, len(snapshot.files), snapshot.files_bytes


def require_sound(
    snapshot: TableSnapshot, store: ObjectStore, partition: int, wanted: OffsetRange
) -> None:
    """Prove what a read of one range stands on: whose commits, and its objects.

    That the range is whole is for the reader to check, row by row. Errors as in certify_counts.
    """
    require_objects(prove(snapshot, store), snapshot, store, within={partition: wanted})


def prove_partition(snapshot: TableSnapshot, partition: int, store: ObjectStore) -> None:
    """Prove that one partition's files hold its range exactly; errors as in certify_counts."""
    files = [file for file in snapshot.files if file.partition == partition]
    bounded = [_with_bounds(file, store) for file in files if file.records_count != 0]
    for group in unproven_groups(
        [file for file in bounded if file.records_count], snapshot.ranges[partition],
        partition=partition,
    ):  # fmt: skip
        require_contiguous(
            np.concatenate([ParquetObject(store, file).offsets() for file in group]),
            partition=partition,
        )


def require_files(snapshot: TableSnapshot, store: ObjectStore) -> Mapping[str, ObjectInfo]:
    """Check that every file of a version exists with its recorded size; return the one listing.

    Raises:
        ObjectMissingError, ObjectCorruptError: by the first file's key.
    """
    listed = {info.key: info for info in store.list("partition=")}
    for file in snapshot.files:
        if file.path not in listed:  # raises when missing; other writers may use other folders
            listed[file.path] = store.head(file.path)
        found = listed[file.path].size_bytes
        if found != file.size_bytes:
            raise ObjectCorruptError(
                f"{file.path} has {found} bytes, the table says {file.size_bytes}",
                key=file.path,
                expected=file.size_bytes,
                found=found,
            )
    return listed


def _check_identity(snapshot: TableSnapshot, cut: Cut, store: ObjectStore) -> None:
    if snapshot.stream_uuid != cut.stream_uuid:
        raise StreamRecreatedError(
            f"the table is of stream {snapshot.stream_uuid}, the cut of {cut.stream_uuid}",
            expected=cut.stream_uuid,
            found=snapshot.stream_uuid,
        )
    if len(cut.partitions) != len(snapshot.ranges):
        raise InvalidCutError(
            f"the cut names {len(cut.partitions)} partitions, the table has {len(snapshot.ranges)}"
        )
    if cut.table_digest is not None:
        digest = commit_digest(store, snapshot.version)
        if digest != cut.table_digest:
            raise ForeignHistoryError(
                f"version {snapshot.version} of {snapshot.uri} is not the one that the cut was "
                "taken of: the table was put back to an older copy and written on since",
                uri=snapshot.uri,
                version=snapshot.version,
                expected=cut.table_digest,
                found=digest,
            )
    for part in cut.partitions:
        found = snapshot.ranges.get(part.partition)
        if found is None or (found.start, found.end) != (part.start, part.cold_end):
            raise TableRolledBackError(
                f"version {snapshot.version} of {snapshot.uri} covers {found} of partition "
                f"{part.partition}, the cut recorded [{part.start}, {part.cold_end})",
                partition=part.partition,
                expected=part.cold_end,
                found=None if found is None else int(found.end),
            )


def _with_bounds(file: DataFile, store: ObjectStore) -> DataFile:
    """Return the file with count and bounds, read from its offsets if it came without."""
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
