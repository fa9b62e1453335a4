"""The key snapshot over a real table: exact, incremental, one of two runs wins."""

from __future__ import annotations

import argparse
import random
import sys
import threading
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pyarrow as pa
import pytest

import headwater
from broker.errors import HeadwaterError, StaleColdEndError
from broker.model.cut import Cut
from broker.model.offsets import Offset
from headwater.client import Client
from headwater.local import embedded
from headwater.reads.state import consume_state
from simkit.tier.lake_broker import Served
from spark_jobs.jobs import compact, snapshot, verify
from spark_jobs.jobs.job import Report
from spark_jobs.read.table_scan import table_at
from tiering.keys import plan as key_snapshot_plan
from tiering.keys.snapshot import latest_table, open_latest
from tiering.read.lake import Lake
from tiering.table.delta_table import DeltaStreamTable

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

pytestmark = [pytest.mark.spark, pytest.mark.integration]

REPORT = Report("test", sys.stderr)
Records = list[tuple[bytes | None, bytes | None]]


class Truth:
    """What the stream holds, by partition, and what its latest view must be."""

    def __init__(self) -> None:
        self.logs: dict[int, Records] = {0: [], 1: []}

    def latest(self) -> dict[tuple[int, bytes], tuple[int, bytes]]:
        """Return (partition, key) -> (offset, value) of the newest records that live."""
        newest: dict[tuple[int, bytes], tuple[int, bytes | None]] = {}
        for partition, log in self.logs.items():
            for offset, (key, value) in enumerate(log):
                if key is not None:
                    newest[partition, key] = (offset, value)
        return {place: (o, v) for place, (o, v) in newest.items() if v is not None}


@pytest.fixture
def truth() -> Truth:
    """Nothing yet."""
    return Truth()


def publish(served: Served, truth: Truth, records: Records, partition: int = 0) -> None:
    """Store and ship some records."""
    with Client(served.server) as client, client.producer("s", partition) as producer:
        producer.send(keyed(records))
    truth.logs[partition] += records
    served.broker.ship("s", partition, Offset(len(truth.logs[partition])))


def keyed(records: Records) -> pa.RecordBatch:
    """Return records as a producer sends them."""
    return pa.record_batch(
        {
            "key": pa.array([key for key, _ in records], pa.binary()),
            "value": pa.array([value for _, value in records], pa.binary()),
        }
    )


def run(spark: SparkSession, served: Served, *, check: bool = False) -> dict[str, Any]:
    """Run the job."""
    args = argparse.Namespace(server=served.server, stream="s", check=check)
    return dict(snapshot.run(spark, args, REPORT))


def rows(spark: SparkSession, served: Served) -> dict[tuple[int, bytes], tuple[int, bytes]]:
    """Return what the table holds, through plain Delta."""
    found = open_latest(served.broker.lake, "s", stream_uuid=served.broker.streams.get("s").uuid)
    assert found is not None
    table = table_at(spark, found.uri, found.version).collect()
    as_dict = {(row.partition, bytes(row.key)): (row.offset, bytes(row.value)) for row in table}
    assert len(as_dict) == len(table), "one row per partition and key"
    return as_dict


def state(served: Served) -> dict[tuple[int, bytes], tuple[int, bytes]]:
    """Return what a consumer of state is given, without Spark."""
    with consume_state("s", server=served.server) as consumer:
        found = [(one.partition, row) for one in consumer for row in one.rows.to_pylist()]
    assert found == sorted(found, key=lambda one: (one[0], one[1]["offset"]))
    return {(number, row["key"]): (row["offset"], row["value"]) for number, row in found}


def changes(seed: int, count: int, keys: int) -> Records:
    """Return random records: some without key, some tombstones."""
    rng = random.Random(seed)
    return [
        (
            None if rng.random() < 0.05 else b"k%d" % rng.randrange(keys),
            None if rng.random() < 0.2 else b"v%d-" % number + rng.randbytes(90),
        )
        for number in range(count)
    ]


