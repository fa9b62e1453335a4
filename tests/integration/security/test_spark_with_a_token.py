"""Spark with a token and no key of the bucket: its tasks use the keys that the broker gives out.

Spark's own file system has the keys and the address of another S3 here, so a row that the JVM read
would be an error. The broker refuses to read the table for others.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import TYPE_CHECKING, Any

import pytest

import headwater
from broker.errors import AccessDeniedError, HeadwaterError
from broker.model.access import Grant
from broker.model.offsets import Offset
from headwater.client.access import AccessCalls
from simkit.brokers.memory_broker import numbered
from simkit.servers.spark_session import as_user
from simkit.tier.lake_broker import LakeBroker
from simkit.tier.vending import Vending, vending_in
from spark_jobs.failures import typed

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

pytestmark = [pytest.mark.integration, pytest.mark.spark]

NO_KEYS = {"AWS_ACCESS_KEY_ID": "", "AWS_SECRET_ACCESS_KEY": "", "AWS_SESSION_TOKEN": ""}


@pytest.fixture(scope="module")
def vending(spark: SparkSession, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Vending]:
    """One broker for all tests of this file; Spark's JVM, which has keys, was there before."""
    with vending_in(tmp_path_factory.mktemp("vending"), together=True) as found:
        yield found


@pytest.fixture(autouse=True)
def no_cold_reads(monkeypatch: pytest.MonkeyPatch) -> None:
    """Make the broker unable to read the table for others."""

    def refuse(*_arguments: Any) -> Any:
        raise AssertionError("the broker was asked for cold rows")

    monkeypatch.setattr(LakeBroker, "read", refuse)


@pytest.fixture
def reader(vending: Vending, spark: SparkSession) -> Iterator[None]:
    """Be the principal ``reader``, who may consume shop: by a token, in driver and workers."""
    token = vending.tokens["reader"].reveal()
    variables = {"HEADWATER_SERVER": vending.server, "HEADWATER_TOKEN": token, **NO_KEYS}
    with as_user(spark, variables):
        yield


def test_a_read_by_a_token_alone(vending: Vending, spark: SparkSession, reader: None) -> None:
    """Both tiers, by each way to read; the certificate and the session of STS name the reader."""
    rows = headwater.read(spark, "shop")
    assert [row.offset for row in rows.orderBy("offset").collect()] == list(range(30))
    proof = headwater.certificate(rows)
    assert proof.reader == "reader"
    assert (proof.partitions[0].cold_count, proof.partitions[0].hot_count) == (20, 10)
    assert "reader" in vending.sessions.opened
    assert "from 1 files" in headwater.explain(rows)
    for way in (
        headwater.read(spark, "shop", certificate="full"),
        headwater.read(spark, "shop", certificate="none"),
        spark.read.format("headwater").option("stream", "shop").load(),
        spark.sql("SELECT * FROM headwater.shop"),
    ):
        assert way.select("offset").distinct().count() == 30


def test_the_latest_record_of_each_key(vending: Vending, spark: SparkSession, reader: None) -> None:
    """The same rows as those of a reader of the whole history."""
    with vending.client("reader") as client:
        wanted, _ = headwater.read_table("shop", server=client, latest=True)
    found = headwater.read(spark, "shop", latest=True).select("offset").collect()
    assert sorted(row.offset for row in found) == sorted(wanted["offset"].to_pylist())


def test_who_may_not_read_gets_a_typed_refusal(
    vending: Vending, spark: SparkSession, reader: None
) -> None:
    """From the unified read, the source and SQL; and no session is opened."""
    before = list(vending.sessions.opened)
    with pytest.raises(AccessDeniedError):
        headwater.read(spark, "payroll")
    ways: list[Callable[[], object]] = [
        lambda: spark.read.format("headwater").option("stream", "payroll").load().collect(),
        lambda: spark.sql("SELECT * FROM headwater.payroll").collect(),
    ]
    for way in ways:
        with pytest.raises(Exception, match="AccessDeniedError") as refused:
            way()
        assert isinstance(typed(refused.value), AccessDeniedError)
    assert vending.sessions.opened == before


@pytest.fixture
def long_read(vending: Vending, request: pytest.FixtureRequest) -> str:
    """A stream of many files, which ``reader`` may consume; its folder has the test's name."""
    name = str(request.node.name)
    with vending.client("admin") as admin:
        admin.create_stream(name)
        with admin.producer(name) as producer:
            producer.send(numbered(0, 400)).result(20)
        vending.broker.ship(name, 0, Offset(400), files=8)
        AccessCalls(admin).grant([may_consume(name)])
    return name


def may_consume(stream: str) -> Grant:
    """Return the grant of ``reader`` on a stream."""
    return Grant(principal="reader", kind="stream", pattern=stream, actions=("consume", "describe"))


def test_keys_that_end_are_renewed_in_the_middle_of_a_read(
    vending: Vending, spark: SparkSession, reader: None, long_read: str
) -> None:
    """Keys that say that they end within five minutes are asked for anew at each use."""
    vending.sessions.early_us = 700_000_000
    before = len(vending.sessions.opened)
    try:
        rows = headwater.read(spark, long_read)
        opened = len(vending.sessions.opened)
        assert rows.count() == 400
        assert len(vending.sessions.opened) > opened + 1 > before + 1
    finally:
        vending.sessions.early_us = 0


def test_a_revocation_in_the_middle_of_a_read_is_a_typed_refusal(
    vending: Vending, spark: SparkSession, reader: None, long_read: str
) -> None:
    """Who may not read any more gets no new keys, and hears why: not that the store is away."""
    vending.sessions.early_us = 700_000_000
    try:
        rows = headwater.read(spark, long_read)
        with vending.client("admin") as admin:
            AccessCalls(admin).revoke([may_consume(long_read)])
        with pytest.raises(Exception, match="AccessDeniedError") as refused:
            rows.collect()
        found = typed(refused.value)
        assert isinstance(found, HeadwaterError)
        assert isinstance(found, AccessDeniedError)
    finally:
        vending.sessions.early_us = 0
