"""Compacts a stream's table with Spark: each task rewrites a bin, the driver commits in rounds.

The uploader goes on meanwhile. Its commits and ours use compare-and-set on the same log, so the
second of two committers reads the log again. If another process replaced the files of a bin first,
the bin is given up and not retried; the next run plans anew. A run that dies leaves objects that no
version names.
"""

from __future__ import annotations

import json
import time
import uuid
from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import asdict, dataclass
from typing import TYPE_CHECKING, Final

from broker.errors import FilesReplacedError, HeadwaterError
from spark_jobs.failures import annotate, translated
from spark_jobs.maintenance.held_stream import StoreAddress
from tiering.proof.proofs import prove
from tiering.ship.compaction import Bin, only, plan_bins, rewrite
from tiering.table.table import NewFile, TableSnapshot

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

    from tiering.table.delta_table import DeltaStreamTable

_ROUND_BINS: Final = 64  # bins per round and commit; a run that dies loses one round of work

Progress = Callable[..., None]


@dataclass(frozen=True, slots=True, kw_only=True)
class Compacted:
    """The result of a compaction."""

    version: int | None  # the version of its last commit; None: no commit
    files_before: int
    files_after: int
    bytes_rewritten: int
    bins_count: int
    bins_lost: int  # another process replaced their files first


def compact(
    spark: SparkSession,
    table: DeltaStreamTable,
    snapshot: TableSnapshot,
    *,
    target_bytes: int,
    dry_run: bool = False,
    progress: Progress = lambda *_, **__: None,
) -> Compacted:
    """Join small files of a version that the caller holds; commit in rounds of bins. Blocks.

    Raises:
        CorruptDataError: a bin's rows do not match the ledger; they were not written anywhere.
        RemoteTierUnavailableError: the store does not answer; earlier bins stay compacted.
    """
    bins = plan_bins(snapshot, target_bytes=target_bytes)
    lost: list[Bin] = []
    version = None
    for first in range(0, 0 if dry_run else len(bins), _ROUND_BINS):
        some = bins[first : first + _ROUND_BINS]
        with translated():
            written = _rewritten(spark, table, snapshot, some)
        for part in _committable(list(zip(some, written, strict=True)), table.snapshot()):
            committed = commit_bins(table, part)
            version = committed if committed is not None else version
            lost += [] if committed is not None else [wanted for wanted, _ in part]
        progress("compacted", bins=first + len(some), of=len(bins), lost=len(lost))
    joined = [one for one in bins if one not in lost]
    return Compacted(
        version=version,
        files_before=len(snapshot.files),
        files_after=len(snapshot.files) - sum(len(one.files) - 1 for one in joined),
        bytes_rewritten=sum(one.size_bytes for one in joined),
        bins_count=len(bins),
        bins_lost=len(lost),
    )


def _committable(
    pairs: Sequence[tuple[Bin, NewFile]], newest: TableSnapshot
) -> list[list[tuple[Bin, NewFile]]]:
    """Group bins by commit: those whose files all exist go together, every other bin alone."""
    present = {file.path for file in newest.files}
    whole = [pair for pair in pairs if all(file.path in present for file in pair[0].files)]
    return [*([whole] if whole else []), *([pair] for pair in pairs if pair not in whole)]


def commit_bins(table: DeltaStreamTable, pairs: Sequence[tuple[Bin, NewFile]]) -> int | None:
    """Replace the files of some bins in one commit; None if another compaction was first.

    Raises:
        TableMismatchError: somebody changed the table while the bins were rewritten.
    """
    base = table.snapshot()
    prove(base, table.store)
    try:
        return table.replace_files(
            base,
            removed=[file for wanted, _ in pairs for file in wanted.files],
            added=[file for _, file in pairs],
            moves={},
            data_change=False,
            commit_id=uuid.uuid4().hex,
        )
    except FilesReplacedError:
        return None


def _rewritten(
    spark: SparkSession, table: DeltaStreamTable, snapshot: TableSnapshot, bins: Sequence[Bin]
) -> list[NewFile]:
    address = StoreAddress.of(table.store)
    tasks = [(number, only(snapshot, one), one) for number, one in enumerate(bins)]

    def run(some: Iterable[tuple[int, TableSnapshot, Bin]]) -> Iterator[tuple[int, str]]:
        for number, part, wanted in some:
            yield number, rewrite_task(part, wanted, address)

    found = spark.sparkContext.parallelize(tasks, len(tasks)).mapPartitions(run).collect()
    return [NewFile(**json.loads(text)) for _, text in sorted(found)]


def rewrite_task(snapshot: TableSnapshot, wanted: Bin, address: StoreAddress) -> str:
    """Rewrite one bin; return the new file as JSON. Runs on an executor."""
    try:
        file = rewrite(snapshot, address.open(), wanted, modified_us=time.time_ns() // 1000)
    except HeadwaterError as error:
        raise annotate(error) from None
    return json.dumps(asdict(file))
