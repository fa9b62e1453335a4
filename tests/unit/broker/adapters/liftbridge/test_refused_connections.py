"""Connections beyond the limit are closed, and the log says so without an end of lines."""

from __future__ import annotations

import socket

from structlog.testing import capture_logs

from broker.adapters.liftbridge.config import LiftbridgeServiceConfig
from broker.adapters.liftbridge.service import LiftbridgeService
from simkit.brokers.memory_broker import MemoryBroker

_WAIT_S = 60


def test_a_flood_of_connections_is_one_line_of_the_log() -> None:
    """Each of them is closed at once; a stranger cannot fill the disk with lines."""
    broker = MemoryBroker()
    config = LiftbridgeServiceConfig(port=0, connections_max=1)
    service = LiftbridgeService(broker, broker.clock, config)
    with capture_logs() as logged:
        service.start()
        try:
            with socket.create_connection(("127.0.0.1", service.port), _WAIT_S) as first:
                assert first.recv(9), "the preface of the server: this connection was let in"
                for _ in range(5):
                    with socket.create_connection(("127.0.0.1", service.port), _WAIT_S) as one:
                        assert one.recv(1) == b""
        finally:
            service.close()
            broker.close()
    told = [one for one in logged if one["event"] == "liftbridge_connections_full"]
    assert [one["refused"] for one in told] == [1]
