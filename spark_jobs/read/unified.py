"""The unified read: a stream's whole history as one exact DataFrame.

    rows of a cut = Delta table at version v (native scan)  ∪  log [C, H) (source ``headwater``)

The order matters: a cut has first the lease, then the table version, then the high watermarks; the
table is opened only after that. The cold side is Spark's own scan, and its rows never go through
Python. The table's content is proved before the DataFrame is returned; the log's records are
counted while they are read. A read that cannot be exact fails; it never returns fewer rows.

A process without credentials of its own reads the table by keys that the broker gives out. Spark's
own scan has none of these, so there the data source reads the table, too.

The driver's process renews the lease and remembers certificates; a plan needs neither. Nothing here
needs a JVM in this process, so both classic sessions and sessions of Spark Connect work.
"""

from __future__ import annotations

import logging
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Final, Literal

from broker.codec.flight.protocol import AtTime
from broker.errors import InvalidRequestError, UnknownLeaseError
from broker.model.certificate import Certificate, Hole, PartitionCertificate
from broker.model.cut import Cut, Lease, PartitionCut
from broker.model.offsets import OffsetRange
from headwater.client.reader import reader_of
from headwater.reads.as_of import AsOf, AtOffsets, narrowed, parse_as_of
from headwater.reads.instant import at_one_instant
from headwater.reads.latest import require_newest
from headwater.reads.lease_keeper import KEEPER, LEASE_TTL_MS_DEFAULT
from headwater.reads.table_access import table_location
from headwater.reads.tail import joined_holes
from spark_jobs.clients import client_of
from spark_jobs.read.held_reads import READS, HeldRead
from spark_jobs.read.latest import latest_rows
from spark_jobs.read.scans import left_in, refuse_lossy, rows_of
from spark_jobs.sessions import is_running
from spark_jobs.source.columns import ROW_COLUMNS, check_projection, name_list
from spark_jobs.source.left import Counted
from tiering.keys.of_cut import usable_snapshot
from tiering.read.certify import certify_counts
from tiering.read.lake import kept_table
from tiering.read.reader import require_whole

if TYPE_CHECKING:
    from pyspark.sql import DataFrame, SparkSession

    from headwater.client import Client
    from tiering.store.location import StoreConfig
    from tiering.table.table import TableSnapshot

Proof = Literal["counts", "full", "none"]

_PROOFS: Final = ("counts", "full", "none")

_log = logging.getLogger("headwater.read")


@dataclass(frozen=True, slots=True, kw_only=True)
class ReadOptions:
    """Options that apply to every kind of read."""

    latest: bool = False
    certificate: Proof = "counts"
    columns: tuple[str, ...] = tuple(ROW_COLUMNS)
    lease_ttl_ms: int = LEASE_TTL_MS_DEFAULT

    def __post_init__(self) -> None:
        """Check the values."""
        if self.certificate not in _PROOFS:
            raise InvalidRequestError(
                f"certificate must be counts, full or none, not {self.certificate!r}"
            )
        check_projection(self.columns, where="columns")


