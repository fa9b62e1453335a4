"""Places for long calls, over the loopback."""

from __future__ import annotations

from collections.abc import Iterator

import pytest
from pyarrow import flight

from broker.adapters.flight.config import FlightServiceConfig
from broker.adapters.flight.service import FlightService
from broker.codec.flight.protocol import ReadRequest
from broker.model.offsets import Offset
from headwater.client import Client
from simkit.brokers.memory_broker import MemoryBroker
from simkit.waiting import wait_until

pytestmark = pytest.mark.integration


@pytest.fixture
def broker() -> Iterator[MemoryBroker]:
    """Give an empty broker."""
    broker = MemoryBroker()
    yield broker
    broker.close()


def test_one_connection_does_not_take_every_place(broker: MemoryBroker) -> None:
    """Its followers are refused beyond its share; another client's are served."""
    config = FlightServiceConfig(port=0, streams_max=4, followers_of_connection_max=3)
    service = FlightService(broker, broker.clock, config)
    service.start()
    assert service._server is not None
    followers = service._server._followers
    greedy = flight.FlightClient(f"grpc://127.0.0.1:{service.port}")
    with Client(f"127.0.0.1:{service.port}") as client:
        client.create_stream("s")
        ticket = flight.Ticket(
            ReadRequest(stream="s", partition=0, start=Offset(0), follow=True).to_ticket()
        )
        held = [greedy.do_get(ticket) for _ in range(3)]
        wait_until(lambda: followers.taken_count == 3, "three places are taken")
        with pytest.raises(flight.FlightUnavailableError, match="on this connection"):
            greedy.do_get(ticket).read_chunk()
        tail = client.fetch("s", start="latest", follow=True)
        wait_until(lambda: followers.taken_count == 4, "a fourth one is")
        tail.cancel()
        for one in held:
            one.cancel()
    greedy.close()
    assert service.close()
