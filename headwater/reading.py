"""Reads a stream's whole history with Spark: the functions that a notebook needs.

    spark = headwater.session()                      # here, on a cluster, or by Spark Connect
    flights = headwater.read(spark, "flights")       # Delta table and live tail, one DataFrame
    headwater.certificate(flights)                   # the checked counts of these rows
    text = headwater.cut_of(flights).save()          # the same rows again tomorrow: as_of=text
    headwater.read(spark, "flights", as_of="2026-01-31T08:00:00Z")       # or {0: 1200}, or text
    headwater.read(spark, "flights", latest=True)    # newest record of each key
    headwater.sql(spark, "SELECT count(*) FROM flights")                 # every stream is a table
    headwater.read_many(spark, ["flights", "fares"]) # several streams at one instant
    print(headwater.explain(flights))                # which files, which offsets, which lease
    headwater.release(flights)                       # end the lease: retention may delete its files

The work is done in spark_jobs; this module needs the extra ``spark``. The module is not called
``read``, because an imported submodule ``headwater.read`` would hide the function.
"""

from __future__ import annotations

import os
from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING

from broker.model.certificate import Certificate
from broker.model.cut import Cut
from headwater.reads.as_of import AsOf
from headwater.reads.lease_keeper import LEASE_TTL_MS_DEFAULT
from spark_jobs import session as sessions
from spark_jobs.clients import client_of
from spark_jobs.read import explain as explaining
from spark_jobs.read import held_reads, unified
from spark_jobs.read import sql as queries

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

    Without ``master`` and ``remote`` the environment decides: if SPARK_REMOTE names a Connect
    server, that server; under spark-submit, its master and settings; otherwise Spark starts in this
    process.

    Args:
        app_name: The name in Spark's UI and logs.
        master: ``local[4]`` or a cluster's address; see :func:`spark_jobs.session.build_session`.
        remote: A server of Spark Connect, ``sc://host:port``; see spark_jobs/connect_server.py.
        conf: Spark settings that override the defaults; Connect accepts runtime settings only.

    Raises:
        InvalidConfigError: Java is missing or too old, or the session would have no Delta.
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
    """Return every committed record of a stream, each once, as one DataFrame with fixed rows.

    ``server`` is an address (``grpc://host:port``) or a client; the default is HEADWATER_SERVER.
    :func:`spark_jobs.read.unified.read` explains the other arguments and the errors.
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
    """Return the files and ranges of a read; see :func:`spark_jobs.read.explain.explain`."""
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
    """Make a temporary view of each stream, all of one instant; a second call renews the views.

    See :func:`spark_jobs.read.sql.register`.
    """
    return queries.register(spark, _client(server), streams=streams, certificate=certificate)


def cut(
    stream: str, *, server: str | Client | None = None, lease_ttl_ms: int = LEASE_TTL_MS_DEFAULT
) -> Cut:
    """Take a cut of a stream; its lease ends after ``lease_ttl_ms`` unless a read renews it.

    ``cut.save()`` is one line of text; ``read(spark, stream, as_of=text)`` reads its rows.

    Raises:
        UnknownStreamError, UnavailableError.
    """
    return _client(server).cut(stream, ttl_ms=lease_ttl_ms)


def certificate(rows: DataFrame) -> Certificate:
    """Return the certificate of a DataFrame that :func:`read` returned."""
    return held_reads.certificate(rows)


def cut_of(rows: DataFrame) -> Cut:
    """Return the cut of a DataFrame that :func:`read` returned."""
    return held_reads.cut_of(rows)


def release(what: DataFrame | Cut) -> bool:
    """End the lease of a DataFrame or cut; tell whether it was still held."""
    return held_reads.release(what)


def release_all() -> int:
    """End every lease that this process holds for its reads; return their number."""
    return held_reads.release_all()


def _client(server: str | Client | None) -> Client:
    return client_of(server) if server is None or isinstance(server, str) else server
