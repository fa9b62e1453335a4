"""The independent checker: reads every byte of a cut again, in both tiers, and compares digests.

It reads the table's files and computes a digest of each committed range, which must equal the
digest in the ledger, written when the range was committed. The tail comes through Flight: the
broker checks the CRC of each batch, the client checks that offsets are contiguous. The result is a
certificate of the full form. Its digests depend only on the rows: two verifications of one cut are
equal.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace

from broker.codec.digest import RangeDigest
from broker.codec.schema import FILE_SCHEMA
from broker.model.certificate import Certificate, Hole, PartitionCertificate
from broker.model.cut import Cut, PartitionCut
from broker.model.offsets import OffsetRange
from headwater.client import Client
from headwater.client.reader import reader_of
from headwater.reads.table_access import table_location
from headwater.reads.tail import joined_holes, tail_batches
from tiering.read.certify import certify_counts, compacted_hole
from tiering.read.lake import kept_table
from tiering.read.reader import read_rows
from tiering.read.verify import verify_partition
from tiering.table.table import Table, TableSnapshot

Progress = Callable[[int], None]  # called with the number of rows verified since the last call


def verify_cut(client: Client, cut: Cut, *, progress: Progress | None = None) -> Certificate:
    """Read a whole cut again and return its certificate. Blocks; the caller renews the lease.

    Raises:
        CorruptDataError: a file is gone or damaged; rows are missing, doubled, changed or were
            never committed; or the table was rolled back. A subclass says which.
        UnavailableError: a tier does not answer.
    """
    table, snapshot = None, None
    files_count = files_bytes = 0
    if cut.table_version is not None:
        table = kept_table(table_location(client, cut))
        snapshot = table.snapshot(cut.table_version)
        _, files_count, files_bytes = certify_counts(snapshot, cut, table.store, sparse=True)
    return Certificate(
        stream=cut.stream,
        stream_uuid=cut.stream_uuid,
        table_version=cut.table_version,
        form="full",
        partitions=tuple(
            _verify_partition(client, cut, part, table, snapshot, progress)
            for part in cut.partitions
        ),
        files_count=files_count,
        files_bytes=files_bytes,
        reader=reader_of(client),
    )


def _verify_partition(  # noqa: PLR0917  # one call, all of it belongs together
    client: Client,
    cut: Cut,
    part: PartitionCut,
    table: Table | None,
    snapshot: TableSnapshot | None,
    progress: Progress | None,
) -> PartitionCertificate:
    digest = RangeDigest()
    proved = part.empty_proof
    if table is not None and snapshot is not None:
        proved = verify_partition(
            snapshot, table.store, part.partition, digest=digest, progress=progress
        )
        if part.cold_stop < part.cold_end:  # all rows were checked, but only some are in the cut
            digest = RangeDigest()
            wanted = OffsetRange(part.start, part.cold_stop)
            for batch in read_rows(
                snapshot, table.store, part.partition, wanted, FILE_SCHEMA, sparse=True
            ):
                digest.update(batch)
            count = digest.records_count
            left = compacted_hole(snapshot, part.partition, part.cold_stop, count)
            proved = replace(proved, cold_count=count, holes=() if left is None else (left,))
        proved = replace(proved, holes=(*part.holes, *proved.holes))
    holes: list[Hole] = []
    hot_count = _digest_tail(client, cut, part, digest, progress, holes)
    return replace(
        proved,
        end=part.end,
        hot_count=hot_count,
        digest=digest.hexdigest(),
        holes=(*proved.holes, *joined_holes(holes)),
    )


def _digest_tail(  # noqa: PLR0917  # one call, all of it belongs together
    client: Client,
    cut: Cut,
    part: PartitionCut,
    digest: RangeDigest,
    progress: Progress | None,
    holes: list[Hole],
) -> int:
    """Add the rows ``[C, H)`` from the broker to the digest; return their number, checked.

    Holes that key compaction left, of a stream without a table, are added to ``holes``.
    """
    counted = 0
    for batch in tail_batches(client, cut, part, FILE_SCHEMA.names, holes.append):
        digest.update(batch)
        counted += batch.num_rows
        if progress is not None:
            progress(batch.num_rows)
    return counted
