"""The unified read: a stream's whole history as one exact DataFrame.

    rows of a cut = Delta table at version v (native scan)  ∪  log [C, H) (source ``headwater``)

Order matters: the broker gives the lease first, then the table version, then the high watermarks,
all inside one cut; only then do we look at the table. The cold side is Spark's own scan, Python
never touches its rows. What the table claims is proved before the DataFrame is returned; what the
log sends is counted while it is read. A read that cannot be exact fails, it never returns less.
"""

from __future__ import annotations

import logging
from collections.abc import Sequence
from dataclasses import replace
from typing import TYPE_CHECKING, Final, Literal

from broker.errors import InvalidConfigError, InvalidRequestError, UnknownLeaseError
from broker.model.certificate import Certificate
from broker.model.cut import Cut, Lease
from spark_jobs.held_reads import READS, HeldRead
from spark_jobs.leases import KEEPER, LEASE_TTL_MS_DEFAULT
from spark_jobs.source.columns import ROW_COLUMNS, check_projection
from spark_jobs.source.options import positions_text
from tiering.certify import certify_counts
from tiering.lake import Lake
from tiering.location import StoreConfig

if TYPE_CHECKING:
    from pyspark.sql import DataFrame, SparkSession

    from headwater.client import Client

Proof = Literal["counts", "full", "none"]

# A user may have set these for other tables; with them Spark would drop rows without a word.
_LOSSY_SETTINGS: Final = (
    "spark.sql.files.ignoreMissingFiles",
    "spark.sql.files.ignoreCorruptFiles",
)

_log = logging.getLogger("headwater.read")


def read(
    spark: SparkSession,
    stream: str | Cut,
    *,
    as_of: str | Cut | None = None,
    certificate: Proof = "counts",
    columns: Sequence[str] | None = None,
    client: Client,
    lease_ttl_ms: int = LEASE_TTL_MS_DEFAULT,
) -> DataFrame:
    """Return every committed record of a stream, once, as one DataFrame. Blocks.

    The DataFrame is pinned: each action on it reads the same rows. The lease that keeps them is
    renewed until :func:`release`, the end of the session, or the end of the process.

    Args:
        spark: a session of :func:`spark_jobs.session.build_session`.
        stream: a stream's name, or a cut of it.
        as_of: a cut, or one saved as text: the rows of that moment instead of now's.
        certificate: what is proved first. ``counts``: file sizes, statistics and transactions;
            ``full``: every byte against the ledger, which reads everything; ``none``: nothing,
            only offsets within the cut are let through.
        columns: which columns, in which order; all by default. Narrowing here also narrows what
            the broker sends, ``select`` on the result does not.
        client: how to reach the broker.
        lease_ttl_ms: how long the lease outlives this process.

    Raises:
        UnknownStreamError, InvalidCutError, StreamRecreatedError: there is no such thing to read.
        CorruptDataError: the table is not what was committed; the subclass and facts say what.
        UnavailableError: the broker or the object store did not answer.
    """
    _refuse_lossy(spark)
    names = check_projection(columns or tuple(ROW_COLUMNS), where="columns")
    saved = _saved_cut(stream, as_of)
    if saved is None:
        assert isinstance(stream, str), "a cut is a saved cut"
        cut = client.cut(stream, ttl_ms=lease_ttl_ms)
    else:
        cut = replace(saved, lease=_renewed_lease(client, saved, lease_ttl_ms))
    own_lease = saved is None or saved.lease.lease_id != cut.lease.lease_id
    KEEPER.hold(
        cut.lease,
        client=client,
        ttl_ms=lease_ttl_ms,
        drop_at_end=own_lease,
        what=f"stream={cut.stream} records={cut.records_count}",
        in_use=lambda: spark.sparkContext._jsc is not None,  # noqa: SLF001  (no public word for it)
    )
    try:
        proof = certify(cut, form=certificate, client=client)
        rows = _union(spark, cut, names, client=client, proved=proof is not None)
    except BaseException:
        KEEPER.release(cut.lease.lease_id)
        raise
    READS.remember(rows, HeldRead(cut=cut, certificate=proof))
    _log.info(
        "lease_held lease_id=%s stream=%s records=%d: renewed until headwater.release(df), "
        "spark.stop() or the end of this process",
        cut.lease.lease_id,
        cut.stream,
        cut.records_count,
    )
    return rows


def certify(cut: Cut, *, form: Proof, client: Client) -> Certificate | None:
    """Prove the table's part of a cut and add the log's part, which the read itself counts.

    Returns None for the form ``none``. Blocks; errors as in :func:`read`.
    """
    if form == "none":
        return None
    if form not in ("counts", "full"):
        raise InvalidRequestError(f"certificate must be counts, full or none, not {form!r}")
    if form == "full":
        return _verified(cut, client)
    table = Lake.open(cut.table_uri, cluster=cut.cluster).table_at(cut.table_uri)
    snapshot = None if cut.table_version is None else table.snapshot(cut.table_version)
    cold, files_count, files_bytes = certify_counts(snapshot, cut, table.store)
    return Certificate(
        stream=cut.stream,
        stream_uuid=cut.stream_uuid,
        table_version=cut.table_version,
        form="counts",
        partitions=tuple(
            replace(proved, end=part.hot_end, hot_count=part.hot_end - part.cold_end)
            for proved, part in zip(cold, cut.partitions, strict=True)
        ),
        files_count=files_count,
        files_bytes=files_bytes,
    )


