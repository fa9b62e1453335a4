"""Spark and compacted streams: what is left, the same each time, certified; and the jobs."""

from __future__ import annotations

import sys
import time
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pytest
from deltalake import DeltaTable

import headwater
from broker.errors import CompactedRangeError
from crashkit.stage import Stage, staged
from headwater.client import Client
from headwater.client.operations import Operations
from headwater.reads.verification import verify_cut
from spark_jobs.failures import typed
from spark_jobs.jobs import backfill, ingest, snapshot, verify
from spark_jobs.jobs.job import Report

if TYPE_CHECKING:
    from pyspark.sql import DataFrame, SparkSession

pytestmark = [pytest.mark.spark, pytest.mark.integration]


def _publish(stage: Stage, numbers: range, value: bytes = b"%d") -> None:
    with stage.client.producer("prices") as producer:
        for number in numbers:
            record = {"key": b"k%d" % (number % 4), "value": value % number}
            producer.send([record]).result(60)


def _values(rows: DataFrame) -> list[bytes]:
    return [bytes(row.value) for row in rows.orderBy("offset").collect()]


def test_what_is_left_is_read_and_certified(spark: SparkSession, tmp_path: Path) -> None:
    """By headwater.read, as state, by SQL and by the source; a stream from earliest is refused."""
    with staged(tmp_path) as stage:
        url = stage.broker.url
        stage.client.create_stream("prices", compact=True, tiering=False, dedup_window_ms=0)
        _publish(stage, range(40))
        (done,) = Operations(stage.client).compact("prices")
        assert (done.state, done.removed_count) == ("compacted", 36)
        _publish(stage, range(40, 43))
        left = [b"%d" % number for number in (*range(36, 40), *range(40, 43))]

        rows = headwater.read(spark, "prices", server=url)
        proof = headwater.certificate(rows)
        (part,) = proof.partitions
        assert (part.start, part.end, part.records_count) == (0, 43, 7)
        (hole,) = part.holes
        assert (hole.start, hole.reason, hole.missing_count) == (0, "compaction", 36)
        assert 40 <= hole.end <= 43, "as far as the answers that lack records go"
        table, local = headwater.read_table("prices", server=url)
        assert local.partitions[0].holes[0].missing_count == 36
        assert _values(rows) == left == table.column("value").to_pylist()
        full = verify_cut(stage.client, headwater.cut_of(rows)).partitions[0]
        assert (full.records_count, full.holes[0].missing_count) == (7, 36)

        Operations(stage.client).compact("prices")
        assert _values(rows) == left, "its lease holds what it reads"
        state = headwater.read(spark, "prices", latest=True, columns=["value"], server=url)
        assert {bytes(row.value) for row in state.collect()} == {b"40", b"41", b"42", b"39"}
        with pytest.raises(CompactedRangeError, match="not known any more"):
            headwater.read(spark, "prices", as_of={0: 20}, latest=True, server=url)
        plain = spark.read.format("headwater").option("server", url).option("stream", "prices")
        source = plain.load()
        assert source.count() == 7
        assert _values(source) == left
        assert _values(plain.option("minPartitions", "9").load()) == left

        stream = spark.readStream.format("headwater").option("server", url)
        stream = stream.option("stream", "prices").option("startingOffsets", "earliest")
        writer = stream.load().writeStream.format("noop").trigger(availableNow=True)
        query = writer.option("checkpointLocation", str(tmp_path / "checkpoint")).start()
        with pytest.raises(Exception, match="CompactedRangeError") as caught:
            query.awaitTermination(120)
        assert isinstance(typed(caught.value), CompactedRangeError)
        headwater.release(rows)
        headwater.release(state)


def _compacted(client: Client, end: int) -> None:
    """Wait until the table of ``prices`` has only four records below an offset."""
    client.tier_flush("prices")
    while (client.tier_status("prices")[0].gone_count or 0) < end - 4:
        time.sleep(0.02)


def test_the_jobs_take_what_is_left_of_a_table(spark: SparkSession, tmp_path: Path) -> None:
    """A table filled from it has each record that was left, once; verify compares each byte."""
    with staged(tmp_path) as stage:
        url, table = stage.broker.url, str(tmp_path / "filled")

        def run(job: Any, *more: str) -> dict[str, Any]:
            asked = job.PARSER.parse_args(["--stream", "prices", "--server", url, *more])
            done: dict[str, Any] = job.run(spark, asked, Report("test", sys.stderr))
            return done

        stage.client.create_stream(
            "prices",
            history="compact",
            compact_dirty_percent=1,
            dedup_window_ms=0,
            local_retention_bytes=0,
        )
        _publish(stage, range(20), b'{"n": %d}')
        stage.client.tier_flush("prices")
        assert run(snapshot)["records"] == 4
        _publish(stage, range(20, 40), b'{"n": %d}')
        stage.client.tier_flush("prices")
        _publish(stage, range(40, 44), b'{"n": %d}')
        _compacted(stage.client, 40)
        left = [*range(36, 44)]

        done = run(verify)
        assert (done["ok"], done["records"], done["ranges_proved"]) == (True, 8, 2)
        with pytest.raises(CompactedRangeError, match="headwater job snapshot"):
            run(verify, "--latest")
        run(snapshot)
        done = run(verify, "--latest")
        assert (done["ok"], done["records"], done["history_records"]) == (True, 4, 8)

        done = run(backfill, "--table", table)
        assert (done["records"], done["compacted"], done["ends"]) == (8, 36, {"0": 44})
        assert DeltaTable(table).to_pyarrow_table()["offset"].to_pylist() == left
        done = run(ingest, "--table", f"{table}-decoded")
        assert (done["records"], done["compacted"], done["behind"]) == (8, 36, 0)
        decoded = DeltaTable(f"{table}-decoded").to_pyarrow_table()
        assert decoded["offset"].to_pylist() == decoded["n"].to_pylist() == left