def read(
    spark: SparkSession,
    stream: str | Cut,
    *,
    as_of: AsOf | None = None,
    latest: bool = False,
    certificate: Proof = "counts",
    columns: Sequence[str] | None = None,
    server: str | Client | None = None,
    lease_ttl_ms: int = LEASE_TTL_MS_DEFAULT,
) -> DataFrame:
    """Return every committed record of a stream, once, as one DataFrame. Blocks.

    The DataFrame is pinned: each action on it reads the same rows. The lease that keeps them is
    renewed until ``headwater.release``, the end of the session, or the end of the process.

    Args:
        spark: a session of :func:`spark_jobs.session.build_session`, or one of Spark Connect.
        stream: a stream's name, or a cut of it.
        as_of: the rows of an earlier moment: a cut (or its saved text), an offset per partition,
            or a time; :mod:`headwater.reads.as_of` explains each.
        latest: only the newest record of each (partition, key), without tombstones.
        certificate: what is proved before the read. ``counts``: file sizes, statistics and
            transactions; ``full``: every byte against the ledger, which reads everything (and for
            ``latest`` does not use the key snapshot); ``none``: nothing, but only offsets within
            the cut are returned.
        columns: the columns and their order; all by default. With fewer columns here the broker
            sends less; ``select`` on the result has this effect where the session has our jar.
        server: a client of the broker, or its address ``grpc://host:port``; by default
            HEADWATER_SERVER.
        lease_ttl_ms: how long the lease still holds after this process ends.

    Raises:
        UnknownStreamError, InvalidCutError, StreamRecreatedError: the stream or cut does not exist.
        OffsetOutOfRangeError: ``as_of`` is below the stream's start, or not committed yet.
        CorruptDataError: the table differs from what was committed; the subclass and the facts
            tell how.
        UnavailableError: the broker or the object store did not answer.
    """
    if isinstance(spark, str) or not isinstance(stream, str | Cut):
        raise InvalidRequestError(
            "a session of Spark comes first, then a stream's name: headwater.read(spark, 'orders')"
        )
    options = _options(latest, certificate, columns, lease_ttl_ms)
    client = client_of(server)
    refuse_lossy(spark)
    moment = _moment(stream, as_of)
    if isinstance(moment, Cut):
        cut, own_lease = _reopened(client, moment, lease_ttl_ms)
    else:
        assert isinstance(stream, str), "a cut as stream is also the moment"
        cut, own_lease = client.cut(stream, ttl_ms=lease_ttl_ms), True
    _hold(spark, cut, client, options, own_lease=own_lease)
    try:
        if not isinstance(moment, Cut | None):
            cut = narrowed(cut, moment, client)
        return _rows(spark, cut, options, client, asked=moment)
    except BaseException:
        KEEPER.release(cut.lease.lease_id)
        raise


def read_many(
    spark: SparkSession,
    streams: Sequence[str],
    *,
    as_of: AsOf | Mapping[str, AsOf] | None = None,
    latest: bool = False,
    certificate: Proof = "counts",
    columns: Sequence[str] | None = None,
    server: str | Client | None = None,
    lease_ttl_ms: int = LEASE_TTL_MS_DEFAULT,
) -> dict[str, DataFrame]:
    """Return several streams as of one instant, as DataFrames by name. Blocks.

    First a cut of every stream is taken, with its lease and table version. Then the broker returns
    the high watermarks of all streams at one moment, and each read ends there. The moment lies
    within the call, and exactly these rows were the committed records of all these streams then.
    So every record that was acknowledged as committed before this call is in the result. And if
    a record R is in the result, so is every record of these streams that was acknowledged as
    committed before R was published. The table versions may be older than the moment; that changes
    from which tier rows come, but not the rows.

    The result is not a transaction: if a producer sends a record to one stream and then one to
    another, the moment may lie between the two. With ``as_of`` each stream is narrowed by itself,
    and there is no common moment: a time applies to the timestamps of each stream's own records; a
    mapping has a moment for each stream.

    Args:
        spark: as for :func:`read`.
        streams: the streams' names, each once.
        as_of: a time for all streams, or a mapping from name to moment.
        latest: see :func:`read`.
        certificate: see :func:`read`.
        columns: see :func:`read`.
        server: see :func:`read`.
        lease_ttl_ms: see :func:`read`.

    Raises:
        StreamRecreatedError: a stream was deleted and created again meanwhile.
        OverloadedError: the broker found no moment between commits; try again.
        HeadwaterError: as for :func:`read`; after any error no lease is held.
    """
    if not streams or len(set(streams)) != len(streams) or isinstance(streams, str):
        raise InvalidRequestError(f"give a list of one or more names, each once, not {streams!r}")
    options = _options(latest, certificate, columns, lease_ttl_ms)
    client = client_of(server)
    refuse_lossy(spark)
    moments = _moments(streams, as_of)
    cuts: dict[str, Cut] = {}
    try:
        for name in streams:
            moment = moments.get(name)
            if isinstance(moment, Cut):
                cut, own_lease = _reopened(client, moment, lease_ttl_ms)
            else:
                cut, own_lease = client.cut(name, ttl_ms=lease_ttl_ms), True
            cuts[name] = cut
            _hold(spark, cut, client, options, own_lease=own_lease)
        if not moments:
            cuts = at_one_instant(cuts, client)
        for name, moment in moments.items():
            if not isinstance(moment, Cut):
                cuts[name] = narrowed(cuts[name], moment, client)
        return {
            name: _rows(spark, cuts[name], options, client, asked=moments.get(name))
            for name in streams
        }
    except BaseException:
        for cut in cuts.values():
            KEEPER.release(cut.lease.lease_id)
        raise


