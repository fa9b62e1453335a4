"""Recomputes a certificate with Spark: tasks read every ledger range again.

The driver only lists ranges and collects results. A task reads its ranges directly from the
objects, or its part of the tail from the broker. It returns digests, or the damage that it found.
After a damaged range the other ranges are still checked.
"""

from __future__ import annotations

import itertools
import json
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import asdict, dataclass, replace
from typing import TYPE_CHECKING, Any, Final

from broker.codec.digest import RangeDigest
from broker.codec.schema import FILE_SCHEMA
from broker.errors import CorruptDataError, GapError, HeadwaterError, to_wire
from broker.model.offsets import Offset, OffsetRange
from spark_jobs.clients import client_of
from spark_jobs.failures import annotate, translated
from spark_jobs.maintenance.held_stream import HeldStream, StoreAddress
from spark_jobs.sessions import parallelism
from tiering.proof.range_proof import RangeProof, verify_entries
from tiering.read.certify import certify_counts
from tiering.table.accounts import account_starts, accounts
from tiering.table.table import TableSnapshot

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

_TASKS_PER_CORE: Final = 4
_ENTRIES_PER_TASK_MAX: Final = 16  # ledger entries

Progress = Callable[..., None]


@dataclass(frozen=True, slots=True, kw_only=True)
class Finding:
    """One typed error that the verification found."""

    error: str
    message: str
    facts: Mapping[str, Any]


@dataclass(frozen=True, slots=True, kw_only=True)
class TableVerdict:
    """The ranges that were read, and the damage that was found; no findings: no damage."""

    ranges: tuple[RangeProof, ...]
    tails: tuple[RangeProof, ...]
    findings: tuple[Finding, ...]
    files_count: int
    files_bytes: int

    @property
    def ok(self) -> bool:
        """Whether all records are as they were committed."""
        return not self.findings


@dataclass(frozen=True, slots=True, kw_only=True)
class _VerifyTask:
    partition: int
    range: OffsetRange
    snapshot: TableSnapshot | None  # only with the files of the range; None: a part of the tail


def verify_held(spark: SparkSession, held: HeldStream, *, server: str | None) -> TableVerdict:
    """Read both tiers of a held cut again, in parallel, and compare. Blocks.

    Raises:
        UnavailableError: a tier does not answer, so the state is not known.
    """
    findings: list[Finding] = []
    files = (0, 0)
    if held.snapshot is not None:
        try:
            _, *counted = certify_counts(held.snapshot, held.cut, held.table.store, sparse=True)
            files = (counted[0], counted[1])
        except CorruptDataError as error:
            findings.append(_finding(error))
    tasks = [*_cold_tasks(spark, held), *_tail_tasks(held)]
    proofs, errors = _run(spark, tasks, held, server)
    findings += [one for one in errors if one not in findings]
    cold = sorted((one for tail, one in proofs if not tail), key=_place)
    tails = sorted((one for tail, one in proofs if tail), key=_place)
    if not findings:
        findings += [_finding(error) for error in _uncovered(held, cold, tails)]
    return TableVerdict(
        ranges=tuple(cold),
        tails=tuple(tails),
        findings=tuple(findings),
        files_count=files[0],
        files_bytes=files[1],
    )


