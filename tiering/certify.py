"""The cheap proof of a table version: counts and bounds, no data.

Costs one listing of the table's folder. Only where files interleave (after somebody's OPTIMIZE),
or carry no statistics, are their offset columns read. The full proof is verify.py's.
"""

from __future__ import annotations

from dataclasses import replace

import numpy as np

from broker.errors import (
    InvalidCutError,
    ObjectCorruptError,
    StreamRecreatedError,
    TableRolledBackError,
)
from broker.model.certificate import PartitionCertificate
from broker.model.cut import Cut
from broker.model.offsets import Offset
from tiering.coverage import require_contiguous, unproven_groups
from tiering.object_store import ObjectStore
from tiering.parquet_source import ParquetObject
from tiering.table import DataFile, TableSnapshot


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
        GapError, OverlapError, TableMismatchError: offsets missing, twice, or never committed.
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
    _check_identity(snapshot, cut)
    require_files(snapshot, store)
    certificates = []
    for part in cut.partitions:
        prove_partition(snapshot, part.partition, store)
        certificates.append(_certificate(part.partition, part.start, part.cold_end))
    return certificates, len(snapshot.files), snapshot.files_bytes


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


def require_files(snapshot: TableSnapshot, store: ObjectStore) -> None:
    """Check that every file of a version exists with its recorded size, by one listing.

    Raises:
        ObjectMissingError, ObjectCorruptError: by the first file's key.
    """
    sizes = {info.key: info.size_bytes for info in store.list("partition=")}
    for file in snapshot.files:
        found = sizes.get(file.path)
        if found is None:  # raises when it is missing; other writers may use other folders
            found = store.head(file.path).size_bytes
        if found != file.size_bytes:
            raise ObjectCorruptError(
                f"{file.path} has {found} bytes, the table says {file.size_bytes}",
                key=file.path,
                expected=file.size_bytes,
                found=found,
            )


def _check_identity(snapshot: TableSnapshot, cut: Cut) -> None:
    if snapshot.stream_uuid != cut.stream_uuid:
        raise StreamRecreatedError(
            f"the table is of stream {snapshot.stream_uuid}, the cut of {cut.stream_uuid}",
            expected=cut.stream_uuid,
            found=snapshot.stream_uuid,
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
