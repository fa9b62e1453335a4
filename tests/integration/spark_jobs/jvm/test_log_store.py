"""The log store over S3A against moto, behind a proxy that loses answers and arranges races."""

from __future__ import annotations

import threading
import uuid
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import TYPE_CHECKING, Any

import boto3
import pyarrow as pa
import pytest
from deltalake import DeltaTable, write_deltalake

from simkit.servers.s3_proxy import Break, Rule, S3Proxy, s3_proxy

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

pytestmark = [pytest.mark.spark, pytest.mark.integration, pytest.mark.timeout(500)]


@pytest.fixture(scope="module")
def proxy(moto_env: dict[str, str]) -> Iterator[S3Proxy]:
    """One proxy before moto for this file."""
    with s3_proxy(moto_env["AWS_ENDPOINT_URL"]) as found:
        yield found


@pytest.fixture(scope="module")
def bucket(spark: SparkSession, moto_env: dict[str, str], proxy: S3Proxy) -> str:
    """A bucket that Spark reaches through the proxy, by s3a (our store) and by s3 (Delta's own)."""
    name = f"race-{uuid.uuid4().hex[:8]}"
    _s3(moto_env).create_bucket(Bucket=name)
    hadoop = spark.sparkContext._jsc.hadoopConfiguration()
    hadoop.set(f"fs.s3a.bucket.{name}.endpoint", proxy.address)
    hadoop.set("fs.s3.impl", "org.apache.hadoop.fs.s3a.S3AFileSystem")
    return name


@pytest.fixture
def write(spark: SparkSession) -> Callable[..., None]:
    """Call the store's write: path, lines, overwrite."""
    java: Any = spark._jvm
    hadoop = spark.sparkContext._jsc.hadoopConfiguration()

    def call(path: str, lines: Any, *, overwrite: bool = False) -> None:
        store = java.io.headwater.spark.ConditionalLogStore(hadoop)
        if isinstance(lines, list):
            lines = java.java.util.ArrayList(lines).iterator()
        store.write(java.org.apache.hadoop.fs.Path(path), lines, overwrite, hadoop)

    return call


def test_the_first_commit_stays(
    bucket: str, write: Callable[..., None], moto_env: dict[str, str]
) -> None:
    """The second gets the error on which Delta rebases: the version exists."""
    write(f"s3a://{bucket}/log/1.json", ["first"])
    with pytest.raises(Exception, match=r"java\.nio\.file\.FileAlreadyExistsException"):
        write(f"s3a://{bucket}/log/1.json", ["second"])
    assert _text(moto_env, bucket, "log/1.json") == "first\n"


def test_of_two_writes_at_once_one_wins(
    bucket: str, proxy: S3Proxy, write: Callable[..., None], moto_env: dict[str, str]
) -> None:
    """Both PUTs are sent before either is done, so neither writer saw the other's file."""
    proxy.once(*[Rule(Break.MEET, "PUT", "log/2.json")] * 2)

    with ThreadPoolExecutor(2) as pool:
        jobs = {
            text: pool.submit(write, f"s3a://{bucket}/log/2.json", [text])
            for text in ("left", "right")
        }
    errors = {text: job.exception() for text, job in jobs.items()}
    (won,) = [text for text, error in errors.items() if error is None]
    (lost,) = [str(error) for error in errors.values() if error is not None]
    assert "FileAlreadyExistsException" in lost
    assert proxy.unmet() == 0
    assert _text(moto_env, bucket, "log/2.json") == f"{won}\n"


def test_our_own_write_whose_answer_was_lost_is_a_success(
    bucket: str, proxy: S3Proxy, write: Callable[..., None], moto_env: dict[str, str]
) -> None:
    """The SDK sends again and is refused because of its own first PUT."""
    proxy.once(Rule(Break.DROP_AFTER, "PUT", "log/3.json"))
    before = proxy.count("PUT")
    write(f"s3a://{bucket}/log/3.json", ["ours", "lines"])
    assert proxy.unmet() == 0
    assert proxy.count("PUT") == before + 2  # it was sent again
    assert _text(moto_env, bucket, "log/3.json") == "ours\nlines\n"