def _cold_tasks(spark: SparkSession, held: HeldStream) -> list[_VerifyTask]:
    """Cut the table's ranges where accounts begin, so that no account is split."""
    snapshot = held.snapshot
    if snapshot is None:
        return []
    starts = {
        number: account_starts(snapshot, held.table.store, number) for number in snapshot.ranges
    }
    total = sum(map(len, starts.values()))
    size = max(1, min(_ENTRIES_PER_TASK_MAX, -(-total // (parallelism(spark) * _TASKS_PER_CORE))))
    tasks = []
    for number, part in sorted(snapshot.ranges.items()):
        bounds = [int(part.start), *map(int, starts[number][size::size]), int(part.end)]
        for low, high in itertools.pairwise(bounds):
            wanted = OffsetRange(Offset(low), Offset(high))
            if wanted:
                tasks.append(
                    _VerifyTask(
                        partition=number, range=wanted, snapshot=_part(snapshot, number, wanted)
                    )
                )
    return tasks


def _part(snapshot: TableSnapshot, number: int, wanted: OffsetRange) -> TableSnapshot:
    """Return the snapshot with only those files that may hold records of a range."""
    files = tuple(
        file for file in snapshot.files if file.partition == number and file.may_have(wanted)
    )
    return replace(snapshot, files=files, properties={}, ranges={number: snapshot.ranges[number]})


def _tail_tasks(held: HeldStream) -> list[_VerifyTask]:
    return [
        _VerifyTask(
            partition=part.partition,
            range=OffsetRange(part.cold_end, part.hot_end),
            snapshot=None,
        )
        for part in held.cut.partitions
        if part.hot_end > part.cold_end
    ]


def _run(
    spark: SparkSession, tasks: Sequence[_VerifyTask], held: HeldStream, server: str | None
) -> tuple[list[tuple[bool, RangeProof]], list[Finding]]:
    if not tasks:
        return [], []
    address = StoreAddress.of(held.table.store)
    stream, uuid = held.cut.stream, held.cut.stream_uuid

    def run(some: Iterable[_VerifyTask]) -> Iterator[str]:
        for task in some:
            yield from run_task(task, address, server, stream, uuid)

    with translated():
        rows = spark.sparkContext.parallelize(list(tasks), len(tasks)).mapPartitions(run).collect()
    proofs, findings = [], []
    for text in rows:
        values = json.loads(text)
        if "error" in values:
            findings.append(Finding(**values))
        else:
            proofs.append((values.pop("tail"), RangeProof(**values)))
    return proofs, findings


def run_task(
    task: _VerifyTask, address: StoreAddress, server: str | None, stream: str, stream_uuid: str
) -> Iterator[str]:
    """Read one task's part again; yield proofs as JSON, and at most one finding.

    Runs on an executor.
    """
    try:
        for proof in _proofs(task, address, server, stream, stream_uuid):
            yield json.dumps({"tail": task.snapshot is None, **asdict(proof)})
    except CorruptDataError as error:
        yield json.dumps(asdict(_finding(error)))
    except HeadwaterError as error:
        raise annotate(error) from None


def _proofs(
    task: _VerifyTask, address: StoreAddress, server: str | None, stream: str, stream_uuid: str
) -> Iterator[RangeProof]:
    if task.snapshot is None:
        yield _tail_proof(task, server, stream, stream_uuid)
        return
    store = address.open()
    entries = accounts(task.snapshot, store, task.partition, task.range)
    yield from verify_entries(task.snapshot, store, task.partition, task.range, entries)


def _tail_proof(task: _VerifyTask, server: str | None, stream: str, stream_uuid: str) -> RangeProof:
    """Compute the digest of a tail from the broker; the ledger has no entry for it yet."""
    digest = RangeDigest()
    wanted = task.range
    with client_of(server).fetch(
        stream,
        task.partition,
        wanted.start,
        wanted.end,
        columns=FILE_SCHEMA.names,
        stream_uuid=stream_uuid,
    ) as fetched:
        for one in fetched:
            digest.update(one.batch)
    if digest.records_count != len(wanted):
        raise GapError(
            f"the broker sent only {digest.records_count} of the {len(wanted)} records {wanted} of "
            f"partition {task.partition}",
            partition=task.partition,
            start=int(wanted.start) + digest.records_count,
            end=int(wanted.end),
        )
    return RangeProof(
        partition=task.partition,
        start=wanted.start,
        end=wanted.end,
        records_count=digest.records_count,
        digest=digest.hexdigest(),
        proved=False,
    )


def _uncovered(
    held: HeldStream, cold: Sequence[RangeProof], tails: Sequence[RangeProof]
) -> Iterator[GapError]:
    """Yield the ranges of the cut that no proof covers: a lost task must not count as a proof."""
    for part in held.cut.partitions:
        due = _end_of_left(held.snapshot, part.partition, cold) or int(part.start)
        for proof in (*cold, *tails):
            if proof.partition == part.partition and proof.start == due:
                due = int(proof.end)
        if due != part.hot_end:
            yield GapError(
                f"partition {part.partition}: no task read [{due}, {part.hot_end})",
                partition=part.partition,
                start=due,
                end=int(part.hot_end),
            )


def _end_of_left(
    snapshot: TableSnapshot | None, partition: int, cold: Sequence[RangeProof]
) -> int | None:
    """Return the end of a sparse range if the proofs cover all that is left of it, else None."""
    if snapshot is None or not (thinned := snapshot.sparse_range(partition)):
        return None
    found = sum(one.records_count for one in cold if _is_of(one, partition, thinned))
    return int(thinned.end) if found == snapshot.left_count(partition) else None


def _is_of(proof: RangeProof, partition: int, within: OffsetRange) -> bool:
    return proof.partition == partition and proof.start in within


def _finding(error: HeadwaterError) -> Finding:
    values = json.loads(to_wire(error))
    return Finding(error=values["error"], message=values["message"], facts=values["facts"])


def _place(proof: RangeProof) -> tuple[int, int]:
    return proof.partition, int(proof.start)
