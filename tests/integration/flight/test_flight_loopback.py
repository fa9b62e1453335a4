"""Service and client together, over real connections on the loopback."""

from __future__ import annotations

import threading
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from typing import Any

import pyarrow as pa
import pytest
from pyarrow import flight

from broker.adapters.flight.config import FlightServiceConfig
from broker.adapters.flight.service import FlightService
from broker.codec.flight.protocol import AtTime
from broker.codec.schema import ROW_SCHEMA
from broker.errors import (
    CommitTimeoutError,
    DiskFullError,
    InvalidRequestError,
    InvalidStreamError,
    OffsetOutOfRangeError,
    OverloadedError,
    RecordTooLargeError,
    RemoteTierUnavailableError,
    SchemaMismatchError,
    StreamExistsError,
    StreamRecreatedError,
    UnavailableError,
    UnknownLeaseError,
    UnknownPartitionError,
    UnknownStreamError,
)
from broker.model.ids import LeaseId, ProducerId
from broker.model.offsets import Offset, OffsetRange
from headwater.client import Client, Fetched, read_route
from simkit.brokers.memory_broker import MemoryBroker, numbered
from simkit.waiting import wait_until

WAIT_S = 60


@pytest.fixture
def broker() -> Iterator[MemoryBroker]:
    """Give an empty broker."""
    broker = MemoryBroker()
    yield broker
    broker.close()


@pytest.fixture
def service(broker: MemoryBroker) -> Iterator[FlightService]:
    """Give a running service that allows few streams."""
    service = FlightService(broker, broker.clock, FlightServiceConfig(port=0, idle_check_ms=20))
    service.start()
    yield service
    assert service.close(timeout_ms=10_000)


@pytest.fixture
def client(service: FlightService) -> Iterator[Client]:
    """Give a client of the service, and a stream."""
    with Client(f"127.0.0.1:{service.port}") as client:
        client.create_stream("s")
        yield client


def values(found: list[Fetched]) -> list[bytes | None]:
    """Return the values of all rows."""
    return [value for fetched in found for value in fetched.batch.column("value").to_pylist()]


# ---------------------------------------------------------------------------- streams


def test_streams_are_created_listed_described_and_deleted(client: Client) -> None:
    """The life of a stream, as a program sees it."""
    created = client.create_stream("other", subject="a.b", partitions=3, puback=True)
    assert created.config.partitions == 3
    assert client.create_stream("other", subject="a.b", partitions=3, puback=True) == created
    assert [stream.name for stream in client.streams()] == ["other", "s"]
    assert client.stream("other") == created
    about = client.describe("other")
    assert about.stream == created
    assert [part.subject for part in about.partitions] == ["a.b", "a.b.1", "a.b.2"]
    assert about.records_count == 0
    assert client.delete_stream("other") == created
    assert [stream.name for stream in client.streams()] == ["s"]


def test_errors_are_raised_by_class_with_their_facts(client: Client) -> None:
    """The caller catches the class that the broker raised."""
    with pytest.raises(UnknownStreamError) as caught:
        client.describe("nowhere")
    assert caught.value.stream == "nowhere"
    with pytest.raises(StreamExistsError):
        client.create_stream("s", subject="another")
    with pytest.raises(InvalidStreamError):
        client.create_stream("t", partitions=-1)
    with pytest.raises(InvalidRequestError):
        client.create_stream("../t")
    with pytest.raises(UnknownLeaseError):
        client.renew_lease(LeaseId("gone"))
    first = client.stream("s")
    client.delete_stream("s")
    client.create_stream("s")
    with pytest.raises(StreamRecreatedError):
        client.delete_stream("s", stream_uuid=first.uuid)


def test_a_broker_that_is_not_there_is_unavailable() -> None:
    """Without a broker the call does not hang; its error has the address."""
    with Client("127.0.0.1:1") as client, pytest.raises(UnavailableError, match=r"127\.0\.0\.1:1"):
        client.streams()


