"""What readers rely on in a broker with a lake; the one in memory and a real one both keep it.

Spark's tests run on the one in memory. Each thing that they take from it is asked here of both, by
the same client: cuts, leases, what retention may free, positions, and errors.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path
from typing import Any

import pyarrow as pa
import pytest

from broker.adapters.clock import SystemClock
from broker.adapters.flight.config import FlightServiceConfig
from broker.adapters.flight.service import FlightService
from broker.codec.flight.protocol import AtTime
from broker.errors import (
    OffsetOutOfRangeError,
    StreamRecreatedError,
    UnknownLeaseError,
    UnknownStreamError,
)
from broker.model.ids import LeaseId
from broker.model.offsets import Offset, OffsetRange
from headwater.client import Client
from headwater.reads.history import History
from headwater.reads.instant import at_one_instant
from simkit.brokers.brokers import disk_broker
from simkit.brokers.memory_broker import numbered, records
from simkit.tier.lake_broker import serving
from tiering.read.certify import certify_counts
from tiering.read.lake import Lake
from tiering.store.location import StoreConfig
from tiering.tiering import Tiering

pytestmark = pytest.mark.integration

TTL_MS = 600_000


@pytest.fixture(params=["memory", "disk"])
def client(request: pytest.FixtureRequest, tmp_path: Path) -> Iterator[Client]:
    """A client of each in turn; stream ``s`` has two partitions and keeps nothing twice."""
    lake = str(tmp_path / "lake")
    if request.param == "memory":
        with serving(lake) as served, Client(served.server) as found:
            found.create_stream("s", partitions=2, local_retention_bytes=0)
            yield found
        return
    with disk_broker(tmp_path / "data") as broker:
        clock = SystemClock()
        tiering = Tiering(
            Lake.open(StoreConfig.from_env(lake), cluster="test"), broker.catalog(), clock
        )
        broker.cold.attach(tiering)
        service = FlightService(broker, clock, FlightServiceConfig(port=0))
        service.start()
        try:
            with Client(f"grpc://127.0.0.1:{service.port}") as found:
                found.create_stream("s", partitions=2, local_retention_bytes=0)
                tiering.start()
                yield found
        finally:
            tiering.stop()
            service.close()


def publish(client: Client, start: int, count: int, partition: int = 0) -> None:
    """Store records whose values are their numbers, ten to a batch."""
    with client.producer("s", partition) as producer:
        for first in range(start, start + count, 10):
            producer.send(numbered(first, min(10, start + count - first)))


def read(client: Client, start: int, end: int, partition: int = 0) -> list[tuple[int, int]]:
    """Return offsets and values of a range."""
    rows: list[tuple[int, int]] = []
    with client.fetch("s", partition, Offset(start), Offset(end)) as fetched:
        for one in fetched:
            offsets = one.batch.column("offset").to_pylist()
            assert offsets == list(range(one.base_offset, one.end_offset))
            rows += zip(offsets, map(int, one.batch.column("value").to_pylist()), strict=True)
    return rows


def test_a_cut_of_what_was_never_shipped_has_no_table(client: Client) -> None:
    """Everything is hot, from the first record."""
    publish(client, 0, 25)

    cut = client.cut("s", ttl_ms=TTL_MS)

    assert cut.table_version is None
    assert [(p.start, p.cold_end, p.hot_end) for p in cut.partitions] == [(0, 0, 25), (0, 0, 0)]


def test_a_cut_names_the_table_as_it_is(client: Client) -> None:
    """Cold ends are those of the version, which holds each offset below them once."""
    publish(client, 0, 30)
    publish(client, 0, 20, partition=1)
    client.tier_flush("s")
    publish(client, 30, 7)

    cut = client.cut("s", ttl_ms=TTL_MS)

    assert [(p.start, p.cold_end, p.hot_end) for p in cut.partitions] == [(0, 30, 37), (0, 20, 20)]
    table = Lake.open(cut.table_uri, cluster=cut.cluster).table_at(cut.table_uri)
    assert cut.table_version is not None
    snapshot = table.snapshot(cut.table_version)
    assert snapshot.stream_uuid == cut.stream_uuid == client.stream("s").uuid
    assert dict(snapshot.ranges) == {p.partition: OffsetRange(p.start, p.cold_end)
                                     for p in cut.partitions}  # fmt: skip
    proved, files, _ = certify_counts(snapshot, cut, table.store)
    assert ([one.cold_count for one in proved], files) == ([30, 20], 2)
    assert {lease.lease_id for lease in client.leases("s")} == {cut.lease.lease_id}


def test_positions_tell_both_tiers(client: Client) -> None:
    """A stream begins where its table does, and ends at the high watermark."""
    publish(client, 0, 30)
    client.tier_flush("s")
    publish(client, 30, 5)

    (first, second) = client.describe("s").partitions

    assert (first.start, first.high_watermark) == (0, 35)
    assert (second.start, second.high_watermark) == (0, 0)
    (cold, empty) = client.tier_status("s")
    assert (cold.cold, cold.high_watermark) == (OffsetRange(Offset(0), Offset(30)), 35)
    assert (len(empty.cold), empty.high_watermark) == (0, 0)
    assert client.high_watermarks(["s"])["s"].offsets == (35, 0)


def test_a_read_goes_over_the_seam(client: Client) -> None:
    """Rows before it, at it and behind it come once and in order, wherever they are by now."""
    publish(client, 0, 30)
    client.tier_flush("s")
    publish(client, 30, 30)

    for start, end in ((0, 60), (29, 31), (30, 31), (29, 30), (15, 45)):
        assert read(client, start, end) == [(n, n) for n in range(start, end)]


def test_every_column_comes_back_as_it_was_sent(client: Client) -> None:
    """The columns are equal from the log and from the table, also a time set by the broker."""
    sent: list[dict[str, Any]] = [
        {"value": b"1", "timestamp": 7, "reply_subject": "r", "correlation_id": "c\u00e9"},
        {"value": None, "key": b"", "reply_subject": "", "correlation_id": ""},
        {"value": b"", "key": b"k", "timestamp": 5, "headers": [("h", None), ("h", b"x")]},
        {"value": b"4", "key": None, "headers": [], "subject": "s.1"},
    ]
    with client.producer("s", 0) as producer:
        producer.send(sent)

    with client.fetch("s", 0, Offset(0), Offset(4)) as fetched:
        hot = [row for one in fetched for row in one.batch.to_pylist()]
    client.tier_flush("s")
    cut = client.cut("s", ttl_ms=TTL_MS)
    assert cut.partitions[0].cold_end == 4
    assert [row for one in History(client, cut).batches() for row in one.to_pylist()] == hot
    for row, record in zip(hot, sent, strict=True):
        headers = record.get("headers")
        assert row["headers"] == (
            headers if headers is None else [{"key": name, "value": text} for name, text in headers]
        )
        assert row["subject"] == record.get("subject", "s")
        for name in ("key", "value", "reply_subject", "correlation_id"):
            assert row[name] == record.get(name), name
        given_us = round(row["timestamp"].timestamp() * 1_000_000)
        assert given_us == record.get("timestamp", given_us)
        assert ("timestamp" in record) == (given_us < 10), "a time is given where none was sent"


def test_what_a_lease_holds_stays_on_the_disk(client: Client) -> None:
    """What was above the cold end of the lease is not freed; once the lease is gone it may be."""
    publish(client, 0, 20)
    client.tier_flush("s")
    cut = client.cut("s", ttl_ms=TTL_MS)
    publish(client, 20, 20)

    client.tier_flush("s")

    status = client.tier_status("s")[0]
    assert status.cold.end == 40
    assert status.local_start <= cut.partitions[0].cold_end
    assert read(client, 0, 40) == [(n, n) for n in range(40)]
    client.drop_lease(cut.lease.lease_id)
    assert read(client, 0, 40) == [(n, n) for n in range(40)]


def test_a_lease_is_renewed_until_it_is_dropped(client: Client) -> None:
    """Its end moves; a dropped one is unknown, and so is a stream that is not there."""
    lease = client.take_lease("s", ttl_ms=TTL_MS)
    assert client.renew_lease(lease.lease_id, ttl_ms=2 * TTL_MS).expires_us > lease.expires_us
    client.drop_lease(lease.lease_id)
    for gone in (lease.lease_id, LeaseId("never")):
        with pytest.raises(UnknownLeaseError):
            client.renew_lease(gone, ttl_ms=TTL_MS)
    for ask in (client.take_lease, client.cut):
        with pytest.raises(UnknownStreamError):
            ask("t", ttl_ms=TTL_MS)


def test_what_is_not_there_is_refused(client: Client) -> None:
    """An offset above the high watermark, and another incarnation of the name."""
    publish(client, 0, 10)
    with pytest.raises(OffsetOutOfRangeError):
        read(client, 5, 12)
    before = client.stream("s").uuid
    cut = client.cut("s", ttl_ms=TTL_MS)
    client.delete_stream("s")
    client.create_stream("s", partitions=2)
    publish(client, 100, 10)
    with (
        pytest.raises(StreamRecreatedError),
        client.fetch("s", 0, Offset(0), Offset(10), stream_uuid=before) as fetched,
    ):
        list(fetched)
    with pytest.raises(StreamRecreatedError):
        at_one_instant({"s": cut}, client)


def test_a_time_is_found_in_either_tier(client: Client) -> None:
    """The first record stamped then or later, wherever it lies."""
    with client.producer("s", 0) as producer:
        for stamp in (1_000, 3_000, 2_000, 5_000):
            producer.send(records([b"1"], timestamp=pa.array([stamp], pa.int64())))

    def found(stamp: int) -> int:
        with client.fetch("s", 0, AtTime(stamp), columns=["offset"]) as fetched:
            return int(next(iter(fetched)).base_offset)

    before = [found(stamp) for stamp in (0, 1_001, 2_500, 3_001)]
    client.tier_flush("s")
    assert before == [found(stamp) for stamp in (0, 1_001, 2_500, 3_001)] == [0, 1, 1, 3]


def test_a_cut_moves_up_to_one_instant(client: Client) -> None:
    """Its hot ends change; its cold part and its lease stay the same."""
    publish(client, 0, 10)
    client.tier_flush("s")
    cut = client.cut("s", ttl_ms=TTL_MS)
    publish(client, 10, 4)

    moved = at_one_instant({"s": cut}, client)["s"]

    assert [part.hot_end for part in moved.partitions] == [14, 0]
    assert replace(moved, partitions=cut.partitions) == cut
