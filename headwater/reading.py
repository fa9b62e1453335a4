"""Reading a stream's whole history with Spark: what a notebook needs, and nothing else.

    spark = headwater.session()                      # here, on a cluster, or by Spark Connect
    flights = headwater.read(spark, "flights")       # Delta table and live tail, one DataFrame
    headwater.certificate(flights)                   # what is proved of it
    text = headwater.cut_of(flights).save()          # the same rows again tomorrow: as_of=text
    headwater.read(spark, "flights", as_of="2026-01-31T08:00:00Z")       # or {0: 1200}, or text
    headwater.read(spark, "flights", latest=True)    # newest record of each key
    headwater.sql(spark, "SELECT count(*) FROM flights")                 # every stream is a table
    headwater.read_many(spark, ["flights", "fares"]) # several streams at one instant
    print(headwater.explain(flights))                # which files, which offsets, which lease
    headwater.release(flights)                       # what it held may be deleted from now on

The work is in spark_jobs; this module needs the extra ``spark``. It is not called ``read``, because
a submodule of that name would hide the function as soon as somebody imported it.
"""

from __future__ import annotations

import os
from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING

from broker.model.certificate import Certificate
from broker.model.cut import Cut
from headwater.reads.as_of import AsOf
from spark_jobs import session as sessions
from spark_jobs.clients import client_of
from spark_jobs.read import explain as explaining
from spark_jobs.read import held_reads, unified
from spark_jobs.read import sql as queries
from spark_jobs.read.leases import LEASE_TTL_MS_DEFAULT

if TYPE_CHECKING:
    from headwater.client import Client
    from spark_jobs.spark_types import DataFrame, SparkSession


def session(
    app_name: str = "headwater",
    master: str | None = None,
    *,
    remote: str | None = None,
    conf: Mapping[str, str] | None = None,
) -> SparkSession:
    """Return a Spark session that reads streams: classic, or of Spark Connect.

    Without ``master`` and ``remote`` the surroundings decide: SPARK_REMOTE names a Connect server,
    spark-submit brings its own master and settings, and otherwise Spark starts in this process.

    Args:
        app_name: shown in Spark's UI and logs.
        master: ``local[4]`` or a cluster's address; see :func:`spark_jobs.session.build_session`.
        remote: a server of Spark Connect, ``sc://host:port``; see spark_jobs/connect_server.py.
        conf: Spark settings that win over those chosen for you; Connect takes runtime ones only.

    Raises:
        InvalidConfigError: Java is missing or too old; the session would be without Delta.
        UnavailableError: the jars are not cached yet and cannot be fetched.
    """
    if remote is None and master is None:
        remote = os.environ.get("SPARK_REMOTE")
    if remote is not None:
        return sessions.connect_session(remote, app_name, conf=conf)
    if master is None and "PYSPARK_GATEWAY_PORT" not in os.environ:  # spark-submit sets it
        master = "local[*]"
    return sessions.build_session(app_name, master, conf=conf)


def read(
    spark: SparkSession,
    stream: str | Cut,
    *,
    as_of: AsOf | None = None,
    latest: bool = False,
    certificate: unified.Proof = "counts",
    columns: Sequence[str] | None = None,
    server: str | Client | None = None,
    lease_ttl_ms: int = LEASE_TTL_MS_DEFAULT,
) -> DataFrame:
    """Return every committed record of a stream, each once, as one pinned DataFrame.

    ``server`` is an address (``grpc://host:port``) or a client; by default HEADWATER_SERVER's.
    The other arguments and the errors are those of :func:`spark_jobs.read.unified.read`.
    """
    return unified.read(
        spark,
        stream,
        as_of=as_of,
        latest=latest,
        certificate=certificate,
        columns=columns,
        client=_client(server),
        lease_ttl_ms=lease_ttl_ms,
    )


def read_many(
    spark: SparkSession,
    streams: Sequence[str],
    *,
    as_of: AsOf | Mapping[str, AsOf] | None = None,
    latest: bool = False,
    certificate: unified.Proof = "counts",
    columns: Sequence[str] | None = None,
    server: str | Client | None = None,
    lease_ttl_ms: int = LEASE_TTL_MS_DEFAULT,
) -> dict[str, DataFrame]:
    """Return several streams as of one instant, by name; see ``spark_jobs.read.unified``.

    ``server`` is as for :func:`read`.
    """
    return unified.read_many(
        spark,
        streams,
        as_of=as_of,
        latest=latest,
        certificate=certificate,
        columns=columns,
        client=_client(server),
        lease_ttl_ms=lease_ttl_ms,
    )


def explain(rows: DataFrame, *, files_max: int | None = 20) -> str:
    """Return which files and ranges a read covers; see :func:`spark_jobs.read.explain.explain`."""
    return explaining.explain(rows, files_max=files_max)


def sql(
    spark: SparkSession,
    statement: str,
    *,
    server: str | Client | None = None,
    certificate: unified.Proof = "counts",
) -> DataFrame:
    """Run a SQL statement in which every stream is a table; see ``spark_jobs.read.sql.query``."""
    return queries.query(spark, statement, _client(server), certificate=certificate)


def register(
    spark: SparkSession,
    streams: Sequence[str] | None = None,
    *,
    server: str | Client | None = None,
    certificate: unified.Proof = "counts",
) -> dict[str, DataFrame]:
    """Make a temporary view of each stream, all of one instant; again to move them up.

    See :func:`spark_jobs.read.sql.register`.
    """
    return queries.register(spark, _client(server), streams=streams, certificate=certificate)


def cut(
    stream: str, *, server: str | Client | None = None, lease_ttl_ms: int = LEASE_TTL_MS_DEFAULT
) -> Cut:
    """Take a cut of a stream, under a lease that ends after ``lease_ttl_ms`` unless it is read.

    ``cut.save()`` is one line of text; ``read(spark, stream, as_of=text)`` reads its rows.

    Raises:
        UnknownStreamError, UnavailableError.
    """
    return _client(server).cut(stream, ttl_ms=lease_ttl_ms)


def certificate(rows: DataFrame) -> Certificate:
    """Return what was proved of a DataFrame that :func:`read` returned."""
    return held_reads.certificate(rows)


def cut_of(rows: DataFrame) -> Cut:
    """Return the cut of a DataFrame that :func:`read` returned."""
    return held_reads.cut_of(rows)


def release(what: DataFrame | Cut) -> bool:
    """End the lease of a DataFrame or cut; tell whether it was still held."""
    return held_reads.release(what)


def release_all() -> int:
    """End every lease that this process holds for its reads; return how many there were."""
    return held_reads.release_all()


def _client(server: str | Client | None) -> Client:
    return client_of(server) if server is None or isinstance(server, str) else server
