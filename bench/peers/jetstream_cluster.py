"""JetStream R3: three nats-servers with file storage, clustered on the loopback.

Default settings: a message is acknowledged when two of three servers have written it; none of them
has synced it (``sync_interval`` is two minutes).
"""

from __future__ import annotations

import contextlib
import json
import shutil
from collections.abc import Iterator
from pathlib import Path
from typing import Any, Final

from bench.clusters import COUNT
from bench.peers.nats_tools import PeerTools
from bench.peers.raw_nats import RawNats
from bench.processes import BenchError, Child, wait_http
from headwater.local.embedded import free_port, nats_server_binary

_ASK_TIMEOUT_S: Final = 3.0


class JetStreamCluster:
    """The three servers, by name. Made by :func:`jetstream_cluster`."""

    def __init__(self, folder: Path, tools: PeerTools) -> None:
        self._folder, self._tools = folder, tools
        self._ports = {f"js-{number}": free_port() for number in range(COUNT)}
        self._http_ports = {node: free_port() for node in self._ports}
        self._routes = {node: free_port() for node in self._ports}
        self._children: dict[str, Child] = {}

    @property
    def url(self) -> str:
        """The addresses of all servers, in the form that NATS clients take."""
        return ",".join(f"nats://127.0.0.1:{port}" for port in self._ports.values())

    def start_all(self) -> None:
        """Start every server; return when JetStream answers on all of them."""
        for node in self._ports:
            self._spawn(node)
        for node, child in self._children.items():
            wait_http(child, self._http_ports[node], "/healthz")

    def stop_all(self) -> None:
        """End every server."""
        for child in self._children.values():
            child.kill()

    def create(self, stream: str) -> None:
        """See clusters.Replicated."""
        self._tools.create(self.url, stream, replicas=COUNT)

    def delete(self, stream: str) -> None:
        """Delete a stream with its files."""
        self._tools.delete(self.url, stream)

    def leader(self, stream: str) -> str | None:
        """See clusters.Replicated."""
        return stream_leader(self._info(stream))

    def in_sync(self, stream: str) -> bool:
        """See clusters.Replicated."""
        return stream_in_sync(self._info(stream))

    def kill(self, node: str) -> None:
        """See clusters.Replicated."""
        self._children[node].kill()

    def start(self, node: str) -> None:
        """See clusters.Replicated."""
        wait_http(self._spawn(node), self._http_ports[node], "/healthz")

    def probe(self, stream: str) -> list[str]:
        """See clusters.Replicated.

        Raises:
            BenchError: there is no Go client.
        """
        if self._tools.client is None:
            raise BenchError("JetStream's probe needs Go; install it, or leave JetStream out")
        return [str(self._tools.client), "probe", "-url", self.url, "-stream", stream]

    def _spawn(self, node: str) -> Child:
        folder = self._folder / node
        folder.mkdir(parents=True, exist_ok=True)
        config = folder / "nats.conf"
        config.write_text(self._config(node), encoding="utf-8")
        command = [nats_server_binary(), "--config", str(config)]
        self._children[node] = Child(node, command, folder / "nats.log")
        return self._children[node]

    def _config(self, node: str) -> str:
        routes = [f"nats-route://127.0.0.1:{port}" for port in self._routes.values()]
        lines = [
            f"server_name: {node}",
            f'listen: "127.0.0.1:{self._ports[node]}"',
            f'http: "127.0.0.1:{self._http_ports[node]}"',
            "jetstream {",
            f"  store_dir: {json.dumps(str(self._folder / node / 'store'))}",
            "  max_file: 70G",
            "}",
            "cluster {",
            "  name: bench",
            f'  listen: "127.0.0.1:{self._routes[node]}"',
            f"  routes: {json.dumps(routes)}",
            "}",
        ]
        return "\n".join(lines) + "\n"

    def _info(self, stream: str) -> dict[str, Any]:
        """Return the STREAM.INFO answer of any server; empty if no server answers."""
        for node, port in self._ports.items():
            if self._children[node].process.poll() is None:
                with (
                    contextlib.suppress(OSError, ValueError),
                    RawNats(f"nats://127.0.0.1:{port}") as connection,
                ):
                    connection.socket.settimeout(_ASK_TIMEOUT_S)
                    return connection.request(f"$JS.API.STREAM.INFO.{stream}")
        return {}


def stream_leader(info: dict[str, Any]) -> str | None:
    """Return a stream's leader from a STREAM.INFO answer; None if the answer has none."""
    leader = info.get("cluster", {}).get("leader")
    return str(leader) if leader else None


def stream_in_sync(info: dict[str, Any]) -> bool:
    """Tell whether the leader and both followers of a stream are up to date."""
    followers = info.get("cluster", {}).get("replicas", [])
    current = [one for one in followers if one.get("current") and not one.get("offline")]
    return stream_leader(info) is not None and len(current) == COUNT - 1


@contextlib.contextmanager
def jetstream_cluster(folder: Path, tools: PeerTools) -> Iterator[JetStreamCluster]:
    """Run three servers; the folder is removed at the end."""
    cluster = JetStreamCluster(folder, tools)
    try:
        cluster.start_all()
        yield cluster
    finally:
        cluster.stop_all()
        shutil.rmtree(folder, ignore_errors=True)
