"""Describes a unified read as text for people: tiers, files, ranges, lease and proof.

Only the table's log is read for this. Pass the DataFrame that ``read`` returned; DataFrames that
were derived from it are not known here. ``df.explain()`` shows Spark's own plan.
"""

from __future__ import annotations

from collections.abc import Iterator
from datetime import UTC, datetime
from typing import TYPE_CHECKING, Final

from broker.model.cut import Cut, PartitionCut
from broker.model.offsets import Offset, OffsetRange
from headwater.reads.lease_keeper import KEEPER
from spark_jobs.read.held_reads import READS, HeldRead
from tiering.read.lake import kept_table
from tiering.table.table import DataFile

if TYPE_CHECKING:
    from pyspark.sql import DataFrame

_FILES_SHOWN: Final = 20  # files listed per partition by default


def explain(rows: DataFrame, *, files_max: int | None = _FILES_SHOWN) -> str:
    """Return the files and the offsets that a read covers, one fact per line.

    Args:
        rows: a DataFrame that ``headwater.read`` returned, or a statement's result.
        files_max: how many files of each partition are listed; None for all.

    Raises:
        InvalidRequestError: the DataFrame was not returned by a read.
        CorruptDataError, RemoteTierUnavailableError: the table's log cannot be read any more.
    """
    query = READS.query_of(rows)
    reads = [READS.of(rows)] if query is None else list(query.reads.values())
    return "\n".join(line for held in reads for line in _lines(held, files_max))


def _lines(held: HeldRead, files_max: int | None) -> Iterator[str]:
    cut = held.cut
    what = "latest record of each key" if held.latest else "every record"
    yield f"{cut.stream}: {what} as of {_time(cut.taken_us)}, {cut.records_count:,} offsets"
    yield f"stream   {cut.stream_uuid} of cluster {cut.cluster}"
    yield f"table    {_table(cut)}"
    yield f"lease    {cut.lease.lease_id}: {_lease(cut)}"
    yield f"proof    {_proof(held)}"
    above = {}
    if held.key_snapshot is not None:
        above = {number: int(end) for number, end in held.key_snapshot.ends.items()}
        yield f"keys     {held.key_snapshot.uri} version {held.key_snapshot.version}"
    files = _files(held)
    for part in cut.partitions:
        start = max(int(part.start), above.get(part.partition, 0))
        yield from _partition(part, start, files, files_max)


def _partition(
    part: PartitionCut, start: int, files: tuple[DataFile, ...], files_max: int | None
) -> Iterator[str]:
    hot_start = max(start, int(part.cold_end))
    yield f"partition {part.partition}: [{start}, {part.end}), log end {part.hot_end}"
    if part.cold_stop > start:
        cold = OffsetRange(Offset(start), part.cold_stop)
        wanted = [
            file for file in files if file.partition == part.partition and file.may_have(cold)
        ]
        size = sum(file.size_bytes for file in wanted)
        yield f"  table  [{start}, {part.cold_stop}) from {len(wanted)} files, {size:,} bytes"
        shown = wanted if files_max is None else wanted[:files_max]
        for file in shown:
            bounds = f"[{file.min_offset}, {file.end_offset})" if file.records_count else "[?)"
            yield f"    {bounds} {file.size_bytes:,} bytes {file.path}"
        if len(shown) < len(wanted):
            yield f"    and {len(wanted) - len(shown)} more; files_max=None lists all"
    if part.hot_stop > hot_start:
        yield f"  log    [{hot_start}, {part.hot_stop}) from the broker"


def _files(held: HeldRead) -> tuple[DataFile, ...]:
    if held.location is None:
        return ()
    return kept_table(held.location).snapshot(held.cut.table_version).files


def _table(cut: Cut) -> str:
    if cut.table_version is None:
        return "none yet"
    return f"{cut.table_uri} version {cut.table_version}"


def _lease(cut: Cut) -> str:
    lost = KEEPER.lost(cut.lease.lease_id)
    if lost is not None:
        return f"lost ({lost}); records and files that it held may be deleted"
    if cut.lease.lease_id in KEEPER.held():
        return "held and renewed by this process"
    return "released"


def _proof(held: HeldRead) -> str:
    proved = held.certificate
    if proved is None:
        return "none, as requested"
    return (
        f"{proved.form}: {proved.records_count:,} records, {proved.files_count} files, "
        f"{proved.files_bytes:,} bytes"
    )


def _time(stamp_us: int) -> str:
    return datetime.fromtimestamp(stamp_us / 1_000_000, UTC).isoformat()
