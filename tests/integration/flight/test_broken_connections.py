"""Producers whose connections break at any byte: what is acknowledged is stored once, in order."""

from __future__ import annotations

import random
import threading
from collections.abc import Iterator
from concurrent.futures import Future

import pytest

from broker.adapters.flight.config import FlightServiceConfig
from broker.adapters.flight.service import FlightService
from broker.errors import CommitTimeoutError, UnavailableError
from broker.model.records import AppendResult
from headwater.client import Client
from simkit.brokers.memory_broker import MemoryBroker, numbered
from simkit.servers.tcp_proxy import TcpProxy

WAIT_S = 60
BATCH = 10


@pytest.fixture
def broker() -> Iterator[MemoryBroker]:
    """Give a broker with one stream."""
    broker = MemoryBroker()
    yield broker
    broker.close()


def serve(broker: MemoryBroker, port: int = 0) -> FlightService:
    """Start a service over the broker."""
    service = FlightService(broker, broker.clock, FlightServiceConfig(port=port, idle_check_ms=20))
    service.start()
    return service


@pytest.fixture
def service(broker: MemoryBroker) -> Iterator[FlightService]:
    """Give a running service."""
    service = serve(broker)
    yield service
    assert service.close(timeout_ms=10_000)


@pytest.fixture
def proxy(service: FlightService) -> Iterator[TcpProxy]:
    """Give a proxy in front of the service."""
    with TcpProxy(service.port) as proxy:
        yield proxy


@pytest.fixture
def client(proxy: TcpProxy) -> Iterator[Client]:
    """Give a client that only knows the proxy."""
    with Client(f"127.0.0.1:{proxy.port}") as client:
        client.create_stream("s")
        yield client


def check_all_stored_once(
    broker: MemoryBroker, service: FlightService, futures: list[Future[AppendResult]]
) -> None:
    """Every batch has its own offsets, in order, and its own values there."""
    results = [future.result(WAIT_S) for future in futures]
    bases = [result.base_offset for result in results]
    assert bases == list(range(0, BATCH * len(futures), BATCH))
    assert broker.partitions.handle("s", 0).high_watermark == BATCH * len(futures)
    with Client(f"127.0.0.1:{service.port}") as direct:
        found = [value for f in direct.fetch("s") for value in f.batch.column("value").to_pylist()]
    assert [int(value) for value in found] == list(range(BATCH * len(futures)))


@pytest.mark.parametrize("seed", range(8))
def test_cuts_at_random_bytes_neither_lose_nor_double(
    seed: int, broker: MemoryBroker, service: FlightService, proxy: TcpProxy, client: Client
) -> None:
    """The connection breaks again and again, in the middle of answers."""
    chance = random.Random(seed)
    futures = []
    with client.producer("s", window_batches=chance.choice([1, 4, 64])) as producer:
        for n in range(120):
            if chance.random() < 0.1:
                proxy.cut_after_answers(chance.randint(0, 400))
            if chance.random() < 0.05:
                proxy.cut()
            futures.append(producer.send(numbered(n * BATCH, BATCH)))
    check_all_stored_once(broker, service, futures)
    assert proxy.connections_count > 2, f"nothing was cut, seed {seed}"


def test_batches_whose_answers_were_lost_are_recognised(
    broker: MemoryBroker, service: FlightService, proxy: TcpProxy, client: Client
) -> None:
    """The broker has committed and its answers were lost: sent again, it gives the same offsets."""
    partition = broker.partitions.handle("s", 0)
    with client.producer("s") as producer:
        futures = [producer.send(numbered(0, BATCH))]
        futures[0].result(WAIT_S)
        partition.hold()
        futures += [producer.send(numbered(n * BATCH, BATCH)) for n in range(1, 11)]
        submitted = threading.Event()
        while partition.submits_count < 11:
            assert not submitted.wait(0.005)
        proxy.cut()
        partition.release()
        results = [future.result(WAIT_S) for future in futures]
    assert all(result.duplicate for result in results[1:])
    check_all_stored_once(broker, service, futures)


def test_a_broker_that_restarts_is_found_again(
    broker: MemoryBroker, service: FlightService, proxy: TcpProxy, client: Client
) -> None:
    """The service stops with batches in flight; another takes its place at the same address."""
    with client.producer("s") as producer:
        futures = [producer.send(numbered(n * BATCH, BATCH)) for n in range(20)]
        proxy.refuse(True)
        assert service.close(timeout_ms=20_000)
        futures.append(producer.send(numbered(20 * BATCH, BATCH)))
        second = serve(broker)
        proxy.target_port = second.port
        proxy.refuse(False)
        futures += [producer.send(numbered(n * BATCH, BATCH)) for n in range(21, 40)]
        producer.flush()
    check_all_stored_once(broker, second, futures)
    assert second.close(timeout_ms=20_000)


def test_a_producer_gives_up_in_time_and_says_so(
    broker: MemoryBroker, proxy: TcpProxy, client: Client
) -> None:
    """The error says that the batch may or may not be stored; later batches are refused."""
    producer = client.producer("s", retry_ms_max=300)
    producer.send(numbered(0, BATCH)).result(WAIT_S)
    proxy.refuse(True)
    proxy.cut()
    future = producer.send(numbered(BATCH, BATCH))
    with pytest.raises(CommitTimeoutError):
        future.result(WAIT_S)
    with pytest.raises(CommitTimeoutError):
        producer.send(numbered(BATCH, BATCH))
    with pytest.raises(CommitTimeoutError):
        producer.close()
    assert broker.partitions.handle("s", 0).high_watermark == BATCH


def test_a_close_in_the_middle_of_an_outage_is_bounded(proxy: TcpProxy, client: Client) -> None:
    """Closing waits no longer than its timeout, and settles every future."""
    producer = client.producer("s", retry_ms_max=60_000)
    producer.send(numbered(0, BATCH)).result(WAIT_S)
    proxy.refuse(True)
    proxy.cut()
    future = producer.send(numbered(BATCH, BATCH))
    with pytest.raises(CommitTimeoutError):
        producer.close(timeout_ms=200)
    with pytest.raises(CommitTimeoutError):
        future.result(WAIT_S)


def test_a_read_that_breaks_says_so(
    broker: MemoryBroker, service: FlightService, proxy: TcpProxy, client: Client
) -> None:
    """A broken read is an error, never a short result."""
    with client.producer("s") as producer:
        for n in range(20):
            producer.send(numbered(n * 4_000, 4_000, value_bytes=100))
    proxy.cut_after_answers(1_000_000)
    with pytest.raises(UnavailableError):
        list(client.fetch("s"))


def test_a_reader_that_goes_away_frees_its_place(
    service: FlightService, proxy: TcpProxy, client: Client
) -> None:
    """A follower whose machine vanished is noticed by its connection."""
    assert service._server is not None
    places = service._server._followers
    tail = client.fetch("s", start="latest", follow=True)
    turn = threading.Event()
    while not places.taken_count:
        assert not turn.wait(0.005)
    proxy.cut()
    while places.taken_count:
        assert not turn.wait(0.005)
    tail.close()  # otherwise the read waits for its next row, because a broker may be restarted
