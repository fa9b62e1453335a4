"""What users write, for ``mypy --strict``: each call of the public API, and the type it has.

Nothing here is run. ``make check`` reads it: an ``assert_type`` that is wrong is an error, and so
is a ``type: ignore`` that is not needed, so the lines that must not pass are proved, too.
pyarrow ships no types: to a checker its batches are ``Any``, and so is what ``send`` takes.
"""

from __future__ import annotations

from concurrent.futures import Future
from datetime import UTC, datetime
from typing import assert_type

from pyspark.sql import DataFrame, SparkSession

import headwater
from broker.errors import GapError, HeadwaterError
from broker.model.certificate import Certificate, PartitionCertificate
from broker.model.cut import Cut, Lease
from broker.model.epochs import LeaderEpoch
from broker.model.groups import GroupDescription, PositionReset
from broker.model.ids import ProducerId
from broker.model.offsets import Offset, OffsetRange
from broker.model.purge import Purged
from broker.model.records import AppendResult
from broker.model.stream import AlteredStream, Stream, StreamConfig
from broker.model.tiering import HeldLease, TierStatus
from headwater.client.address import Addresses
from headwater.client.brokers import ToldPlace
from headwater.client.descriptions import (
    PartitionPosition,
    StreamDescription,
    StreamHighWatermarks,
)
from headwater.client.fetch import Fetch
from headwater.reads.as_of import AsOf


def streams(client: headwater.Client) -> None:
    """Create, list, describe, alter and delete."""
    assert_type(client.address, Addresses)
    made = client.create_stream("orders", partitions=2, puback=True, flush="always")
    assert_type(made, Stream)
    assert_type(made.config, StreamConfig)
    assert_type(client.stream("orders"), Stream)
    assert_type(client.streams(), list[Stream])
    described = client.describe("orders")
    assert_type(described, StreamDescription)
    assert_type(described.partitions, tuple[PartitionPosition, ...])
    assert_type(described.records_count, int)
    assert_type(client.locate("orders"), list[ToldPlace])
    altered = client.alter_stream("orders", unshipped_bytes_max=None, dry_run=True)
    assert_type(altered, AlteredStream)
    assert_type(altered.after, Stream)
    client.alter_stream("orders", shards=2)  # type: ignore[call-arg]
    assert_type(client.rotate_key("orders"), Stream)
    assert_type(client.purge_stream("orders", 0, before=7), list[Purged])
    assert_type(client.purge_stream("orders", before_us=1)[0].records_count, int)
    client.pause_stream("orders", [0], resume_all=True)
    client.resume_stream("orders", stream_uuid=made.uuid)
    client.set_stream_readonly("orders", readonly=False)
    client.pause_stream("orders", "0")  # type: ignore[arg-type]
    assert_type(client.delete_stream("orders", stream_uuid=made.uuid), Stream)
    client.create_stream("orders", shards=2)  # type: ignore[call-arg]
    client.create_stream("orders", partitions="2")  # type: ignore[arg-type]
    client.create_stream("orders", flush="often")  # type: ignore[arg-type]


def groups(client: headwater.Client) -> None:
    """Read as a member of a group, and look after groups."""
    with client.consumer(["orders"], group="g", member_id="m", commit_ms=None) as consumer:
        assert_type(consumer, headwater.GroupConsumer)
        for record in consumer:
            assert_type(record, headwater.GroupRecord)
            assert_type(record.value, bytes | None)
            consumer.commit()
        for batch in consumer.batches():
            assert_type(batch, headwater.GroupBatch)
        assert_type(consumer.poll(1.0), headwater.GroupBatch | None)
        consumer.seek("orders", 0, 7)
        consumer.pause(("orders", 0))
        consumer.resume(("orders", 0))
        assert_type(consumer.assignment, list[headwater.AssignedPartition])
        assert_type(consumer.positions, dict[headwater.AssignedPartition, Offset])
        assert_type(consumer.lag(), dict[headwater.AssignedPartition, int])
        assert_type(consumer.is_member, bool)
        assert_type(consumer.member_id, str)
        consumer.close(leave=True)
    client.consumer("orders", group="g", auto_offset_reset="now")  # type: ignore[arg-type]
    assert_type(client.groups(), list[str])
    described = client.describe_group("g")
    assert_type(described, GroupDescription)
    assert_type(described.partitions[0].offset, int | None)
    uuid = client.stream("orders").uuid
    client.reset_group("g", [PositionReset(stream_uuid=uuid, partition=0, offset=0)])
    client.delete_group("g")


def producing(client: headwater.Client) -> None:
    """Send what people have: values, texts, tombstones, mappings."""
    with client.producer("orders", 1, acks="leader") as producer:
        assert_type(producer, headwater.Producer)
        future = producer.send([b"one", "two", None, {"key": b"k", "value": b"three"}])
        assert_type(future, Future[AppendResult])
        assert_type(future.result().base_offset, Offset)
        rows: list[dict[str, bytes]] = [{"value": b"one"}]
        producer.send(rows)
        producer.flush(timeout_ms=1_000)
        assert_type(producer.producer_id, ProducerId)
        assert_type(producer.error, HeadwaterError | None)
        producer.close()
    with client.partitioned_producer("orders", acks="leader") as spread:
        assert_type(spread, headwater.PartitionedProducer)
        many = spread.send([{"key": b"k", "value": b"v"}])
        assert_type(many, Future[dict[int, AppendResult]])
        spread.flush(timeout_ms=1_000)
        spread.close()
    client.producer("orders", acks="some")  # type: ignore[arg-type]
    client.producer("orders", 1, placed_by=2).close()


