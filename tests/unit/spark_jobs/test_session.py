"""The session's settings and the jar cache, without a JVM."""

from __future__ import annotations

import hashlib
import json
import sys
from pathlib import Path

import pytest

from broker.errors import InvalidConfigError
from spark_jobs import jars
from spark_jobs.session import require_java, settings
from spark_jobs.source.partitions import table_path
from tiering.store.location import StoreConfig

ENV = {
    "AWS_ENDPOINT_URL": "http://127.0.0.1:9000",
    "AWS_ACCESS_KEY_ID": "the-key-id",
    "AWS_SECRET_ACCESS_KEY": "the-secret",
    "AWS_SESSION_TOKEN": "the-token",
}


def test_no_credential_becomes_a_setting() -> None:
    """Settings show in Spark's UI and in `ps`, so secrets go by the environment."""
    chosen = settings(
        master="local[2]", store=StoreConfig.from_env("s3://b/lake", ENV), jar_paths=[Path("a.jar")]
    )

    text = json.dumps(chosen)
    assert not any(secret in text for secret in ("the-key-id", "the-secret", "the-token"))
    assert chosen["spark.hadoop.fs.s3a.endpoint"] == "http://127.0.0.1:9000"
    assert chosen["spark.hadoop.fs.s3a.path.style.access"] == "true"
    assert chosen["spark.hadoop.fs.s3a.connection.ssl.enabled"] == "false"
    assert chosen["spark.hadoop.fs.s3a.endpoint.region"]


def test_a_local_session_listens_on_the_loopback_only() -> None:
    """A cluster's driver must be reachable; a laptop's must not."""
    store = StoreConfig.from_env("s3://b", {})
    local = settings(master="local[3]", store=store, jar_paths=[])
    remote = settings(master="spark://host:7077", store=store, jar_paths=[])

    assert local["spark.driver.bindAddress"] == "127.0.0.1"
    assert local["spark.sql.shuffle.partitions"] == "3"
    assert local["spark.sql.sources.parallelPartitionDiscovery.parallelism"] == "3"
    assert "spark.driver.bindAddress" not in remote
    assert local["spark.ui.enabled"] == remote["spark.ui.enabled"] == "false"
    assert local["spark.pyspark.python"] == sys.executable


def test_jars_are_the_given_ones_and_the_users() -> None:
    """A jar of the user's does not push ours out."""
    chosen = settings(
        master="local",
        store=StoreConfig.from_env("s3://b", {}),
        jar_paths=[Path("/x/delta.jar")],
        extra_jars="/y/mine.jar",
    )
    assert chosen["spark.jars"] == "/x/delta.jar,/y/mine.jar"


def test_cached_jars_need_no_resolver(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """With a receipt and all its files no resolver runs; if a file is missing or cut, it does."""
    home = tmp_path / jars.set_name()
    (home / "jars").mkdir(parents=True)
    names = ["io.delta_delta-spark_4.2_2.13-4.4.0.jar", "other.jar"]

    def resolve(folder: Path, conf: object) -> None:
        for name in names:
            (folder / "jars" / name).write_bytes(b"jar")
        ran.append(folder)

    ran: list[Path] = []
    monkeypatch.setattr(jars, "_resolve", resolve)
    pinned = hashlib.sha256(b"jar").hexdigest()
    monkeypatch.setattr(jars, "SHA256", dict.fromkeys(names, pinned))
    assert [path.name for path in jars.fetch(tmp_path)] == names
    assert len(jars.fetch(tmp_path)) == 2
    assert ran == [home]

    (home / "jars" / "other.jar").write_bytes(b"j")
    jars.fetch(tmp_path)
    assert ran == [home, home]


def test_the_set_has_a_name_of_its_own(monkeypatch: pytest.MonkeyPatch) -> None:
    """Another version is another folder, so old jars never mix with new ones."""
    before = jars.set_name()
    monkeypatch.setattr(jars, "PACKAGES", (*jars.PACKAGES, "a:b:1"))
    assert jars.set_name() != before


@pytest.mark.parametrize(
    ("script", "says"),
    [
        (None, "no `java` on PATH"),
        ("echo 'openjdk version \"11.0.2\"' >&2", "is Java 11"),
        ("echo 'java version \"1.8.0_1\"' >&2", "is Java 8"),
        ("exit 3", "failed"),
    ],
)
def test_a_java_that_cannot_run_spark_is_named(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, script: str | None, says: str
) -> None:
    """The error tells the found version and what to do, before Spark's own error."""
    if script is not None:
        java = tmp_path / "java"
        java.write_text(f"#!/bin/sh\n{script}\n")
        java.chmod(0o755)
    monkeypatch.delenv("JAVA_HOME", raising=False)
    monkeypatch.setenv("PATH", str(tmp_path))
    with pytest.raises(InvalidConfigError, match=says):
        require_java()


def test_table_uris_are_spelled_as_spark_spells_them() -> None:
    """S3 goes through S3A, a directory is a plain path, also with a space in it."""
    assert table_path("s3://bucket/lake/default/s") == "s3a://bucket/lake/default/s"
    assert table_path("file:///a%20b/s") == "/a b/s"
