"""Earlier moments, latest records, several streams at one instant, and the output of explain."""

from __future__ import annotations

import argparse
import sys
import threading
import time
from typing import TYPE_CHECKING, Any

import pytest

import headwater
from broker.errors import (
    CompactedRangeError,
    HeadwaterError,
    InvalidRequestError,
    StreamRecreatedError,
)
from broker.model.certificate import Hole
from broker.model.offsets import Offset
from headwater.client import Client
from headwater.reads.instant import at_one_instant
from headwater.reads.lease_keeper import KEEPER
from simkit.tier.lake_broker import Served
from spark_jobs.jobs import snapshot
from spark_jobs.jobs.job import Report

if TYPE_CHECKING:
    from pyspark.sql import DataFrame, SparkSession

pytestmark = [pytest.mark.spark, pytest.mark.integration]

BASE_US = 1_700_000_000_000_000


def record(number: int, keys: int = 7) -> dict[str, Any]:
    """Key ``number % keys``; every tenth has no key, every thirteenth is a tombstone."""
    return {
        "key": None if number % 10 == 3 else b"k%d" % (number % keys),
        "value": None if number % 13 == 5 else b"%d" % number,
        "timestamp": BASE_US + number * 1_000_000,
    }


@pytest.fixture
def stream(served: Served) -> Served:
    """Stream ``s``: partitions of 100 and 40 records, of which 60 and 0 are in the table."""
    with Client(served.server) as client:
        client.create_stream("s", partitions=2)
        for partition, count in ((0, 100), (1, 40)):
            with client.producer("s", partition) as producer:
                for first in range(0, count, 20):
                    producer.send([record(number) for number in range(first, first + 20)])
    served.broker.ship("s", 0, Offset(60), files=3)
    return served


def counts(rows: DataFrame) -> dict[int, list[int]]:
    """Return the sorted offsets of each partition."""
    found: dict[int, list[int]] = {0: [], 1: []}
    for row in rows.select("partition", "offset").collect():
        found[row.partition].append(row.offset)
    return {partition: sorted(offsets) for partition, offsets in found.items()}


def expected_latest(ends: dict[int, int]) -> dict[tuple[int, bytes], int]:
    """Return the offset of each key's newest record, computed the slow way."""
    newest: dict[tuple[int, bytes], int] = {}
    for partition, end in ends.items():
        for number in range(end):
            made = record(number)
            if made["key"] is None:
                continue
            if made["value"] is None:
                newest.pop((partition, made["key"]), None)
            else:
                newest[partition, made["key"]] = number
    return newest


def latest(rows: DataFrame) -> dict[tuple[int, bytes], int]:
    """Return key to offset; a key that comes twice fails."""
    taken = rows.select("partition", "key", "offset", "value").collect()
    found = {(row.partition, bytes(row.key)): row.offset for row in taken}
    assert len(found) == len(taken)
    assert all(bytes(row.value) == b"%d" % row.offset for row in taken)
    return found


@pytest.mark.parametrize(
    ("moment", "ends"),
    [
        ({0: 25, 1: 40}, (25, 40)),
        ({"0": 60, "1": 0}, (60, 0)),
        ('{"0": 80, "1": 7}', (80, 7)),
        (BASE_US + 24_500_000, (25, 25)),
        ("2023-11-14T22:14:30Z", (70, 40)),
    ],
)
def test_an_earlier_moment_is_exact_certified_and_can_be_saved(
    spark: SparkSession, stream: Served, moment: Any, ends: tuple[int, int]
) -> None:
    """The rows below the ends, whatever tier they are in; its saved cut reads the same later."""
    expected = {number: list(range(end)) for number, end in enumerate(ends)}
    rows: DataFrame | None = None
    for form in ("counts", "full", "none"):
        rows = headwater.read(
            spark,
            "s",
            as_of=moment,
            certificate=form,
            server=stream.server,
        )
        assert counts(rows) == expected
        if form != "none":
            proof = headwater.certificate(rows)
            assert [part.records_count for part in proof.partitions] == list(ends)
            assert [part.end for part in proof.partitions] == list(ends)
    assert rows is not None
    text = headwater.cut_of(rows).save()
    stream.broker.ship("s", 0, Offset(100))
    stream.broker.ship("s", 1, Offset(20))
    assert counts(headwater.read(spark, "s", as_of=text, server=stream.server)) == expected
    assert counts(headwater.read(spark, "s", as_of=moment, server=stream.server)) == expected