def test_leases_and_cuts(client: Client, broker: MemoryBroker) -> None:
    """A cut comes with its lease; leases are taken, renewed and dropped."""
    client.producer("s").send([b"1", b"2"]).result(WAIT_S)
    lease = client.take_lease("s", ttl_ms=1_000, owner="test")
    later = client.renew_lease(lease.lease_id, ttl_ms=5_000)
    assert later.expires_us == lease.expires_us + 4_000_000
    client.drop_lease(lease.lease_id)
    client.drop_lease(lease.lease_id)
    cut = client.cut("s", 2_000)
    assert (cut.records_count, cut.stream_uuid) == (2, client.stream("s").uuid)
    assert list(broker.leases) == [cut.lease.lease_id]


def test_tiering_is_asked_for_and_reported(client: Client) -> None:
    """A flush moves everything committed into the table."""
    client.producer("s").send([b"1", b"2"]).result(WAIT_S)
    assert client.tier_status("s")[0].cold == OffsetRange(Offset(0), Offset(0))
    (status,) = client.tier_flush("s")
    assert (status.cold, status.high_watermark) == (OffsetRange(Offset(0), Offset(2)), 2)


# ---------------------------------------------------------------------------- reads and writes


def test_records_come_back_bit_for_bit(client: Client) -> None:
    """A reader gets every column that a producer may send."""
    sent = {
        "value": b"\x00\xff",
        "key": b"",
        "headers": [("a", b"1"), ("a", b"2"), ("b", None)],
        "timestamp": 1_700_000_000_000_123,
        "subject": "s.t",
        "reply_subject": "r",
        "correlation_id": "c",
    }
    client.create_stream("wide", subject="s.>")
    with client.producer("wide") as producer:
        producer.send([sent, {"value": None}, "text"])
    (fetched,) = list(client.fetch("wide"))
    assert fetched.batch.schema == ROW_SCHEMA
    first, tombstone, text = fetched.batch.to_pylist()
    assert first["timestamp"].microsecond == 123
    assert first["headers"] == [{"key": k, "value": v} for k, v in sent["headers"]]  # type: ignore[attr-defined]
    for name in ("value", "key", "subject", "reply_subject", "correlation_id"):
        assert first[name] == sent[name]
    assert (tombstone["value"], tombstone["key"], tombstone["subject"]) == (None, None, "s.>")
    assert text["value"] == b"text"


