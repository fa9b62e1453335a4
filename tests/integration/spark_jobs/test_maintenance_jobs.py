"""The jobs compact and verify over a real table: nothing that a reader holds changes or goes."""

from __future__ import annotations

import argparse
import re
import sys
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pyarrow as pa
import pytest

from broker.errors import InvalidRequestError
from broker.model.offsets import Offset
from headwater import certificate, read
from headwater.client import Client
from headwater.reads.verification import verify_cut
from simkit.brokers.memory_broker import numbered
from simkit.encryption_keys import ENCRYPTION, FIRST, SECOND, keys_in, write_keyring
from simkit.tier.lake_broker import Served, serving
from spark_jobs.jobs import compact, snapshot, verify
from spark_jobs.jobs.job import Report, run_job
from spark_jobs.maintenance import table_compaction
from tiering.keys.snapshot import latest_table
from tiering.store.location import StoreConfig

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

pytestmark = [pytest.mark.spark, pytest.mark.integration]

REPORT = Report("test", sys.stderr)


def publish(served: Served, start: int, count: int, partition: int = 0) -> None:
    """Store records whose values are their numbers."""
    with Client(served.server) as client, client.producer("s", partition) as producer:
        for first in range(start, start + count, 10):
            producer.send(numbered(first, min(10, start + count - first)))


@pytest.fixture
def stream(served: Served) -> Served:
    """Stream ``s``: 200 records cold in eight files, 60 in three; a tail of 21."""
    Client(served.server).create_stream("s", partitions=2)
    publish(served, 0, 221)
    publish(served, 0, 60, 1)
    served.broker.ship("s", 0, Offset(100), files=4)
    served.broker.ship("s", 0, Offset(200), files=4)
    served.broker.ship("s", 1, Offset(60), files=3)
    return served


def arguments(job: Any, *argv: str) -> argparse.Namespace:
    """Parse a job's arguments."""
    found: argparse.Namespace = job.PARSER.parse_args(argv)
    return found


def run(job: Any, spark: SparkSession, served: Served, *argv: str) -> dict[str, Any]:
    """Run a job in this session."""
    return dict(job.run(spark, arguments(job, *argv, "--server", served.server), REPORT))


def test_a_table_of_a_stream_is_not_compacted_by_its_place(
    spark: SparkSession, stream: Served
) -> None:
    """Without the stream's name the table is not proved, and VACUUM could delete needed files."""
    run(snapshot, spark, stream, "--stream", "s")
    client = Client(stream.server)
    held = client.cut("s", ttl_ms=60_000)
    assert held.table_uri is not None
    for uri in (held.table_uri, f"{held.table_uri}__latest"):
        with pytest.raises(InvalidRequestError, match="give --stream s"):
            run(compact, spark, stream, "--table", uri, "--vacuum")


