"""A real broker on a real disk behind its Flight service, for clients of other processes."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from broker.adapters.clock import SystemClock
from broker.adapters.flight.config import FlightServiceConfig
from broker.adapters.flight.service import FlightService
from simkit.brokers.brokers import disk_broker


@contextmanager
def served_disk_broker(folder: Path, *, port: int = 0) -> Iterator[str]:
    """Serve the broker that lives in ``folder`` while the block runs; yield its address.

    The same folder and port again is the same broker, restarted.
    """
    with disk_broker(folder) as broker:
        service = FlightService(broker, SystemClock(), FlightServiceConfig(port=port))
        service.start()
        try:
            yield f"grpc://127.0.0.1:{service.port}"
        finally:
            service.close()