def certify(
    cut: Cut, *, form: Proof, client: Client, location: StoreConfig | None
) -> tuple[Certificate | None, TableSnapshot | None]:
    """Prove the table's part of a cut and add the log's part, which the read itself counts.

    ``location`` is that of the cut's table; None if the cut has no table.

    Returns the certificate and the proved table version, with which a scan must agree; for the form
    ``none`` returns (None, None). Blocks; errors as in :func:`read`.
    """
    if form == "none":
        return None, None
    table = snapshot = None
    if location is not None:  # else there is no table yet, or there will be none
        table = kept_table(location)
        snapshot = table.snapshot(cut.table_version)
    if form == "full":
        return _verified(cut, client), snapshot
    cold, files_count, files_bytes = [part.empty_proof for part in cut.partitions], 0, 0
    if table is not None:
        assert snapshot is not None, "a table was opened at the cut's version"
        _require_moment(cut, snapshot)
        cold, files_count, files_bytes = certify_counts(snapshot, cut, table.store, sparse=True)
        cold = [_narrowed(*one) for one in zip(cold, cut.partitions, strict=True)]
    proof = Certificate(
        stream=cut.stream,
        stream_uuid=cut.stream_uuid,
        table_version=cut.table_version,
        form="counts",
        partitions=tuple(
            replace(
                proved,
                end=part.end,
                hot_count=part.hot_stop - part.cold_end,
            )
            for proved, part in zip(cold, cut.partitions, strict=True)
        ),
        files_count=files_count,
        files_bytes=files_bytes,
        reader=reader_of(client),
    )
    return proof, snapshot


def _narrowed(proved: PartitionCertificate, part: PartitionCut) -> PartitionCertificate:
    """Return the proof of what a cut reads of the table, from that of all that the table has.

    The table has each record above the end, because :func:`_require_moment` has refused others.
    """
    if part.cold_stop == part.start:  # which may be an end among compacted records
        return part.empty_proof
    count = proved.cold_count - (part.cold_end - part.cold_stop)
    return replace(proved, cold_count=count)


def _require_moment(cut: Cut, snapshot: TableSnapshot) -> None:
    """Refuse an end among records of which key compaction has removed some: nothing counts them."""
    for part in cut.partitions:
        if part.end < snapshot.whole_start(part.partition):
            wanted = OffsetRange(part.start, part.end)
            require_whole(snapshot, part.partition, wanted)


def _options(
    latest: bool,
    certificate: Proof,
    columns: Sequence[str] | None,
    lease_ttl_ms: int,
) -> ReadOptions:
    return ReadOptions(
        latest=latest,
        certificate=certificate,
        columns=name_list(columns or tuple(ROW_COLUMNS)),
        lease_ttl_ms=lease_ttl_ms,
    )


def _hold(
    spark: SparkSession, cut: Cut, client: Client, options: ReadOptions, *, own_lease: bool
) -> None:
    KEEPER.hold(
        cut.lease,
        client=client,
        ttl_ms=options.lease_ttl_ms,
        drop_at_end=own_lease,
        what=f"stream={cut.stream} records={cut.records_count}",
        in_use=lambda: is_running(spark),
    )


