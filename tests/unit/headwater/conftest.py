"""The command line against a broker in memory, over real Flight on the loopback."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest
from typer.testing import CliRunner

from broker.adapters.flight.config import FlightServiceConfig
from broker.adapters.flight.service import FlightService
from headwater.cli.main import app
from simkit.brokers.memory_broker import FakeClock, MemoryBroker

Run = Callable[..., Any]


@pytest.fixture
def broker() -> Iterator[MemoryBroker]:
    """Return a broker without streams."""
    memory = MemoryBroker()
    yield memory
    memory.close()


@pytest.fixture
def address(broker: MemoryBroker) -> Iterator[str]:
    """Serve the broker by Flight on a free port; return its address."""
    service = FlightService(broker, FakeClock(), FlightServiceConfig(host="127.0.0.1", port=0))
    service.start()
    yield f"127.0.0.1:{service.port}"
    service.close()


@pytest.fixture
def run(address: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Run:
    """Return a function that runs ``headwater`` against the broker, in an empty folder."""
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("HEADWATER_SERVER", address)
    monkeypatch.setenv("COLUMNS", "200")
    monkeypatch.delenv("HEADWATER_NATS_URL", raising=False)

    def invoke(*arguments: str, stdin: str | bytes | None = None) -> Any:
        return CliRunner().invoke(app, list(arguments), input=stdin)

    return invoke
