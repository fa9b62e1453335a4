"""A cluster of three Headwater brokers, and the methods that every side's cluster has for kills.

``min_isr`` is 2 and every record is acknowledged under ALL: two of three disks have synced it.
Brokers are processes on the loopback, as ``headwater up --brokers 3`` starts them. With a mesh, the
traffic between brokers goes through proxies that can be cut.
"""

from __future__ import annotations

import contextlib
import shutil
import signal
import sys
import time
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path
from typing import Any, Final, Protocol

import psutil

from bench.processes import BenchError
from broker.errors import HeadwaterError
from headwater.client import Client
from headwater.client.operations import Operations
from headwater.local.embedded import EmbeddedServer, start_nats
from headwater.local.embedded_cluster import EmbeddedCluster, plan_cluster

COUNT: Final = 3
MIN_ISR: Final = 2
_SETTINGS: Final = {"log": {"level": "warning"}}
_POLL_S: Final = 0.05
_TAIL_BYTES: Final = 1500


class Replicated(Protocol):
    """A cluster of three nodes of a product, with a leader per stream (cluster_failover.py)."""

    def create(self, stream: str) -> None:
        """Create a stream of three replicas."""

    def leader(self, stream: str) -> str | None:
        """Return the leader of a stream; None while there is none, or while no node answers."""

    def in_sync(self, stream: str) -> bool:
        """Tell whether all three replicas are in sync."""

    def kill(self, node: str) -> None:
        """End a node with kill -9."""

    def start(self, node: str) -> None:
        """Start a killed node again on its data."""

    def probe(self, stream: str) -> Sequence[str]:
        """Return the command of a probe, which publishes one record at a time; see probe.py."""


class HeadwaterCluster:
    """Our brokers, by id. Made by :func:`headwater_cluster`."""

    def __init__(self, plan: EmbeddedCluster) -> None:
        self.plan = plan
        self._servers: dict[str, EmbeddedServer] = {}
        self._teller: Client | None = None

    @property
    def url(self) -> str:
        """The addresses of all brokers, in the form that a client takes."""
        return self.plan.flight_url

    @property
    def nodes(self) -> list[str]:
        """Ids of the brokers."""
        return self.plan.brokers

    def start_all(self) -> None:
        """Start every broker; return when all of them serve."""
        for node in self.nodes:
            self._servers[node] = self.plan.start(node, wait=False)
        for server in self._servers.values():
            self.plan.wait_ready(server)

    def stop_all(self) -> None:
        """Kill every broker; a clean stop is not needed, because the folder is deleted."""
        if self._teller is not None:
            self._teller.close()
        for server in self._servers.values():
            server.process.kill()
            server.process.wait()

    def client(self) -> Client:
        """Return a client of all brokers; the caller closes it."""
        return Client(self.url)

    def process(self, node: str) -> psutil.Process:
        """Return a broker's process."""
        return psutil.Process(self._servers[node].process.pid)

    def check(self, cause: Exception) -> None:
        """Raise BenchError with the log of a broker that has ended without a kill of ours."""
        for node, server in self._servers.items():
            code = server.process.poll()
            if code not in (None, -signal.SIGKILL):
                tail = server.log_path.read_bytes()[-_TAIL_BYTES:].decode(errors="replace")
                raise BenchError(f"{node} ended with {code}: {tail}") from cause

    # ------------------------------------------------------------------ Replicated

    def create(self, stream: str, *, replicas: int = COUNT, partitions: int = 1) -> None:
        """Create a stream without tiering, because only the log is measured."""
        with self.client() as client:
            client.create_stream(
                stream,
                replication_factor=replicas,
                min_isr=min(replicas, MIN_ISR),
                partitions=partitions,
                tiering=False,
            )

    def leader(self, stream: str) -> str | None:
        """See Replicated."""
        found = self._places(stream)
        return found[0].leader if found else None

    def in_sync(self, stream: str) -> bool:
        """See Replicated: every partition has its leader and all its replicas in the ISR."""
        found = self._places(stream)
        return bool(found) and all(
            one.leader is not None and set(one.isr) == set(one.replicas) for one in found
        )

    def kill(self, node: str) -> None:
        """See Replicated."""
        process = self._servers[node].process
        process.kill()
        process.wait()

    def start(self, node: str) -> None:
        """See Replicated; returns when the broker serves."""
        self._servers[node] = self.plan.start(node)

    def probe(self, stream: str) -> list[str]:
        """See Replicated: the product's client with all addresses."""
        return [sys.executable, "-m", "bench.workers.flight_probe", self.url, stream]

    def status_at(self, node: str) -> Any:
        """Return the cluster's status from one broker; None if that broker does not answer."""
        with contextlib.suppress(HeadwaterError), Client(self._servers[node].address) as client:
            return Operations(client).status(confirm_ms=250)
        return None

    def _places(self, stream: str) -> Sequence[Any]:
        if self._teller is None:
            self._teller = self.client()
        try:
            return self._teller.locate(stream)
        except HeadwaterError:
            return ()


@contextlib.contextmanager
def headwater_cluster(
    folder: Path, *, before_start: Callable[[EmbeddedCluster], None] | None = None
) -> Iterator[HeadwaterCluster]:
    """Run three brokers and a nats-server; the folder is removed at the end.

    Args:
        folder: for all data of the brokers.
        before_start: may change the plan, for instance the proxies between brokers.
    """
    with contextlib.ExitStack() as stack:
        stack.callback(shutil.rmtree, folder, ignore_errors=True)
        nats = stack.enter_context(start_nats(folder / "nats"))
        plan = plan_cluster(
            folder / "cluster",
            count=COUNT,
            nats_url=nats.address,
            lake_uri=str(folder / "lake"),
            settings=_SETTINGS,
        )
        if before_start is not None:
            before_start(plan)
        cluster = HeadwaterCluster(plan)
        stack.callback(cluster.stop_all)
        cluster.start_all()
        try:
            yield cluster
        except Exception as error:
            cluster.check(error)
            raise


def wait_until(what: str, found: Callable[[], bool], *, timeout_s: float = 60.0) -> float:
    """Return the seconds until ``found`` was true; raises BenchError after ``timeout_s``."""
    start = time.monotonic()
    while not found():
        if time.monotonic() - start > timeout_s:
            raise BenchError(f"{what}: not within {timeout_s:g} s")
        time.sleep(_POLL_S)
    return time.monotonic() - start
