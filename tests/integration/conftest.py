"""A nats-server and NATS ingest over it, for each test that asks for them."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest

from broker.config import NatsConfig
from simkit.brokers.ingest_rig import IngestRig
from simkit.servers.natsproc import NatsProcess


@pytest.fixture
def server(tmp_path: Path) -> Iterator[NatsProcess]:
    """A nats-server of this test."""
    with NatsProcess(tmp_path) as process:
        yield process


@pytest.fixture
def rig(server: NatsProcess) -> Iterator[IngestRig]:
    """Ingest connected to the server."""
    with IngestRig(NatsConfig(url=server.url)) as connected:
        yield connected
