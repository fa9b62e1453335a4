"""The tools for JetStream's side of each measure.

If Go is installed: our small client on nats.go (programs/main.go) and ``nats bench`` of the
``nats`` command, built once into the work folder. Without Go: raw sockets, which do less work per
message than either. Every sample names the tool that was used.
"""

from __future__ import annotations

import json
import os
import re
import shutil
import subprocess
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Final

from bench.peers.raw_nats import RawNats
from bench.processes import BenchError, Load, run_json, run_loads, run_text, span_s

_SOURCES: Final = Path(__file__).with_name("programs")
_NATSCLI: Final = "github.com/nats-io/natscli/nats"
_BUILD_TIMEOUT_S: Final = 1200
_RATE: Final = re.compile(r"stats: ([\d,]+) msgs/sec")
WINDOW: Final = 1000


@dataclass(frozen=True, slots=True)
class PeerTools:
    """The tools that were found or built; without the client, raw sockets are used."""

    client: Path | None
    natscli: Path | None
    why: str  # explanation for the result file

    # ------------------------------------------------------------------ acknowledged publish

    def create(self, url: str, stream: str, *, replicas: int = 1) -> None:
        """Create a file stream whose subject is its name."""
        config = {
            "name": stream,
            "subjects": [stream],
            "storage": "file",
            "num_replicas": replicas,
            "allow_atomic": True,
        }
        self._api(url, f"STREAM.CREATE.{stream}", config)

    def delete(self, url: str, stream: str) -> None:
        """Delete a stream with its files."""
        self._api(url, f"STREAM.DELETE.{stream}", None)

    def stored(self, url: str, stream: str) -> int:
        """Return the number of messages in a stream."""
        return int(self._api(url, f"STREAM.INFO.{stream}", None)["state"]["messages"])

    def publish(
        self, url: str, subject: str, *, size: int, count: int, publishers: int
    ) -> tuple[float, str]:
        """Publish with a window of 1000 per publisher; return records/s and the tool's name."""
        if self.client is not None:
            found = run_json([
                str(self.client), "publish", "-url", url, "-stream", subject, "-size", str(size),
                "-messages", str(count), "-publishers", str(publishers), "-window", str(WINDOW),
            ])  # fmt: skip
            return float(found["records_per_s"]), "nats.go"
        return self._publish_raw(url, subject, size=size, count=count, publishers=publishers)

    def _publish_raw(
        self, url: str, subject: str, *, size: int, count: int, publishers: int
    ) -> tuple[float, str]:
        each = count // publishers
        loads = [
            Load(
                "nats_acknowledged", url=url, subject=subject, size=size, count=each, window=WINDOW
            )
            for _ in range(publishers)
        ]
        return each * publishers / span_s(run_loads(loads)), "raw socket"

    def bench(
        self, url: str, mode: str, stream: str, *, size: int, count: int, publishers: int
    ) -> float:
        """Run ``nats bench js pub async|batch`` with batches of 1000; return records/s."""
        assert self.natscli is not None, "the nats command was not built"
        printed = run_text([
            str(self.natscli), "-s", url, "--timeout", "60s", "bench", "js", "pub", mode, stream,
            "--stream", stream, "--size", f"{size}B", "--msgs", str(count),
            "--clients", str(publishers), "--batch", str(WINDOW), "--no-progress",
        ], env={"HOME": str(self.natscli.parent)})  # fmt: skip
        rates = _RATE.findall(printed)
        if not rates:
            raise BenchError(f"nats bench printed no rate: {printed[-300:]}")
        return float(rates[-1].replace(",", ""))  # the last line is the sum of the clients

    # ------------------------------------------------------------------ latency and reading

    def latency(self, url: str, subject: str, *, size: int, count: int) -> dict[str, Any]:
        """Publish one message at a time; return the percentiles and the tool's name."""
        if self.client is not None:
            found = run_json([
                str(self.client), "latency", "-url", url, "-stream", subject, "-size", str(size),
                "-messages", str(count),
            ])  # fmt: skip
            return {**found, "tool": "nats.go"}
        load = Load("nats_latency", url=url, subject=subject, size=size, count=count)
        load.go()
        return {**load.result(), "tool": "raw socket"}

    def first_acks_ms(self, url: str, *, replicas: int, count: int) -> list[float]:
        """Create streams one after another; return the time to the first ack of each stream.

        Raises:
            BenchError: there is no Go client.
        """
        if self.client is None:
            raise BenchError("measuring JetStream's first ack needs Go; install it")
        found = run_json([
            str(self.client), "first-ack", "-url", url, "-stream", "first", "-replicas",
            str(replicas), "-messages", str(count),
        ])  # fmt: skip
        return [float(one) for one in found["first_ack_ms"]]

    def consume(self, url: str, stream: str, *, size: int, count: int) -> tuple[float, str]:
        """Read a stream from its first message; return records/s and the tool's name."""
        if self.client is not None:
            found = run_json([
                str(self.client), "consume", "-url", url, "-stream", stream, "-size", str(size),
                "-messages", str(count),
            ])  # fmt: skip
            return float(found["records_per_s"]), "nats.go, ordered consumer"
        load = Load("jetstream_consume", url=url, stream=stream, count=count)
        load.go()
        found = load.result()
        took_s = (found["end_ns"] - found["start_ns"]) / 1e9
        return count / took_s, "raw socket, push consumer"

    def _api(self, url: str, call: str, body: dict[str, Any] | None) -> dict[str, Any]:
        with RawNats(url) as connection:
            data = b"" if body is None else json.dumps(body).encode()
            answer = connection.request(f"$JS.API.{call}", data)
        if "error" in answer:
            raise BenchError(f"JetStream refused {call}: {answer['error']}")
        return answer


def find_tools(folder: Path) -> PeerTools:
    """Build the Go tools into ``folder`` unless it has them; without Go there are no tools."""
    go = shutil.which("go")
    client, natscli = folder / "peer", folder / "nats"
    if go is None:
        return PeerTools(None, None, "no Go here: raw sockets on both sides")
    folder.mkdir(parents=True, exist_ok=True)
    try:
        _build(go, _SOURCES, ".", client)
        _build(go, _SOURCES / "natscli", _NATSCLI, natscli)
    except (BenchError, subprocess.TimeoutExpired) as error:
        usable = client if client.exists() else None
        return PeerTools(usable, None, f"the Go tools could not be built: {error}"[:600])
    return PeerTools(client, natscli, "nats.go client and `nats bench`, built here")


def _build(go: str, source: Path, package: str, target: Path) -> None:
    """Build a tool, unless the built one is newer than its source."""
    newest = max(path.stat().st_mtime for path in source.glob("*") if path.is_file())
    if target.exists() and target.stat().st_mtime >= newest:
        return
    environment = {**os.environ, "GOFLAGS": "-buildvcs=false -mod=readonly"}
    environment.setdefault("GOPATH", str(target.parent / "go"))
    command = [go, "build", "-o", str(target), package]
    done = subprocess.run(
        command, cwd=source, env=environment, capture_output=True, text=True,
        timeout=_BUILD_TIMEOUT_S, check=False,
    )  # fmt: skip
    if done.returncode:
        raise BenchError(f"{' '.join(command)} failed: {done.stderr[-400:]}")