def test_compaction_beside_readers_and_the_uploader(
    spark: SparkSession, stream: Served, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A saved cut, a new read, verify, tiering and VACUUM: none notices that files were joined."""
    client = Client(stream.server)
    cut = client.cut("s", ttl_ms=600_000)
    before = verify_cut(client, cut)
    report = run(verify, spark, stream, "--stream", "s")
    assert report["ok"]
    assert report["records"] == 281

    rewritten = table_compaction._rewritten

    def and_meanwhile(*args: Any) -> Any:
        found = rewritten(*args)
        stream.broker.ship("s", 0, Offset(211))  # the uploader is quicker than our commit
        return found

    monkeypatch.setattr(table_compaction, "_rewritten", and_meanwhile)
    done = run(compact, spark, stream, "--stream", "s", "--vacuum")
    monkeypatch.undo()

    assert (done["files_before"], done["files_after"], done["bins_lost"]) == (11, 2, 0)
    assert done["vacuumed"][0]["objects"] == 0, "a week is kept"
    rows = read(spark, "s", server=stream.server)
    assert certificate(rows).files_count == 3
    assert sorted(int(row.value) for row in rows.where("partition = 0").collect()) == [*range(221)]
    assert verify_cut(client, cut) == before
    again = run(verify, spark, stream, "--stream", "s", "--cut", cut.save())
    assert (again["ok"], again["digest"]) == (True, report["digest"])

    with pytest.raises(InvalidRequestError, match="lease"):
        run(compact, spark, stream, "--stream", "s", "--vacuum", "--retain-hours", "0")
    client.drop_lease(cut.lease.lease_id)
    for lease in client.leases("s"):
        client.drop_lease(lease.lease_id)
    asked = ("--stream", "s", "--vacuum", "--retain-hours", "0")
    would = run(compact, spark, stream, *asked, "--dry-run")
    assert would["vacuumed"][0]["objects"] == 11
    assert verify_cut(client, cut) == before, "a dry run deletes nothing"
    gone = run(compact, spark, stream, *asked)
    assert gone["vacuumed"][0]["objects"] >= 11
    assert run(verify, spark, stream, "--stream", "s")["ok"]


def test_after_a_rotation_jobs_need_the_new_key_only_and_write_with_it(
    spark: SparkSession, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Their tasks, too, which run in other processes: the old provider key is gone for good."""
    ring, alone = tmp_path / "brokers.toml", tmp_path / "alone.toml"
    write_keyring(ring, one=FIRST)
    write_keyring(alone, two=SECOND)
    lake = StoreConfig.from_env(str(tmp_path / "lake"))
    with serving(replace(lake, key_provider="file", keyring_file=str(ring))) as served:
        served.broker.keys = keys_in(ring)
        client = Client(served.server)
        client.create_stream("s", encryption=ENCRYPTION, table_encryption="ciphertext")
        publish(served, 0, 60)
        served.broker.ship("s", 0, Offset(60), files=2)
        write_keyring(ring, two=SECOND, one=FIRST)
        stream = client.rotate_key("s")
        write_keyring(ring, two=SECOND)
        publish(served, 60, 60)
        served.broker.ship("s", 0, Offset(110))

        monkeypatch.setenv("HEADWATER_ENCRYPTION_PROVIDER", "file")
        monkeypatch.setenv("HEADWATER_ENCRYPTION_KEYRING_FILE", str(alone))
        assert run(verify, spark, served, "--stream", "s")["ok"]
        done = run(compact, spark, served, "--stream", "s")
        assert (done["files_before"], done["files_after"]) == (3, 1)
        files = served.broker.table("s").snapshot().files
        (body,) = [served.broker.table("s").store.get(file.path) for file in files]
        assert set(re.findall(rf"{stream.uuid}/(\d+) ".encode(), body)) == {b"2"}
        assert run(verify, spark, served, "--stream", "s")["ok"]
        source = spark.read.format("headwater").option("encryptionKeyring", str(alone))
        rows = source.options(server=served.server, stream="s").load().select("value").collect()
        assert sorted(int(row.value) for row in rows) == [*range(120)]


def _flip_a_bit(path: Path) -> None:
    body = bytearray(path.read_bytes())
    body[len(body) // 4] ^= 1
    path.write_bytes(body)


@pytest.mark.parametrize(
    ("damage", "error"), [(_flip_a_bit, "ObjectCorruptError"), (Path.unlink, "ObjectMissingError")]
)
def test_verify_names_what_is_damaged(
    spark: SparkSession,
    stream: Served,
    tmp_path: Path,
    damage: Callable[[Path], None],
    error: str,
) -> None:
    """Exit status 1, the error by name with the object's key, and the other ranges still proved."""
    path = sorted(stream.broker.table("s").store.config.root.glob("partition=0/*.parquet"))[2]
    damage(path)
    result = tmp_path / "result.json"

    status = run_job(
        "verify",
        verify.PARSER,
        verify.run,
        ["--stream", "s", "--server", stream.server, "--report", str(result)],
    )

    assert status == 1
    report = result.read_text()
    assert error in report
    assert path.name in report
    assert '"ok": false' in report
    assert report.count('"proved": true') >= 6


def test_all_three_jobs_on_s3(
    spark: SparkSession, moto_env: dict[str, str], monkeypatch: pytest.MonkeyPatch
) -> None:
    """Tasks find the store and its credentials by themselves; commits are conditional PUTs."""
    for name, value in moto_env.items():
        monkeypatch.setenv(name, value)
    with serving(StoreConfig.from_env("s3://headwater-tests/maintained")) as served:
        Client(served.server).create_stream("s")
        keyed(served, 0, 40)
        served.broker.ship("s", 0, Offset(40), files=4)

        done = run(compact, spark, served, "--stream", "s", "--vacuum")
        assert (done["files_before"], done["files_after"]) == (4, 1)
        assert run(verify, spark, served, "--stream", "s")["ok"]
        latest = run(snapshot, spark, served, "--stream", "s")
        assert (latest["ends"], latest["records"]) == ({"0": 40}, 7)
        found = latest_table(served.broker.lake, served.broker.streams.get("s")).snapshot()
        assert [(one.min_offset, one.max_offset, one.records_count) for one in found.files] == [
            (33, 39, 7)
        ]


def keyed(served: Served, start: int, count: int) -> None:
    """Store records of seven keys."""
    numbers = range(start, start + count)
    batch = pa.record_batch(
        {"key": [b"k%d" % (n % 7) for n in numbers], "value": [b"%d" % n for n in numbers]}
    )
    with Client(served.server) as client, client.producer("s") as producer:
        producer.send(batch)