def test_a_commit_that_fails_half_way_is_not_published(
    spark: SparkSession, bucket: str, write: Callable[..., None], moto_env: dict[str, str]
) -> None:
    """Closing a stream publishes it, so a failure before the close must not close."""
    java: Any = spark._jvm
    lines = java.java.util.ArrayList(["one", "two"])
    iterator = lines.iterator()
    lines.add("the iterator notices this and throws")
    with pytest.raises(Exception, match="ConcurrentModificationException"):
        write(f"s3a://{bucket}/log/4.json", iterator)
    assert _keys(moto_env, bucket, "log/4.json") == []


def test_checkpoints_may_overwrite(
    bucket: str, write: Callable[..., None], moto_env: dict[str, str]
) -> None:
    """_last_checkpoint is written again and again."""
    for text in ("old", "new"):
        write(f"s3a://{bucket}/log/_last_checkpoint", [text], overwrite=True)
    assert _text(moto_env, bucket, "log/_last_checkpoint") == "new\n"


def test_without_conditional_create_nothing_is_written(
    tmp_path: Path, write: Callable[..., None]
) -> None:
    """A file system that does not know the option refuses; there is no silent fallback."""
    with pytest.raises(Exception, match=r"conditional\.overwrite"):
        write(f"file://{tmp_path}/1.json", ["x"])
    assert not list(tmp_path.glob("*.json"))


@pytest.mark.slow
@pytest.mark.parametrize(("scheme", "lost"), [("s3a", 0), ("s3", 1)])
def test_a_commit_of_delta_rs_survives_a_driver(
    spark: SparkSession,
    bucket: str,
    proxy: S3Proxy,
    moto_env: dict[str, str],
    scheme: str,
    lost: int,
) -> None:
    """Spark's PUT of version 1 waits for that of delta-rs; Delta's own store then loses one.

    Both writers report success each time. The s3 scheme has the same file system and the stock
    store: that is what the test would look like without our class.
    """
    key = f"tables/{scheme}"
    path = f"{scheme}://{bucket}/{key}"
    options = _delta_options(moto_env, proxy)
    write_deltalake(f"s3://{bucket}/{key}", _row(0), storage_options=options)
    proxy.once(*[Rule(Break.MEET, "PUT", f"{key}/_delta_log/{1:020}.json")] * 2)

    tick = threading.Event()
    with ThreadPoolExecutor(1) as pool:
        job = pool.submit(spark.range(1, 2).write.format("delta").mode("append").save, path)
        while proxy.unmet() == 2 and not job.done():
            tick.wait(0.05)  # until Spark's PUT is at the proxy, which holds it
        write_deltalake(f"s3://{bucket}/{key}", _row(2), mode="append", storage_options=options)
        job.result()

    assert proxy.unmet() == 0
    table = DeltaTable(f"s3://{bucket}/{key}", storage_options=options)
    assert table.version() == 2 - lost
    ids = sorted(table.to_pyarrow_table()["id"].to_pylist())
    assert len(ids) == 3 - lost
    assert set(ids) <= {0, 1, 2}


def _row(number: int) -> pa.Table:
    return pa.table({"id": pa.array([number], pa.int64())})


def _delta_options(env: dict[str, str], proxy: S3Proxy) -> dict[str, str]:
    return {**env, "AWS_ENDPOINT_URL": proxy.address, "AWS_ALLOW_HTTP": "true"}


def _s3(env: dict[str, str]) -> Any:
    return boto3.client(
        "s3",
        endpoint_url=env["AWS_ENDPOINT_URL"],
        region_name=env["AWS_REGION"],
        aws_access_key_id=env["AWS_ACCESS_KEY_ID"],
        aws_secret_access_key=env["AWS_SECRET_ACCESS_KEY"],
    )


def _text(env: dict[str, str], bucket: str, key: str) -> str:
    data: bytes = _s3(env).get_object(Bucket=bucket, Key=key)["Body"].read()
    return data.decode()


def _keys(env: dict[str, str], bucket: str, prefix: str) -> list[str]:
    listed = _s3(env).list_objects_v2(Bucket=bucket, Prefix=prefix)
    return [entry["Key"] for entry in listed.get("Contents", [])]