def test_it_is_exact_at_every_cut(
    spark: SparkSession, served: Served, truth: Truth, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Built, advanced over partitions and buckets, and run for nothing: always the newest rows."""
    monkeypatch.setattr(key_snapshot_plan, "BUCKET_BYTES", 8_000)
    Client(served.server).create_stream("s", partitions=2)
    assert run(spark, served)["version"] is None
    publish(served, truth, changes(1, 600, 400))

    first = run(spark, served)
    assert rows(spark, served) == state(served) == truth.latest()
    assert first["ends"] == {"0": 600, "1": 0}
    assert first["files_added"] > 2
    again = run(spark, served)
    assert (again["version"], again["records_read"]) == (first["version"], 0)

    publish(served, truth, [(b"k1", b"new"), (b"k2", None), (b"other", b"x"), (None, b"y")])
    publish(served, truth, [(b"k1", b"of partition 1"), (b"", b"an empty key")], partition=1)
    assert state(served) == truth.latest(), "the key snapshot, and what came after it"
    second = run(spark, served, check=True)
    assert rows(spark, served) == truth.latest()
    assert second["ends"] == {"0": 604, "1": 2}
    assert second["files_kept"] > 0, "untouched buckets are not rewritten"
    publish(served, truth, [(None, b"no key")])
    third = run(spark, served)
    assert (third["files_added"], third["ends"]["0"]) == (0, 605)
    assert rows(spark, served) == truth.latest()


def test_expiry_changes_no_state_but_that_of_later_cuts(
    spark: SparkSession, served: Served, truth: Truth
) -> None:
    """Spark and a consumer agree, with a key snapshot from before it and with one from after it."""

    def latest(cut: Cut | None = None) -> dict[tuple[int, bytes], int]:
        frame = headwater.read(spark, cut or "s", latest=True, server=served.server)
        found = {(row.partition, bytes(row.key)): row.offset for row in frame.collect()}
        headwater.release(frame)
        return found

    with Client(served.server) as client:
        client.create_stream("s", partitions=2)
        publish(served, truth, [(b"gone", b"1"), (b"kept", b"2")])
        publish(served, truth, [(b"kept", b"3"), (b"new", b"4")])
        publish(served, truth, [(b"gone", b"of partition 1")], partition=1)
        before = client.cut("s", ttl_ms=600_000)
        run(spark, served)
        served.broker.expire("s", 0, Offset(2))
        after = {(0, b"kept"): 2, (0, b"new"): 3, (1, b"gone"): 0}
        assert latest() == {place: at for place, (at, _) in state(served).items()} == after
        run(spark, served, check=True)
        assert latest() == after
        assert latest(before) == {**after, (0, b"gone"): 0}


def test_of_two_runs_at_once_one_commits_and_the_other_is_told(
    spark: SparkSession, served: Served, truth: Truth, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A run that pauses before its commit, and wakes after its successor's, changes nothing."""
    Client(served.server).create_stream("s", partitions=2)
    publish(served, truth, changes(2, 100, 30))
    ready, woken = threading.Event(), threading.Event()
    commit = DeltaStreamTable.replace_files

    def paused(table: DeltaStreamTable, *args: Any, **wanted: Any) -> int:
        if threading.current_thread().name == "zombie":
            ready.set()
            assert woken.wait(120)
        return commit(table, *args, **wanted)

    monkeypatch.setattr(DeltaStreamTable, "replace_files", paused)
    outcome: list[HeadwaterError | dict[str, Any]] = []

    def zombie() -> None:
        try:
            outcome.append(run(spark, served))
        except HeadwaterError as error:
            outcome.append(error)

    thread = threading.Thread(target=zombie, name="zombie")
    thread.start()
    assert ready.wait(120)
    publish(served, truth, changes(3, 50, 30))
    won = run(spark, served)
    woken.set()
    thread.join(120)

    assert isinstance(outcome[0], StaleColdEndError)
    table = latest_table(served.broker.lake, served.broker.streams.get("s"))
    assert table.snapshot().version == won["version"]
    assert rows(spark, served) == truth.latest()


def test_a_run_that_dies_leaves_the_old_cut_or_the_new(
    spark: SparkSession, served: Served, truth: Truth, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Death comes with all files written: once just before the one commit, once just after it."""
    Client(served.server).create_stream("s", partitions=2)
    publish(served, truth, changes(4, 100, 30))
    commit = DeltaStreamTable.replace_files
    dies_before = True

    def dying(table: DeltaStreamTable, *args: Any, **wanted: Any) -> int:
        if not dies_before:
            commit(table, *args, **wanted)
        raise KeyboardInterrupt

    monkeypatch.setattr(DeltaStreamTable, "replace_files", dying)
    with pytest.raises(KeyboardInterrupt):
        run(spark, served)
    assert rows(spark, served) == {}
    folder = latest_table(served.broker.lake, served.broker.streams.get("s")).store.config.root
    assert len(list(folder.glob("partition=0/*.parquet"))) == 1, "an orphan"

    dies_before = False
    with pytest.raises(KeyboardInterrupt):
        run(spark, served)
    assert rows(spark, served) == truth.latest()
    monkeypatch.undo()
    done = run(spark, served, check=True)
    assert (done["files_added"], done["ends"]["0"]) == (0, 100)


def test_a_wrong_row_is_found(spark: SparkSession, served: Served, truth: Truth) -> None:
    """A row that is not the newest of its key fails the check, also in a table in good order."""
    Client(served.server).create_stream("s", partitions=2)
    publish(served, truth, changes(6, 100, 20))
    run(spark, served)
    found = open_latest(served.broker.lake, "s", stream_uuid=served.broker.streams.get("s").uuid)
    assert found is not None
    path = found.uri.removeprefix("file://")
    spark.sql(f"UPDATE delta.`{path}` SET value = X'00' WHERE offset % 7 = 0")

    report = verify.run(
        spark,
        verify.PARSER.parse_args(["--stream", "s", "--latest", "--server", served.server]),
        REPORT,
    )

    assert report["ok"] is False
    (finding,) = report["findings"]
    assert finding["error"] == "TableMismatchError"
    assert finding["facts"]["missing"] == finding["facts"]["surplus"] > 0


def test_a_recreated_stream_has_a_key_snapshot_of_its_own(
    spark: SparkSession, tmp_path: Path
) -> None:
    """A real broker: both incarnations keep their tables; compaction leaves either exact."""
    server = embedded.start_up(
        tmp_path / "data",
        "--nats-port", "0", "--flight-port", "0", "--http-port", "0",
    )  # fmt: skip
    try:
        lake = Lake.open(tmp_path / "data" / "lake")
        client = Client(server.address)
        uuids, facts = [], {}
        for number in range(2):
            uuids.append(client.create_stream("s").uuid)
            for value in (b"old", b"new"):
                with client.producer("s") as producer:
                    producer.send(keyed([(b"k%d" % number, value), (b"both", b"%d" % number)]))
                client.tier_flush("s")
            for job in (compact, snapshot):
                args = job.PARSER.parse_args(["--stream", "s", "--server", server.address])
                facts = dict(job.run(spark, args, REPORT))
            verdict = verify.run(
                spark,
                verify.PARSER.parse_args(["--stream", "s", "--server", server.address]),
                REPORT,
            )
            assert (verdict["ok"], verdict["files"], verdict["records"]) == (True, 1, 4)
            client.delete_stream("s")
        assert (facts["stream_uuid"], facts["ends"], facts["records"]) == (uuids[1], {"0": 4}, 2)
        for number, uuid in enumerate(uuids):
            found = open_latest(lake, "s", stream_uuid=uuid)
            assert found is not None
            latest = table_at(spark, found.uri, found.version).collect()
            assert {bytes(row.key): bytes(row.value) for row in latest} == {
                b"k%d" % number: b"new",
                b"both": b"%d" % number,
            }
    finally:
        server.stop()