def _rows(
    spark: SparkSession,
    cut: Cut,
    options: ReadOptions,
    client: Client,
    *,
    asked: Cut | AtOffsets | AtTime | None,
) -> DataFrame:
    """Prove a held cut, build its DataFrame and remember its read."""
    location = None if cut.table_version is None else table_location(client, cut)
    proof, table = certify(cut, form=options.certificate, client=client, location=location)
    if options.latest and table is not None:
        _require_moment(cut, table)
    left = left_in(spark, cut, client)
    if proof is not None and left is not None:
        proof = _of_left(proof, left)
    if options.latest and any(one.thinned for one in left or ()):
        saved = asked.lease if isinstance(asked, Cut) else cut.lease
        require_newest(cut, lease_lives=saved.lease_id == cut.lease.lease_id)
    server, proved = client.address.url, proof is not None
    snapshot = None
    if options.latest:
        # Raises for a foreign change, even if it is not used. Only Spark's own scan reads it.
        whole = None if table is None else table.whole_start
        found = usable_snapshot(cut, location, whole_start=whole)
        by_spark = options.certificate != "full" and (location is None or location.vended is None)
        snapshot = found if by_spark else None
        rows = latest_rows(
            spark,
            cut,
            options.columns,
            server=server,
            proved=proved,
            snapshot=snapshot,
            table=table,
            location=location,
            left=left,
        )
    else:
        rows = rows_of(
            spark,
            cut,
            options.columns,
            server=server,
            proved=proved,
            table=table,
            location=location,
            left=left,
        )
    READS.remember(
        rows,
        HeldRead(
            cut=cut,
            certificate=proof,
            latest=options.latest,
            key_snapshot=snapshot,
            location=location,
        ),
    )
    _log.info(
        "lease_held lease_id=%s stream=%s records=%d: renewed until headwater.release(df), "
        "spark.stop() or the end of this process",
        cut.lease.lease_id,
        cut.stream,
        cut.records_count,
    )
    return rows


def _of_left(proof: Certificate, left: Sequence[Counted]) -> Certificate:
    """Return a certificate of what key compaction has left: the tasks return exactly these rows."""
    partitions = []
    for one in proof.partitions:
        counted = [part for part in left if part.piece.partition == one.partition]
        holes = [
            Hole(part.thinned.start, part.thinned.end, "compaction", part.missing_count)
            for part in counted
            if part.thinned is not None
        ]
        partitions.append(
            replace(
                one,
                hot_count=sum(part.left.rows for part in counted),
                holes=(
                    *(hole for hole in one.holes if hole.reason != "compaction"),
                    *joined_holes(holes),
                ),
            )
        )
    return replace(proof, partitions=tuple(partitions))


def _verified(cut: Cut, client: Client) -> Certificate:
    from headwater.reads.verification import verify_cut  # noqa: PLC0415  (only the full form needs it)

    return verify_cut(client, cut)


def _moment(stream: str | Cut, as_of: AsOf | None) -> Cut | AtOffsets | AtTime | None:
    """Return the wanted moment; None for now."""
    if as_of is None:
        return stream if isinstance(stream, Cut) else None
    if isinstance(stream, Cut):
        raise InvalidRequestError(
            "a cut is a moment already, so it takes no as_of; give the stream's name instead"
        )
    return _checked(stream, parse_as_of(as_of))


def _moments(
    streams: Sequence[str], as_of: AsOf | Mapping[str, AsOf] | None
) -> dict[str, Cut | AtOffsets | AtTime]:
    """Return the moment of each stream; empty if all streams are read as of now."""
    if as_of is None:
        return {}
    if isinstance(as_of, Mapping):
        if set(as_of) != set(streams):
            raise InvalidRequestError(
                f"as_of has moments for {sorted(map(str, as_of))}, but the streams are "
                f"{sorted(streams)}; give each stream one moment"
            )
        given: dict[object, AsOf] = dict(as_of.items())
        return {name: _checked(name, parse_as_of(given[name])) for name in streams}
    moment = parse_as_of(as_of)
    if not isinstance(moment, AtTime):
        raise InvalidRequestError(
            "as_of of several streams must be a time, or {stream: moment}; a cut belongs to one "
            "stream"
        )
    return dict.fromkeys(streams, moment)


def _checked(stream: str, moment: Cut | AtOffsets | AtTime) -> Cut | AtOffsets | AtTime:
    if isinstance(moment, Cut) and moment.stream != stream:
        raise InvalidRequestError(f"as_of is a cut of stream {moment.stream!r}, not of {stream!r}")
    return moment


def _reopened(client: Client, cut: Cut, ttl_ms: int) -> tuple[Cut, bool]:
    """Return a saved cut with a valid lease, and whether that lease is new and ours.

    If the lease is new, records of the cut may be deleted already. For the table the certificate
    shows that; for the log the broker refuses the read, or a newer table version serves it.
    """
    client.check_cut(cut)
    lease: Lease
    try:
        lease = client.renew_lease(cut.lease.lease_id, ttl_ms=ttl_ms)
    except UnknownLeaseError:
        lease = client.take_lease(cut.stream, ttl_ms=ttl_ms)
    return replace(cut, lease=lease), lease.lease_id != cut.lease.lease_id