def fetching(client: headwater.Client) -> None:
    """Read a range, and follow."""
    with client.fetch("orders", start="earliest", columns=["offset", "value"]) as fetched:
        assert_type(fetched, Fetch)
        for one in fetched:
            assert_type(one.removed_count, int)
            assert_type(one, headwater.Fetched)
            assert_type(one.base_offset, Offset)
            assert_type(one.leader_epoch, LeaderEpoch)
        assert_type(fetched.position, Offset | None)
        assert_type(fetched.leader_epoch, LeaderEpoch | None)
        fetched.cancel()
    client.fetch("orders", start="beginning")  # type: ignore[arg-type]


def consuming(client: headwater.Client) -> None:
    """All partitions at once, and go on later."""
    with client.consume("orders", columns=["offset", "value"]) as consumer:
        assert_type(consumer, headwater.Consumer)
        for one in consumer:
            assert_type(one, headwater.Consumed)
            assert_type(one.partition, int)
            assert_type(one.fetched, headwater.Fetched)
    assert_type(consumer.positions, dict[int, Offset])
    consumer.close()
    client.consume("orders", consumer.positions, follow=True)
    client.consume("orders", 7)  # type: ignore[arg-type]


async def in_coroutines() -> None:
    """The same for asyncio."""
    async with headwater.AsyncClient("grpc://127.0.0.1:7410") as client:
        assert_type(await client.create_stream("orders", partitions=2), Stream)
        assert_type(await client.stream("orders"), Stream)
        assert_type(await client.streams(), list[Stream])
        assert_type(await client.describe("orders"), StreamDescription)
        async with client.producer("orders", acks="all") as producer:
            assert_type(await producer.send([b"one"]), dict[int, AppendResult])
        async with client.consumer("orders", group="g") as member:
            async for record in member:
                assert_type(record, headwater.GroupRecord)
                await member.commit()
            assert_type(await member.poll(1.0), headwater.GroupBatch | None)
            await member.seek("orders", 0, 7)
        async with client.consume("orders", follow=True) as rows:
            async for one in rows:
                assert_type(one, headwater.Consumed)
        await client.close()


def without_spark() -> None:
    """The whole history as one Arrow table."""
    _, proof = headwater.read_table("orders", columns=["value"], as_of={0: 5}, latest=True)
    assert_type(proof, Certificate)
    with headwater.consume_state("orders", columns=["key", "value"], follow=True) as consumer:
        assert_type(consumer, headwater.StateConsumer)
        assert_type(consumer.cut, Cut)
        for one in consumer:
            assert_type(one, headwater.StateRows)
        assert_type(consumer.positions, dict[int, Offset] | None)
        assert_type(consumer.certificate, Certificate)


def holding(client: headwater.Client) -> None:
    """Leases, cuts, high watermarks, tiering."""
    lease = client.take_lease("orders", ttl_ms=60_000)
    assert_type(lease, Lease)
    assert_type(client.renew_lease(lease.lease_id), Lease)
    client.drop_lease(lease.lease_id)
    assert_type(client.leases("orders"), list[HeldLease])
    cut = client.cut("orders")
    assert_type(cut, Cut)
    assert_type(cut.save(), str)
    assert_type(Cut.load(cut.save()), Cut)
    client.check_cut(cut)
    marks = client.high_watermarks(["orders"])
    assert_type(marks, dict[str, StreamHighWatermarks])
    client.check_history("orders", marks["orders"].stream_uuid, [("lineage", 10)])
    assert_type(client.tier_status("orders"), list[TierStatus])
    assert_type(client.tier_flush("orders")[0].cold, OffsetRange)
    assert_type(client.call("list_streams", {}), list[dict[str, object]])
    client.close()


def reading() -> None:
    """Spark: the whole history, as of a moment, with its proof."""
    spark = headwater.session("mine", conf={"spark.ui.enabled": "true"})
    assert_type(spark, SparkSession)
    rows = headwater.read(spark, "orders")
    assert_type(rows, DataFrame)
    proof = headwater.certificate(rows)
    assert_type(proof, Certificate)
    assert_type(proof.partitions, tuple[PartitionCertificate, ...])
    cut = headwater.cut_of(rows)
    assert_type(cut, Cut)
    for moment in ("2026-01-31T08:00:00Z", datetime.now(UTC), {0: 1200}, {"0": 1200}, cut):
        headwater.read(spark, "orders", as_of=moment, latest=True, certificate="full")
    headwater.read(spark, "orders", as_of=1.5)  # type: ignore[arg-type]
    headwater.read(spark, "orders", certificate="some")  # type: ignore[arg-type]
    moments: dict[str, AsOf] = {"orders": cut, "fares": {0: 1}}
    both = headwater.read_many(spark, ["orders", "fares"], as_of=moments)
    assert_type(both, dict[str, DataFrame])
    assert_type(headwater.sql(spark, "SELECT count(*) FROM orders"), DataFrame)
    assert_type(headwater.register(spark, ["orders"]), dict[str, DataFrame])
    assert_type(headwater.explain(rows, files_max=None), str)
    assert_type(headwater.cut("orders", server="grpc://127.0.0.1:7410"), Cut)
    assert_type(headwater.release(rows), bool)
    assert_type(headwater.release(cut), bool)
    assert_type(headwater.release_all(), int)
    headwater.certificate("orders")  # type: ignore[arg-type]
    headwater.rread(spark, "orders")  # type: ignore[attr-defined]


def failing(client: headwater.Client) -> None:
    """An error's class says who has to act."""
    try:
        client.stream("orders")
    except GapError as error:
        assert_type(error.message, str)
        assert_type(error.retriable, bool)
