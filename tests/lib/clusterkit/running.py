"""Three real brokers on the loopback, beside a real nats-server: killed, paused, started again."""

from __future__ import annotations

import json
import shutil
import signal
import threading
import urllib.request
from collections.abc import Callable, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import suppress
from pathlib import Path
from typing import Any

from broker.codec.flight.protocol import ReadRequest
from broker.errors import HeadwaterError, UnavailableError, UnknownStreamError
from broker.model.cluster_status import PartitionInfo
from clusterkit import forked_brokers
from clusterkit.load import publish
from freezing import freeze
from headwater.client.address import resolve_addresses
from headwater.client.brokers import Brokers
from headwater.client.client import Client
from headwater.client.fetch import Fetch
from headwater.client.operations import Operations
from headwater.client.read_route import ReadRoute
from headwater.local.embedded import EmbeddedServer, http_status
from headwater.local.embedded_cluster import EmbeddedCluster, plan_cluster

_PATIENCE_S = 90.0  # on a busy machine
_CONFIRM_MS = 8_000  # below what a client waits for one of several brokers


class Cluster:
    """Three brokers by number, to be killed, paused and started; ended with the module."""

    def __init__(
        self,
        folder: Path,
        nats: EmbeddedServer | str,
        *,
        settings: Mapping[str, Mapping[str, Any]] | None = None,
    ) -> None:
        """Plan a cluster in ``folder``; ``settings`` are keys of the brokers' files, by section."""
        self.nats_url = nats if isinstance(nats, str) else nats.address
        self.lake_uri = str(folder / "lake")
        self.plan: EmbeddedCluster = plan_cluster(
            folder / "cluster",
            count=3,
            nats_url=self.nats_url,
            lake_uri=self.lake_uri,
            settings=settings,
        )
        self.plan.spawn = forked_brokers.spawn
        self.servers: dict[str, EmbeddedServer] = {}
        self._paused: set[int] = set()
        self._clients: list[Client] = []
        self._asking: Client | None = None

    @property
    def url(self) -> str:
        """The addresses of all brokers, as a client takes them."""
        return self.plan.flight_url

    def name(self, number: int) -> str:
        """Return a broker's id."""
        return self.plan.brokers[number]

    def url_of(self, number: int) -> str:
        """Return the address of one broker."""
        return self.url.split(",")[number]

    def client(self, url: str | None = None) -> Client:
        """Return a client of all brokers, or of those at ``url``; closed with the cluster."""
        client = Client(url or self.url)
        self._clients.append(client)
        return client

    def read_at(self, number: int, stream: str) -> list[bytes]:
        """Return the values of a partition as this broker serves them, and no other."""
        brokers = Brokers(resolve_addresses(self.url_of(number)))
        request = ReadRequest(stream=stream, partition=0)
        found = [
            value
            for part in Fetch(ReadRoute(brokers, request), request)
            for value in part.batch["value"].to_pylist()
        ]
        brokers.close()
        return found

    # ------------------------------------------------------------------ brokers

    def start_all(self, numbers: Sequence[int] = (0, 1, 2)) -> None:
        """Start those of them that do not run; return when they serve."""
        for number in numbers:
            if not self.runs(number):
                name = self.name(number)
                self.servers[name] = self.plan.start(name, wait=False)
        with ThreadPoolExecutor(3) as pool:
            list(pool.map(self.plan.wait_ready, [self.servers[self.name(n)] for n in numbers]))

    def runs(self, number: int) -> bool:
        """Tell whether a broker's process is there."""
        server = self.servers.get(self.name(number))
        return server is not None and server.running()

    def kill(self, number: int) -> None:
        """End a broker with kill -9."""
        process = self.servers[self.name(number)].process
        process.kill()
        process.wait()

    def stop(self, number: int) -> None:
        """End a broker politely; blocks until it is gone."""
        self.servers[self.name(number)].stop()

    def start(self, number: int) -> None:
        """Start a broker that was ended; return when it serves."""
        self.servers[self.name(number)] = self.plan.start(self.name(number))

    def pause(self, number: int) -> None:
        """Let a broker stand still, as an unscheduled virtual machine; return when it does."""
        freeze(self.servers[self.name(number)].process.pid)
        self._paused.add(number)

    def resume(self, number: int) -> None:
        """Let it go on."""
        self.servers[self.name(number)].process.send_signal(signal.SIGCONT)
        self._paused.discard(number)

    def copy_folder(self, number: int, target: Path, part: str = ".") -> None:
        """Copy a broker's folder, or a part of it, as it is at one moment.

        The broker stands still meanwhile: a running one makes, replaces and removes files.
        """
        runs = self.runs(number)
        if runs:
            self.pause(number)
        try:
            shutil.copytree(self.plan.folder_of(self.name(number)) / part, target)
        finally:
            if runs:
                self.resume(number)

    def heal(self) -> None:
        """Let every broker run, and every replica of every stream be in sync again."""
        for number in list(self._paused):
            self.resume(number)
        self.start_all()
        client = self._own()
        self.wait_for(
            lambda: all(
                len(place.isr) == len(place.replicas) and place.leader is not None
                for stream in client.streams()
                for place in client.locate(stream.name)
            ),
            "every replica in sync",
        )

    def close(self) -> None:
        """End everything."""
        for client in self._clients:
            client.close()
        for number in list(self._paused):
            self.resume(number)
        for server in self.servers.values():
            server.process.kill()  # what they would do when asked politely has its own test
            server.process.wait()

    def _own(self) -> Client:
        """Return the client with which the cluster asks for itself."""
        if self._asking is None:
            self._asking = self.client()
        return self._asking

    # ------------------------------------------------------------------ what it holds and says

    def publish(self, stream: str, *values: bytes) -> None:
        """Store the values as one batch; return when they are acknowledged."""
        publish(self._own(), stream, *values)

    def look(self, stream: str, partition: int = 0) -> PartitionInfo:
        """Return what a broker says about a partition now.

        It asks a majority first. On a busy machine the answer takes more than a second.

        Raises:
            UnknownStreamError: it has yet to hear of it.
        """
        status = Operations(self._own()).status(confirm_ms=_CONFIRM_MS)
        found = status.partition(stream, partition)
        if found is None:
            raise UnknownStreamError(f"nobody knows {stream}/{partition}")
        return found

    def in_sync(self, stream: str) -> Callable[[], bool]:
        """Return what tells whether every broker is in sync with a stream's leader."""
        return lambda: sorted(self.look(stream).isr) == self.plan.brokers

    def said(self, number: int, event: str) -> list[dict[str, Any]]:
        """Return what a broker has printed of this kind over all its lives, oldest first."""
        found = []
        text = self.plan.log_of(self.name(number)).read_text(encoding="utf-8")
        for line in text.splitlines():
            if f'"event": "{event}"' in line:
                with suppress(ValueError):  # the last line may be half written
                    found.append(json.loads(line))
        return found

    # ------------------------------------------------------------------ waiting

    def metrics(self, number: int) -> dict[str, float]:
        """Scrape a broker; return each series' value by its name with labels.

        Those of a replica are there once the broker has opened it, which is after the stream is
        made.

        Raises:
            UnavailableError: it does not answer now.
        """
        port = self.plan.ports[self.name(number)].http
        try:
            with urllib.request.urlopen(f"http://127.0.0.1:{port}/metrics", timeout=10) as answer:
                lines = answer.read().decode().splitlines()
        except OSError as cause:
            raise UnavailableError(f"{self.name(number)} shows no metrics: {cause}") from cause
        pairs = (line.rpartition(" ") for line in lines if not line.startswith("#"))
        return {name: float(value) for name, _, value in pairs}

    def leader(self, stream: str, partition: int = 0) -> int:
        """Return the number of the broker that leads a partition, once one does."""
        found: list[str] = []

        def look() -> bool:
            leader = self._own().locate(stream)[partition].leader
            found[:] = [] if leader is None else [leader]
            return bool(found)

        self.wait_for(look, f"a leader of {stream}/{partition}")
        return self.plan.brokers.index(found[0])

    def wait_for(self, condition: Callable[[], bool], what: str) -> None:
        """Ask until it holds; what cannot be asked now does not hold."""
        gone = threading.Event()
        deadline = threading.Timer(_PATIENCE_S, gone.set)
        deadline.start()
        try:
            while not self._holds(condition):
                if gone.wait(0.05):
                    raise AssertionError(f"not within {_PATIENCE_S} s: {what}")
        finally:
            deadline.cancel()

    def _holds(self, condition: Callable[[], bool]) -> bool:
        try:
            return condition()
        except HeadwaterError:
            return False


def controller_of(cluster: Cluster) -> str:
    """Return the id of the controller in office, once a majority knows one."""
    found: list[str] = []

    def look() -> bool:
        status = Operations(cluster._own()).status(confirm_ms=_CONFIRM_MS)
        known = status.controller if status.confirmed else None
        found[:] = [] if known is None else [known]
        return bool(found)

    cluster.wait_for(look, "a controller in office")
    return found[0]


def probed(cluster: Cluster, number: int, path: str) -> int:
    """Return the status with which a broker answers a request, once it answers."""
    port = cluster.plan.ports[cluster.name(number)].http
    found: list[int] = []

    def ask() -> bool:
        status = http_status(port, "GET", path)
        found[:] = [] if status is None else [status]
        return bool(found)

    cluster.wait_for(ask, f"an answer of {cluster.name(number)} to {path}")
    return found[0]