def table_path(table_uri: str) -> str:
    """Return a table's URI as Spark's file systems spell it: ``s3a://…`` or a plain path."""
    if table_uri.startswith("s3://"):
        return f"s3a://{table_uri.removeprefix('s3://')}"
    return str(StoreConfig(uri=table_uri).root)


def _verified(cut: Cut, client: Client) -> Certificate:
    from headwater.verification import verify_cut  # noqa: PLC0415  (only the full form needs it)

    return verify_cut(client, cut)


def _saved_cut(stream: str | Cut, as_of: str | Cut | None) -> Cut | None:
    """Return the cut that the caller brings, None for a new one."""
    if as_of is None:
        return stream if isinstance(stream, Cut) else None
    if isinstance(stream, Cut):
        raise InvalidRequestError("give a cut as the stream or as as_of, not both")
    if isinstance(as_of, str):
        as_of = Cut.load(as_of)
    if not isinstance(as_of, Cut):
        raise InvalidRequestError(
            f"as_of takes a cut or a saved cut, not {type(as_of).__name__}; offsets and times are "
            "not supported yet"
        )
    if as_of.stream != stream:
        raise InvalidRequestError(f"as_of is a cut of stream {as_of.stream!r}, not of {stream!r}")
    return as_of


def _renewed_lease(client: Client, cut: Cut, ttl_ms: int) -> Lease:
    """Return the saved cut's lease if it lives, else a new one.

    With a new one, what the cut needs may be gone already. The certificate tells for the table;
    the log's part is refused by the broker, or served from a newer version of the table.
    """
    try:
        return client.renew_lease(cut.lease.lease_id, ttl_ms=ttl_ms)
    except UnknownLeaseError:
        return client.take_lease(cut.stream, ttl_ms=ttl_ms)


def _union(
    spark: SparkSession, cut: Cut, columns: tuple[str, ...], *, client: Client, proved: bool
) -> DataFrame:
    """Return the cold rows, the hot rows, or both; always at least an empty DataFrame."""
    tiers = []
    if any(part.cold_end > part.start for part in cut.partitions):
        tiers.append(_cold(spark, cut, columns, proved=proved))
    if not tiers or any(part.hot_end > part.cold_end for part in cut.partitions):
        tiers.append(_hot(spark, cut, columns, client=client))
    return tiers[0] if len(tiers) == 1 else tiers[0].union(tiers[1])


def _cold(spark: SparkSession, cut: Cut, columns: tuple[str, ...], *, proved: bool) -> DataFrame:
    """Return Spark's own scan of the table at the cut's version.

    A proved version holds exactly the cut's cold ranges, so no filter is needed, and none is paid
    for. An unproved one is held to the cut by simple predicates that Delta turns into file skips.
    """
    reader = spark.read.format("delta").option("versionAsOf", str(cut.table_version))
    rows = reader.load(table_path(cut.table_uri))
    if not proved:
        within = [
            f"(partition = {part.partition} AND "
            f"offset >= {part.start} AND offset < {part.cold_end})"
            for part in cut.partitions
        ]
        rows = rows.where(" OR ".join(within))
    return rows.select(*columns)


def _hot(spark: SparkSession, cut: Cut, columns: tuple[str, ...], *, client: Client) -> DataFrame:
    """Return the log's ranges ``[C, H)`` through the data source; planning asks no server."""
    hot = [part for part in cut.partitions if part.hot_end > part.cold_end]
    ranges = hot or [cut.partitions[0]]
    starts = {part.partition: part.cold_end for part in ranges}
    ends = {part.partition: part.hot_end for part in ranges}
    rows = (
        spark.read.format("headwater")
        .option("server", client.address.url)
        .option("stream", cut.stream)
        .option("streamUuid", cut.stream_uuid)
        .option("startingOffsets", positions_text(starts))
        .option("endingOffsets", positions_text(ends))
        .option("columns", ",".join(columns))
        .option("maxRecordsPerPartition", str(_records_per_task(spark, cut)))
    )
    return rows.load()


def _records_per_task(spark: SparkSession, cut: Cut) -> int:
    """Cut a large tail so that all cores share it; a small one is not worth a second task."""
    total = sum(part.hot_end - part.cold_end for part in cut.partitions)
    share = -(-total // spark.sparkContext.defaultParallelism)
    return min(2_000_000, max(100_000, share))


def _refuse_lossy(spark: SparkSession) -> None:
    for name in _LOSSY_SETTINGS:
        if str(spark.conf.get(name, "false")).lower() == "true":
            raise InvalidConfigError(
                f"{name} is true in this session, so Spark would drop rows silently; unset it"
            )
