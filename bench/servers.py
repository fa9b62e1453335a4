"""The servers of both sides: our broker as a daemon, core NATS for it, and JetStream.

All run on the same machine, on the loopback, on free ports, with data below the run's folder.
:func:`settings` returns the settings that are not defaults; they are kept with the result.
"""

from __future__ import annotations

import contextlib
import json
import shutil
import sys
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Final

from bench.processes import Child, wait_http
from headwater.client import Client
from headwater.local.embedded import free_port, nats_server_binary, start_nats

_JETSTREAM_READY: Final = "/healthz"


@dataclass(slots=True)
class BrokerServer:
    """Our daemon and its ports; it can be stopped and started again on the same data."""

    folder: Path
    nats_url: str
    lake_uri: str
    env: Mapping[str, str]
    flight_port: int = field(default_factory=free_port)
    http_port: int = field(default_factory=free_port)
    child: Child | None = None

    @property
    def url(self) -> str:
        """The Flight address."""
        return f"grpc://127.0.0.1:{self.flight_port}"

    @property
    def process(self) -> Child:
        """The running daemon."""
        assert self.child is not None, "the daemon was not started"
        return self.child

    def start(self) -> None:
        """Start the daemon and wait until it is ready."""
        config = self.folder / "broker.toml"
        self.folder.mkdir(parents=True, exist_ok=True)
        config.write_text(self._toml(), encoding="utf-8")
        command = [sys.executable, "-m", "broker", "--config", str(config)]
        self.child = Child("broker", command, self.folder / "broker.log", env=self.env)
        wait_http(self.child, self.http_port, "/readyz", timeout_s=300)

    def stop(self) -> None:
        """Stop the daemon."""
        if self.child is not None:
            self.child.stop()

    def client(self) -> Client:
        """Return a client of the daemon."""
        return Client(self.url)

    def _toml(self) -> str:
        quoted = json.dumps  # JSON strings are valid TOML
        return f"""\
[node]
data_dir = {quoted(str(self.folder / "data"))}
[nats]
url = {quoted(self.nats_url)}
[flight]
port = {self.flight_port}
[http]
port = {self.http_port}
[lake]
uri = {quoted(self.lake_uri)}
[log]
level = "warning"
format = "json"
"""


@contextlib.contextmanager
def headwater(
    folder: Path, *, lake_uri: str = "", env: Mapping[str, str] | None = None, nats: bool = True
) -> Iterator[BrokerServer]:
    """Run a broker, with a core nats-server if ``nats``; the folder is removed at the end."""
    with contextlib.ExitStack() as stack:
        stack.callback(shutil.rmtree, folder, ignore_errors=True)
        nats_url = ""
        if nats:
            nats_url = stack.enter_context(start_nats(folder / "nats")).address
        server = BrokerServer(folder, nats_url, lake_uri, env or {})
        stack.callback(server.stop)
        server.start()
        yield server


@dataclass(frozen=True, slots=True)
class JetStreamServer:
    """A nats-server with JetStream."""

    url: str
    child: Child


@contextlib.contextmanager
def jetstream(folder: Path, *, synced: bool) -> Iterator[JetStreamServer]:
    """Run nats-server with file storage: default settings, or ``sync_interval: always``."""
    folder.mkdir(parents=True, exist_ok=True)
    port, http_port = free_port(), free_port()
    config = folder / "nats.conf"
    config.write_text(_jetstream_config(folder, port, http_port, synced=synced), encoding="utf-8")
    command = [nats_server_binary(), "--config", str(config)]
    with Child("jetstream", command, folder / "nats.log") as child:
        try:
            wait_http(child, http_port, _JETSTREAM_READY)
            yield JetStreamServer(f"nats://127.0.0.1:{port}", child)
        finally:
            child.stop()
            shutil.rmtree(folder, ignore_errors=True)


def _jetstream_config(folder: Path, port: int, http_port: int, *, synced: bool) -> str:
    lines = [
        f'listen: "127.0.0.1:{port}"',
        f'http: "127.0.0.1:{http_port}"',
        "jetstream {",
        f"  store_dir: {json.dumps(str(folder / 'store'))}",
        "  max_file: 70G",
        *(["  sync_interval: always"] if synced else []),
        "}",
    ]
    return "\n".join(lines) + "\n"


def settings() -> dict[str, Any]:
    """Return the settings of all sides that are not defaults, for the result file."""
    return {
        "headwater": {
            "broker": "python -m broker, defaults; log.level = warning",
            "streams": "defaults: fdatasync before every ack, no compression; see each measure",
            "nats": "nats-server beside it, core NATS, as `headwater up` starts it",
            "client": "headwater.client for Flight",
        },
        "jetstream": {
            "default": "file storage, 1 replica, sync_interval 2 min: no sync before an ack",
            "synced": "the same with sync_interval: always",
            "streams": "allow_atomic, else defaults",
        },
        "clusters": {
            "headwater": "3 brokers and a nats-server; log.level = warning, else defaults; "
            "3 replicas, min_isr 2, ack ALL: synced on at least two brokers before an ack",
            "jetstream": "3 nats-servers, file storage, 3 replicas: no sync before an ack",
            "kafka": "3 combined KRaft nodes, heap 1 GiB, 3 replicas, min.insync.replicas 2, "
            "acks=all: no sync before an ack",
        },
    }