def test_writing_goes_on_while_the_tier_is_away(
    client: Client, broker: MemoryBroker, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A new producer does not need the table; a read of freed records names the missing tier."""

    def away(*_: object) -> None:
        raise RemoteTierUnavailableError("the store does not answer")

    client.producer("s").send([b"1"]).result(WAIT_S)
    broker.partitions.handle("s", 0).make_cold(Offset(1))
    monkeypatch.setattr(broker, "status", away)
    assert client.producer("s").send([b"2"]).result(WAIT_S).base_offset == 1
    with pytest.raises(RemoteTierUnavailableError):
        list(client.fetch("s"))


def test_batches_are_pipelined_in_order(client: Client, broker: MemoryBroker) -> None:
    """Many batches are in flight at once, and their offsets follow each other."""
    partition = broker.partitions.handle("s", 0)
    with client.producer("s", window_batches=16) as producer:
        producer.send(numbered(0, 10)).result(WAIT_S)
        partition.hold()
        futures = [producer.send(numbered(n * 10, 10)) for n in range(1, 17)]
        assert not any(future.done() for future in futures)
        partition.release()
        assert [f.result(WAIT_S).base_offset for f in futures] == list(range(10, 170, 10))
    assert [int(value or b"x") for value in values(list(client.fetch("s")))] == list(range(170))


def test_a_full_window_blocks_the_sender(client: Client, broker: MemoryBroker) -> None:
    """Back-pressure reaches the caller: the window bounds what is unacknowledged."""
    producer = client.producer("s", window_batches=2)
    producer.send([b"0"]).result(WAIT_S)
    broker.partitions.handle("s", 0).hold()
    for _ in range(2):
        producer.send([b"1"])
    third_done = threading.Event()

    def send_third() -> None:
        producer.send([b"3"])
        third_done.set()

    threading.Thread(target=send_third).start()
    assert not third_done.wait(0.1)
    broker.partitions.handle("s", 0).release()
    assert third_done.wait(WAIT_S)
    producer.close()
    assert broker.partitions.handle("s", 0).high_watermark == 4


def test_threads_may_share_a_producer(client: Client) -> None:
    """Every batch of every thread is stored once; each thread's order is kept."""
    with client.producer("s") as producer, ThreadPoolExecutor(4) as pool:

        def work(thread: int) -> list[int]:
            return [producer.send([f"{thread}:{n}"]).result(WAIT_S).base_offset for n in range(25)]

        offsets = list(pool.map(work, range(4)))
    assert sorted(offset for each in offsets for offset in each) == list(range(100))
    assert all(each == sorted(each) for each in offsets)
    found = values(list(client.fetch("s")))
    assert sorted(found, key=str) == sorted(
        (f"{t}:{n}".encode() for t in range(4) for n in range(25)), key=str
    )


def test_the_schema_may_change_between_batches(client: Client) -> None:
    """A producer takes any records; a change of columns costs one new stream, not an error."""
    with client.producer("s") as producer:
        for n in range(6):
            producer.send([{"value": str(n), "key": "k"}] if n % 2 else [str(n)])
        producer.flush()
    assert values(list(client.fetch("s"))) == [b"0", b"1", b"2", b"3", b"4", b"5"]


def test_a_refused_batch_does_not_take_others_with_it(client: Client) -> None:
    """Batches in flight behind a batch that can never be stored are stored, in order."""
    client.create_stream("small", record_bytes_max=10)
    with client.producer("small") as producer:
        producer.send([b"first"]).result(WAIT_S)
        futures = [producer.send([b"x" * 11 if n == 3 else str(n).encode()]) for n in range(8)]
        with pytest.raises(RecordTooLargeError) as caught:
            futures[3].result(WAIT_S)
        assert caught.value.limit_bytes == 10
        kept = [future.result(WAIT_S).base_offset for n, future in enumerate(futures) if n != 3]
        assert kept == list(range(1, 8))
        with pytest.raises(RecordTooLargeError):
            producer.flush()
        producer.flush()
    assert values(list(client.fetch("small")))[1:] == [b"0", b"1", b"2", b"4", b"5", b"6", b"7"]


def test_an_outcome_worth_retrying_is_retried(client: Client, broker: MemoryBroker) -> None:
    """The disk gets room again, and only the producer has seen the error."""
    with client.producer("s") as producer:
        producer.send([b"0"]).result(WAIT_S)
        for _ in range(3):
            broker.partitions.handle("s", 0).fail_next(DiskFullError("no room"))
        futures = [producer.send([str(n)]) for n in range(1, 6)]
        assert [future.result(WAIT_S).base_offset for future in futures] == [1, 2, 3, 4, 5]
    assert values(list(client.fetch("s"))) == [b"0", b"1", b"2", b"3", b"4", b"5"]


def test_giving_up_says_what_the_broker_said_last(client: Client, broker: MemoryBroker) -> None:
    """A disk that stays full is named; the gaps that it caused behind it are not the reason."""
    producer = client.producer("s", retry_ms_max=200)
    producer.send([b"0"]).result(WAIT_S)
    for _ in range(100):
        broker.partitions.handle("s", 0).fail_next(DiskFullError("no room"))
    futures = [producer.send([b"x"]) for _ in range(3)]
    for future in futures:
        with pytest.raises(CommitTimeoutError, match="no room"):
            future.result(WAIT_S)


def test_a_producer_of_nothing_fails_by_name(client: Client) -> None:
    """Streams and partitions that are not there, and columns that are not, are told apart."""
    with pytest.raises(UnknownStreamError):
        client.producer("nowhere")
    with pytest.raises(UnknownPartitionError):
        client.producer("s", 7).send([b"x"]).result(WAIT_S)
    producer = client.producer("s")
    with pytest.raises(SchemaMismatchError):
        producer.send(pa.RecordBatch.from_pydict({"offset": [1]})).result(WAIT_S)
    wait_until(lambda: producer.error is not None, "the broker ends the call after its answer")
    assert isinstance(producer.error, SchemaMismatchError)
    with pytest.raises(SchemaMismatchError):
        producer.send([b"x"])


def test_a_producer_does_not_write_into_another_incarnation(client: Client) -> None:
    """A stream that was deleted and made again is not the one that the producer meant."""
    producer = client.producer("s")
    producer.send([b"1"]).result(WAIT_S)
    client.delete_stream("s")
    client.create_stream("s")
    with pytest.raises(StreamRecreatedError):
        producer.send([b"2"]).result(WAIT_S)
    assert client.describe("s").records_count == 0


def test_a_chosen_producer_id_is_recognised_by_a_second_producer(client: Client) -> None:
    """A program that remembers its numbers may repeat its last batch after a crash."""
    for again in (False, True):
        producer = client.producer("s", producer_id=ProducerId(77), sequence=0)
        result = producer.send([b"1", b"2"]).result(WAIT_S)
        producer.close()
        assert (result.base_offset, result.duplicate) == (0, again)
    assert client.describe("s").records_count == 2


def test_a_read_is_cut_to_its_offsets_and_columns(client: Client, broker: MemoryBroker) -> None:
    """Across the seam of the tiers as well."""
    with client.producer("s") as producer:
        for n in range(10):
            producer.send(numbered(n * 10, 10))
    broker.partitions.handle("s", 0).make_cold(Offset(40))
    found = list(client.fetch("s", start=35, end=55, columns=["offset", "value"]))
    assert [f.batch.schema.names for f in found] == [["offset", "value"]] * len(found)
    assert [offset for f in found for offset in f.batch.column(0).to_pylist()] == list(
        range(35, 55)
    )
    assert (found[0].base_offset, found[-1].end_offset) == (35, 55)
    assert {f.high_watermark for f in found} == {100}


def test_bad_reads_fail_by_name(client: Client) -> None:
    """The error carries facts, with which a reader can correct its request."""
    with pytest.raises(OffsetOutOfRangeError) as caught:
        list(client.fetch("s", start=5))
    assert (caught.value.offset, caught.value.start, caught.value.end) == (5, 0, 0)
    with pytest.raises(SchemaMismatchError):
        list(client.fetch("s", columns=["rowid"]))
    with pytest.raises(UnknownStreamError):
        list(client.fetch("nowhere"))
    old = client.stream("s").uuid
    client.delete_stream("s")
    client.create_stream("s")
    with pytest.raises(StreamRecreatedError):
        list(client.fetch("s", stream_uuid=old))


def test_a_start_by_time(client: Client) -> None:
    """The first record that is not older than the time."""
    with client.producer("s") as producer:
        producer.send([{"value": str(n), "timestamp": 1_000 + n} for n in range(10)])
    assert values(list(client.fetch("s", start=AtTime(1_007)))) == [b"7", b"8", b"9"]


# ---------------------------------------------------------------------------- following


def test_a_follower_gets_records_as_they_come(client: Client) -> None:
    """The tail is live; closing the read ends it without an error."""
    with client.producer("s") as producer, client.fetch("s", start="latest", follow=True) as tail:
        for n in range(5):
            producer.send([str(n)])
            got = next(tail)
            assert (got.base_offset, values([got])) == (n, [str(n).encode()])
        tail.cancel()
        assert list(tail) == []


def test_cancelling_an_idle_follower_frees_its_place(
    service: FlightService, client: Client
) -> None:
    """The broker notices within its idle check; nothing is left behind."""
    assert service._server is not None
    places = service._server._followers
    tail = client.fetch("s", start="latest", follow=True)
    wait_until(lambda: places.taken_count == 1, "a place is taken")
    tail.cancel()
    wait_until(lambda: places.taken_count == 0, "no place is taken")


def test_a_follower_of_a_deleted_stream_is_told(client: Client) -> None:
    """It does not wait for records that cannot come."""
    tail = client.fetch("s", start="latest", follow=True)
    client.delete_stream("s")
    with pytest.raises(UnknownStreamError):
        next(tail)


def test_too_many_calls_are_refused(broker: MemoryBroker, monkeypatch: pytest.MonkeyPatch) -> None:
    """Each long call holds a thread, so their number is bounded, for each kind by itself."""
    monkeypatch.setattr(read_route, "RETRY_MS", 100)  # what is refused is tried again for so long
    service = FlightService(broker, broker.clock, FlightServiceConfig(port=0, streams_max=1))
    service.start()
    assert service._server is not None
    followers = service._server._followers
    with Client(f"127.0.0.1:{service.port}") as client:
        client.create_stream("s")
        tail = client.fetch("s", start="latest", follow=True)
        wait_until(lambda: followers.taken_count == 1, "a place is taken")
        with pytest.raises(OverloadedError):
            next(client.fetch("s", start="latest", follow=True))
        client.producer("s", retry_ms_max=0).send([b"x"]).result(WAIT_S)
        assert values(list(client.fetch("s"))) == [b"x"]
        tail.cancel()
    assert service.close()


# ---------------------------------------------------------------------------- shutdown


def test_closing_ends_followers_and_producers(
    broker: MemoryBroker, monkeypatch: pytest.MonkeyPatch
) -> None:
    """No call keeps a closing service alive; every open call gets the reason."""
    monkeypatch.setattr(read_route, "RETRY_MS", 100)
    service = FlightService(broker, broker.clock, FlightServiceConfig(port=0, idle_check_ms=20))
    service.start()
    with Client(f"127.0.0.1:{service.port}") as client:
        client.create_stream("s")
        producer = client.producer("s", retry_ms_max=100)
        producer.send([b"1"]).result(WAIT_S)
        tail = client.fetch("s", start="latest", follow=True)
        assert service.close(timeout_ms=10_000)
        with pytest.raises(UnavailableError):
            next(tail)
        with pytest.raises(UnavailableError):
            producer.send([b"2"]).result(WAIT_S)


def test_a_silent_foreign_client_does_not_hold_the_service(
    service: FlightService, client: Client
) -> None:
    """A do_put that never ends is severed when half of the time has passed."""
    foreign = flight.connect(f"grpc://127.0.0.1:{service.port}")
    batch = numbered(0, 1)
    writer, reader = foreign.do_put(flight.FlightDescriptor.for_path(b"s", b"0"), batch.schema)
    writer.write_batch(batch)
    assert reader.read() is not None
    assert service.close(timeout_ms=10_000)
    with pytest.raises(flight.FlightUnavailableError):
        writer.close()


# ---------------------------------------------------------------------------- discovery


def test_flight_infos_lead_a_foreign_client_to_the_rows(
    service: FlightService, client: Client
) -> None:
    """A client that knows Arrow Flight alone can list, inspect and read streams."""
    client.create_stream("t", partitions=2)
    for partition, count in ((0, 3), (1, 4)):
        client.producer("t", partition).send([b"x"] * count).result(WAIT_S)
    foreign = flight.connect(f"grpc://127.0.0.1:{service.port}")
    infos: dict[bytes, Any] = {info.descriptor.path[0]: info for info in foreign.list_flights()}
    assert infos[b"s"].total_records == 0
    assert infos[b"t"].total_records == 7
    assert infos[b"t"].schema == ROW_SCHEMA
    tables = [foreign.do_get(endpoint.ticket).read_all() for endpoint in infos[b"t"].endpoints]
    assert [table.num_rows for table in tables] == [3, 4]
    one = foreign.get_flight_info(flight.FlightDescriptor.for_path(b"t", b"1"))
    assert (one.total_records, len(one.endpoints)) == (4, 1)
    for asked in (one.descriptor, flight.FlightDescriptor.for_command(b"anything")):
        assert foreign.get_schema(asked).schema == ROW_SCHEMA
    assert {action.type for action in foreign.list_actions()} >= {"cut", "create_stream"}


def test_a_ticket_of_a_deleted_stream_is_refused(service: FlightService, client: Client) -> None:
    """Endpoints name the incarnation that they were made for."""
    foreign = flight.connect(f"grpc://127.0.0.1:{service.port}")
    (info,) = foreign.list_flights()
    client.delete_stream("s")
    client.create_stream("s")
    with pytest.raises(flight.FlightServerError, match="is now"):
        foreign.do_get(info.endpoints[0].ticket).read_all()


def test_a_crash_inside_a_call_is_contained(
    service: FlightService, client: Client, broker: MemoryBroker, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A bug of ours reaches the client without its traceback, and the service goes on."""

    def crash(name: str) -> None:
        raise RuntimeError("a secret")

    monkeypatch.setattr(broker, "get", crash)
    with pytest.raises(UnavailableError, match="internal error") as caught:
        client.describe("s")
    assert "secret" not in str(caught.value)
    monkeypatch.undo()
    assert client.describe("s").stream.name == "s"
