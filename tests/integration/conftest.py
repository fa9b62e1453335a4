"""What tests ask for: nats-server and NATS ingest over it; a JVM for all Spark tests of a worker.

The JVM has one moto beside it.
"""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import TYPE_CHECKING

import pytest

from broker.config import NatsConfig
from headwater.local.embedded import moto_environment, start_moto
from simkit.brokers.ingest_rig import IngestRig
from simkit.servers.natsproc import NatsProcess
from simkit.servers.spark_session import activate, is_other_active, settings_of
from spark_jobs.session import build_session
from tiering.store.location import StoreConfig

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

BUCKET = "headwater-tests"

# For tables of some hundred rows Spark would compile code, and plan again between stages, for
# longer than it runs. Tests with the fixture `codegen`, and all programs with a session of their
# own, have this as users do.
_CODEGEN = {
    "spark.sql.codegen.wholeStage": ("false", "true"),
    "spark.sql.codegen.factoryMode": ("NO_CODEGEN", "FALLBACK"),
    "spark.sql.adaptive.enabled": ("false", "true"),
}
# Half the CPU of these tests is the planner's. Nobody looks at the plans that the UI would show,
# and whether each of Spark's own rules leaves a valid plan is for Spark's tests.
_SMALL = {
    "spark.sql.shuffle.partitions": "1",
    "spark.databricks.delta.snapshotPartitions": "1",
    "spark.sql.ui.explainMode": "simple",
    "spark.sql.lightweightPlanChangeValidation": "false",
}


@pytest.fixture
def server(tmp_path: Path) -> Iterator[NatsProcess]:
    """A nats-server of this test."""
    with NatsProcess(tmp_path) as process:
        yield process


@pytest.fixture
def rig(server: NatsProcess) -> Iterator[IngestRig]:
    """Ingest connected to the server."""
    with IngestRig(NatsConfig(url=server.url, connect_timeout_ms=60_000)) as connected:
        yield connected


@pytest.fixture(scope="session")
def moto_env(tmp_path_factory: pytest.TempPathFactory) -> Iterator[dict[str, str]]:
    """The environment of an S3 that forgets everything at the end of the run."""
    with start_moto(tmp_path_factory.mktemp("moto"), bucket=BUCKET) as moto:
        yield moto_environment(moto.address)


@pytest.fixture(scope="session")
def spark(moto_env: dict[str, str]) -> Iterator[SparkSession]:
    """The session that every Spark test shares; its S3A talks to moto."""
    lake = StoreConfig.from_env(f"s3://{BUCKET}/lake", moto_env)
    conf = {name: small for name, (small, _) in _CODEGEN.items()} | _SMALL
    session = build_session("headwater-tests", "local[2]", lake=lake, conf=conf)
    yield session
    session.stop()


@pytest.fixture
def codegen(spark: SparkSession) -> Iterator[None]:
    """Spark generates code for queries and adapts their plans, as it does for users."""
    for name, (_, usual) in _CODEGEN.items():
        spark.conf.set(name, usual)
    yield
    for name, (small, _) in _CODEGEN.items():
        spark.conf.set(name, small)


@pytest.fixture(autouse=True)
def session_as_it_was(request: pytest.FixtureRequest) -> Iterator[None]:
    """Undo what a test sets in Spark's session, so that it does not affect the next test.

    Also the active session, by whose settings Spark reads a schema in words: PySpark makes a
    session the active one when it makes rows from Python's.
    """
    if "spark" not in request.fixturenames:
        yield
        return
    spark: SparkSession = request.getfixturevalue("spark")
    before = settings_of(spark)
    yield
    other = is_other_active(spark)
    activate(spark)
    assert settings_of(spark) == before
    assert not other, "another session is left active; see simkit/servers/spark_session.py"
