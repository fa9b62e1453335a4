"""Servers with Liftbridge's API for clients of any language: three brokers, or one."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest

from clusterkit.running import Cluster
from headwater.local import embedded
from headwater.local.embedded import LOOPBACK, free_port, start_nats
from headwater.local.runtime_file import RuntimeFile


def serve_liftbridge(cluster: Cluster) -> dict[str, int]:
    """Let each broker of a cluster serve Liftbridge's API from its next start; return the ports."""
    ports = {cluster.name(number): free_port() for number in range(3)}
    cluster.plan.own_settings = {name: liftbridge_at(port) for name, port in ports.items()}
    return ports


def liftbridge_at(port: int) -> dict[str, dict[str, Any]]:
    """Return the settings of a broker that serves Liftbridge's API."""
    return {"liftbridge": {"enabled": True, "port": port}}


class LiftCluster:
    """Three brokers that serve the API, beside a nats-server."""

    def __init__(self, cluster: Cluster, ports: dict[str, int]) -> None:
        self.cluster = cluster
        self.ports = ports

    @property
    def addresses(self) -> str:
        """Of all brokers, as programs take them."""
        return ",".join(f"127.0.0.1:{port}" for port in self.ports.values())

    def do(self, what: str, broker: str) -> None:
        """Kill a broker, or start it again."""
        number = list(self.ports).index(broker)
        if what == "kill":
            self.cluster.kill(number)
        else:
            assert what == "start", what
            self.cluster.start(number)


@contextmanager
def lift_cluster(folder: Path) -> Iterator[LiftCluster]:
    """Run three brokers with Liftbridge's API, and a nats-server."""
    with start_nats(folder / "nats") as nats:
        cluster = Cluster(folder, nats)
        ports = serve_liftbridge(cluster)
        try:
            cluster.start_all()
            yield LiftCluster(cluster, ports)
        finally:
            cluster.close()


@dataclass(frozen=True, slots=True)
class LiftServer:
    """A running ``headwater up``."""

    address: str  # of Liftbridge's API
    nats: str
    data: Path


@contextmanager
def lift_up(data: Path) -> Iterator[LiftServer]:
    """Run ``headwater up`` with Liftbridge's API on a free port."""
    port = free_port()
    options = ("--nats-port", "0", "--flight-port", "0", "--http-port", "0")
    with ExitStack() as running:
        with pytest.MonkeyPatch.context() as environment:  # of this server only
            environment.setenv("HEADWATER_LIFTBRIDGE_ENABLED", "true")
            environment.setenv("HEADWATER_LIFTBRIDGE_PORT", str(port))
            environment.setenv("HEADWATER_NODE_ACTIVITY_STREAM", "true")
            environment.setenv("HEADWATER_ENCRYPTION_PROVIDER", "environment")
            environment.setenv("HEADWATER_ENCRYPTION_KEY", "A" * 43 + "=")
            running.enter_context(embedded.start_up(data, *options))
        yield LiftServer(f"{LOOPBACK}:{port}", RuntimeFile.read(data).nats, data)
