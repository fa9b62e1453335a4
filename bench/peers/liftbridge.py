"""Liftbridge 1.9.0, and the client on go-liftbridge that measures it and ours alike.

Both are built from Go's module cache with the sources in tests/peers; without Go there is no peer.
"""

from __future__ import annotations

import contextlib
import os
import shutil
import time
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Final

from bench.processes import BenchError, Child, run_json, run_text
from headwater.local.embedded import LOOPBACK, free_port, port_is_free, start_nats

_SOURCES: Final = Path(__file__).resolve().parents[2] / "tests" / "peers"
_BUILD_S: Final = 1200
_READY_S: Final = 60.0


@dataclass(frozen=True, slots=True)
class LiftServer:
    """A running server of Liftbridge's API."""

    address: str
    nats: str


@dataclass(frozen=True, slots=True)
class LiftTools:
    """The programs."""

    client: Path
    server: Path

    def measure(
        self, at: LiftServer, mode: str, stream: str, size: int, count: int
    ) -> dict[str, Any]:
        """Run one measurement of tests/peers/go/bench.go."""
        command = [
            str(self.client), "-addrs", at.address, "-nats", at.nats,
            "bench", mode, stream, str(size), str(count),
        ]  # fmt: skip
        return run_json(command, timeout_s=600)

    @contextlib.contextmanager
    def liftbridge(self, folder: Path) -> Iterator[LiftServer]:
        """Run a Liftbridge server with its defaults; it never syncs a message."""
        folder.mkdir(parents=True, exist_ok=True)
        port = free_port()
        with contextlib.ExitStack() as stack:
            stack.callback(shutil.rmtree, folder, ignore_errors=True)
            nats = stack.enter_context(start_nats(folder / "nats"))
            config = folder / "liftbridge.yaml"
            config.write_text(
                f"listen: {LOOPBACK}:{port}\nhost: {LOOPBACK}\nport: {port}\nlogging.level: warn\n"
                f"data.dir: {folder}/data\ncursors.stream.partitions: 1\n"
                f"nats.servers: [{nats.address}]\n"
                "clustering:\n  server.id: one\n  raft.bootstrap.seed: true\n",
                encoding="utf-8",
            )
            child = Child("liftbridge", [str(self.server), "-c", str(config)], folder / "log")
            stack.callback(child.stop)
            found = LiftServer(f"{LOOPBACK}:{port}", nats.address)
            self._wait(found, port)
            yield found

    def _wait(self, server: LiftServer, port: int) -> None:
        """Return once the server makes streams: it needs a leader of its metadata first."""
        deadline = time.monotonic() + _READY_S
        while True:
            with contextlib.suppress(BenchError):
                if not port_is_free(port):
                    self.measure(server, "create", "ready", 0, 1)
                    return
            if time.monotonic() > deadline:
                raise BenchError(f"Liftbridge makes no stream within {_READY_S:.0f} s")
            time.sleep(0.2)


def find_liftbridge(folder: Path) -> LiftTools:
    """Build the programs into a folder, if they are not there.

    Raises:
        BenchError: Go is not installed, or a program cannot be built.
    """
    go = shutil.which("go")
    if go is None:
        raise BenchError("Go is not installed: Liftbridge and its client are built with it")
    folder.mkdir(parents=True, exist_ok=True)
    client, server = folder / "liftpeer", folder / "liftbridge"
    _build(go, _SOURCES / "go", ".", client)
    if not server.exists():
        _build(go, _SOURCES / "liftbridge", "github.com/liftbridge-io/liftbridge", server)
    return LiftTools(client, server)


def _build(go: str, sources: Path, package: str, target: Path) -> None:
    flags = "-buildvcs=false -mod=readonly" if package == "." else "-buildvcs=false -mod=mod"
    run_text(
        [go, "-C", str(sources), "build", "-o", str(target), package],
        timeout_s=_BUILD_S,
        env={**os.environ, "GOFLAGS": flags},
    )
