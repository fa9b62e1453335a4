"""The public API of Headwater: the client, and reads of a stream's whole history with Spark.

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

A name is loaded when it is first used, so ``import headwater`` costs nothing, and it works where
pyarrow or Spark are not installed. What reads with Spark is defined in ``spark_jobs`` and needs the
extra ``spark``. No submodule here may have the name of an exported function: once imported, it
would hide the function.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from headwater.lazy_names import lazy_names

if TYPE_CHECKING:
    from headwater.client import (
        AssignedPartition,
        AsyncClient,
        Client,
        Consumed,
        Consumer,
        Fetched,
        GroupBatch,
        GroupConsumer,
        GroupRecord,
        PartitionedProducer,
        Producer,
    )
    from headwater.reads.state import StateConsumer, StateRows, consume_state
    from headwater.reads.whole import read_table
    from spark_jobs.read.cut import cut
    from spark_jobs.read.explain import explain
    from spark_jobs.read.held_reads import certificate, cut_of, release, release_all
    from spark_jobs.read.sql import register, sql
    from spark_jobs.read.unified import read, read_many
    from spark_jobs.session import session

__version__ = "0.1.0"  # as in pyproject.toml; a test compares them

__all__ = [
    "AssignedPartition",
    "AsyncClient",
    "Client",
    "Consumed",
    "Consumer",
    "Fetched",
    "GroupBatch",
    "GroupConsumer",
    "GroupRecord",
    "PartitionedProducer",
    "Producer",
    "StateConsumer",
    "StateRows",
    "certificate",
    "consume_state",
    "cut",
    "cut_of",
    "explain",
    "read",
    "read_many",
    "read_table",
    "register",
    "release",
    "release_all",
    "session",
    "sql",
]

_HOMES = {
    "AsyncClient": "headwater.client",
    "Client": "headwater.client",
    "Consumed": "headwater.client",
    "Consumer": "headwater.client",
    "Fetched": "headwater.client",
    "GroupBatch": "headwater.client",
    "GroupConsumer": "headwater.client",
    "GroupRecord": "headwater.client",
    "PartitionedProducer": "headwater.client",
    "Producer": "headwater.client",
    "AssignedPartition": "headwater.client",
    "StateConsumer": "headwater.reads.state",
    "StateRows": "headwater.reads.state",
    "certificate": "spark_jobs.read.held_reads",
    "consume_state": "headwater.reads.state",
    "cut": "spark_jobs.read.cut",
    "cut_of": "spark_jobs.read.held_reads",
    "explain": "spark_jobs.read.explain",
    "read": "spark_jobs.read.unified",
    "read_many": "spark_jobs.read.unified",
    "read_table": "headwater.reads.whole",
    "register": "spark_jobs.read.sql",
    "release": "spark_jobs.read.held_reads",
    "release_all": "spark_jobs.read.held_reads",
    "session": "spark_jobs.session",
    "sql": "spark_jobs.read.sql",
}


if not TYPE_CHECKING:  # a checker would believe every name, misspelt ones too
    __getattr__, __dir__ = lazy_names(__name__, globals(), _HOMES)
