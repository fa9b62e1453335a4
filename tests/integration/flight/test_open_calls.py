"""What a program leaves open is ended at its exit; see headwater/client/open_calls.py."""

from __future__ import annotations

import threading
from collections.abc import Iterator
from weakref import WeakSet

import pytest

from broker.adapters.flight.config import FlightServiceConfig
from broker.adapters.flight.service import FlightService
from headwater.client import Client, open_calls
from simkit.brokers.memory_broker import MemoryBroker


@pytest.fixture
def client() -> Iterator[Client]:
    """Give a client of a running service, and a stream."""
    broker = MemoryBroker()
    service = FlightService(broker, broker.clock, FlightServiceConfig(port=0, idle_check_ms=20))
    service.start()
    with Client(f"127.0.0.1:{service.port}") as client:
        client.create_stream("s")
        yield client
    assert service.close(timeout_ms=10_000)
    broker.close()


def test_no_thread_is_inside_arrow_when_the_interpreter_goes(
    client: Client, monkeypatch: pytest.MonkeyPatch
) -> None:
    """And what was sent is still answered."""
    monkeypatch.setattr(open_calls, "_calls", WeakSet())  # calls of other tests stay open
    others = set(threading.enumerate())
    producer = client.producer("s")
    tail = client.fetch("s", start="earliest", follow=True)
    sent = [producer.send([b"%d" % number]) for number in range(50)]
    assert next(tail).base_offset == 0
    open_calls.end_all(20_000)
    names = {thread.name for thread in set(threading.enumerate()) - others}
    assert not names & {"headwater-acks", "headwater-fetch"}
    assert [one.result(0).base_offset for one in sent] == list(range(50))
    producer.close()
    tail.close()
