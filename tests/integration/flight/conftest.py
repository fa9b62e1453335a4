"""A client of a broker in memory, for files that need nothing else of its service."""

from __future__ import annotations

from collections.abc import Iterator

import pytest

from broker.adapters.flight.config import FlightServiceConfig
from broker.adapters.flight.service import FlightService
from headwater.client import Client
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