def test_a_moment_that_fails_holds_no_lease(spark: SparkSession, stream: Served) -> None:
    """A refused read leaves nothing held, at the broker or here."""
    with pytest.raises(HeadwaterError):
        headwater.read(spark, "s", as_of={0: 101, 1: 0}, server=stream.server)
    with pytest.raises(InvalidRequestError):
        headwater.read_many(spark, ["s"], as_of={0: 1}, server=stream.server)
    with pytest.raises(HeadwaterError):
        headwater.read_many(spark, ["s", "nothing"], server=stream.server)
    assert stream.broker.leases == {}


def test_latest_is_the_newest_record_of_each_key(spark: SparkSession, stream: Served) -> None:
    """One row per key, none for tombstones and keyless records, now and at an earlier moment."""
    rows = headwater.read(spark, "s", latest=True, server=stream.server)
    assert rows.columns == headwater.read(spark, "s", server=stream.server).columns
    assert latest(rows) == expected_latest({0: 100, 1: 40})

    for ends in ({0: 60, 1: 0}, {0: 18, 1: 40}):
        rows = headwater.read(spark, "s", as_of=ends, latest=True, server=stream.server)
        assert latest(rows) == expected_latest(ends)
    only = headwater.read(spark, "s", latest=True, columns=["value"], server=stream.server)
    assert (only.columns, only.count()) == (["value"], len(expected_latest({0: 100, 1: 40})))


def test_latest_begins_with_the_key_snapshot(spark: SparkSession, stream: Served) -> None:
    """With a key snapshot only later records are read; reads of earlier moments ignore it."""
    args = argparse.Namespace(server=stream.server, stream="s", check=False)
    snapshot.run(spark, args, Report("test", sys.stderr))
    with Client(stream.server) as client, client.producer("s", 1) as producer:
        producer.send([record(number) for number in range(40, 60)])
    stream.broker.ship("s", 0, Offset(80))

    rows = headwater.read(spark, "s", latest=True, server=stream.server)

    text = headwater.explain(rows)
    assert "__latest version" in text
    assert "partition 0: [60, 100)" in text
    assert latest(rows) == expected_latest({0: 100, 1: 60})
    full = headwater.read(spark, "s", latest=True, certificate="full", server=stream.server)
    assert "__latest" not in headwater.explain(full)
    assert latest(full) == latest(rows)
    for ends in ({0: 59, 1: 3}, {0: 60, 1: 44}):
        earlier = headwater.read(spark, "s", as_of=ends, latest=True, server=stream.server)
        assert ("__latest" in headwater.explain(earlier)) == (ends[0] == 60)
        assert latest(earlier) == expected_latest(ends)


def test_several_streams_are_of_one_instant(spark: SparkSession, stream: Served) -> None:
    """A writer alternates between two streams: no read has a second half without its first."""
    with Client(stream.server) as client:
        client.create_stream("t")
        stop = threading.Event()
        sent = 0

        def write() -> None:
            nonlocal sent
            with client.producer("s", 1) as first, client.producer("t") as second:
                while not stop.is_set():
                    first.send([b"1"]).result(120)
                    second.send([b"2"]).result(120)
                    sent += 1

        thread = threading.Thread(target=write)
        thread.start()
        deadline_s = time.monotonic() + 60
        try:
            seen: list[int] = []
            while len(seen) < 30 or (seen[-1] == seen[0] and time.monotonic() < deadline_s):
                cuts = {name: client.cut(name, 60_000) for name in ("t", "s")}
                at = at_one_instant(cuts, client)
                ahead = at["s"].partitions[1].hot_end - 40 - at["t"].partitions[0].hot_end
                assert ahead in (0, 1)
                seen.append(int(at["t"].partitions[0].hot_end))
            rows = headwater.read_many(spark, ["t", "s"], server=stream.server)
        finally:
            stop.set()
            thread.join()
    assert seen == sorted(seen)
    assert seen[-1] > seen[0], "no record was written, so the test proves nothing"
    ahead = rows["s"].where("partition = 1").count() - 40 - rows["t"].count()
    assert ahead in (0, 1)
    assert len(KEEPER.held()) >= 2
    assert counts(headwater.read_many(spark, ["s"], as_of=BASE_US, server=stream.server)["s"]) == {
        0: [],
        1: [],
    }


def test_a_stream_recreated_between_the_cuts_is_refused(stream: Served) -> None:
    """The instant is of the very streams that were cut."""
    with Client(stream.server) as client:
        client.create_stream("t")
        cuts = {"t": client.cut("t")}
        client.delete_stream("t")
        client.create_stream("t")
        with pytest.raises(StreamRecreatedError):
            at_one_instant(cuts, client)


def test_explain_names_files_ranges_lease_and_proof(spark: SparkSession, stream: Served) -> None:
    """It shows what a read covers, with its lease and after the lease has ended."""
    rows = headwater.read(spark, "s", as_of={0: 75, 1: 7}, server=stream.server)
    cut = headwater.cut_of(rows)

    text = headwater.explain(rows)

    assert f"version {cut.table_version}" in text
    assert f"{cut.lease.lease_id}: held" in text
    assert "counts: 82 records" in text
    assert "partition 0: [0, 75), log end 100" in text
    assert "table  [0, 60) from 3 files" in text
    assert "[20, 40)" in text
    assert "log    [60, 75) from the broker" in text
    assert "log    [0, 7) from the broker" in text
    assert "and 2 more" in headwater.explain(rows, files_max=1)
    early = headwater.read(spark, "s", as_of={0: 10, 1: 0}, server=stream.server)
    assert "table  [0, 10) from 1 files" in headwater.explain(early)
    headwater.release(rows)
    assert "released" in headwater.explain(rows)


def test_of_a_compacted_table_comes_what_is_left(spark: SparkSession, stream: Served) -> None:
    """The certificate counts what went; the newest records are exact; other reads are refused."""
    stream.broker.compact_keys("s", 0, Offset(60))
    cold = {number: record(number)["key"] for number in range(40)}
    last = {key: number for number, key in cold.items()}
    left = [n for n, key in cold.items() if key is None or last[key] == n]
    expected = {0: [*left, *range(40, 100)], 1: list(range(40))}
    for form in ("counts", "full"):
        rows = headwater.read(spark, "s", certificate=form, server=stream.server)
        assert counts(rows) == expected
        proof = headwater.certificate(rows).partitions[0]
        assert proof.holes == (Hole(Offset(0), Offset(40), "compaction", 40 - len(left)),)
        assert proof.records_count == len(expected[0])
        headwater.release(rows)
    rows = headwater.read(spark, "s", latest=True, server=stream.server)
    assert latest(rows) == expected_latest({0: 100, 1: 40})
    headwater.release(rows)
    for wrong in ({"as_of": {0: 30, 1: 40}}, {"certificate": "none"}):
        with pytest.raises(CompactedRangeError):
            headwater.read(spark, "s", server=stream.server, **wrong)
    source = spark.read.format("headwater").options(server=stream.server, stream="s")
    with pytest.raises(Exception, match="CompactedRangeError"):
        source.load().collect()
    assert source.option("startingOffsets", '{"0": 40, "1": 0}').load().count() == 100
