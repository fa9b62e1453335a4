"""A broker with every door open, a NATS server, and a witness: what strangers are let loose on."""

from __future__ import annotations

import json
import os
import ssl
import subprocess
import sys
import threading
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager, suppress
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Final, Self

from clusterkit.hostile import Recorder
from crashkit.processes import BrokerProcess
from fuzzkit.doors import witness
from headwater.client import Client
from headwater.local import embedded
from headwater.local.cluster_certificates import files_of, make_certificates
from simkit.servers.natsproc import NatsProcess

ATTACKED: Final = "s"  # the stream that strangers name
_WITNESSED: Final = "witnessed"
_CLUSTER, _BROKER, _OTHER = "fuzzed", "fuzzed-broker-1", "fuzzed-broker-2"
_HOST: Final = "127.0.0.1"
_SAMPLE_S: Final = 0.2


@dataclass
class Doors:
    """The ports of the broker under attack, and what an honest client says at some of them."""

    broker: BrokerProcess
    nats: NatsProcess
    flight: int
    http: int
    liftbridge: int
    peer: int
    member: ssl.SSLContext  # lets a connection in as another broker of the cluster
    honest: list[bytes] = field(default_factory=list)  # connections of Flight, from their preface

    @property
    def ports(self) -> dict[str, int]:
        """Each door's port."""
        return {
            "Flight": self.flight,
            "HTTP": self.http,
            "Liftbridge": self.liftbridge,
            "peer": self.peer,
        }


@contextmanager
def staged(folder: Path) -> Iterator[Doors]:
    """Run the broker until the end of the block."""
    liftbridge, peer = embedded.free_port(), embedded.free_port()
    certificates = folder / "certificates"
    make_certificates(certificates, cluster=_CLUSTER, brokers=[_BROKER, _OTHER])
    own = files_of(certificates, _BROKER)
    with ExitStack() as stack:
        nats = stack.enter_context(NatsProcess(folder))
        broker = BrokerProcess(
            folder / "broker",
            nats_url=nats.url,
            lake=str(folder / "lake"),
            settings={
                "node": {"id": _BROKER, "cluster": _CLUSTER},
                "liftbridge": {"enabled": True, "port": liftbridge},
                "cluster": {
                    "brokers": f"{_BROKER}={_HOST}:{peer}",
                    "tls_ca_file": str(own.ca_file),
                    "tls_cert_file": str(own.cert_file),
                    "tls_key_file": str(own.key_file),
                    "replication_factor": 1,
                    "min_isr": 1,
                },
                "log": {"level": "warning", "format": "json"},
            },
            forked=False,
        )
        broker.start()
        stack.callback(_ended, broker)
        broker.wait_ready(300.0)  # a machine with other work may need minutes
        doors = Doors(
            broker, nats, broker.flight_port, broker.http_port, liftbridge, peer,
            _member(certificates),
        )  # fmt: skip
        with Client(broker.url) as client:
            client.create_stream(ATTACKED, subject=ATTACKED, puback=True)
            client.create_stream(_WITNESSED, subject=_WITNESSED)
        doors.honest = _honest(doors)
        yield doors


def _ended(broker: BrokerProcess) -> None:
    with suppress(AssertionError):
        broker.kill()


def _member(certificates: Path) -> ssl.SSLContext:
    files = files_of(certificates, _OTHER)
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_CLIENT)
    context.check_hostname = False
    context.load_verify_locations(files.ca_file)
    context.load_cert_chain(files.cert_file, files.key_file)
    return context


def _honest(doors: Doors) -> list[bytes]:
    """Record what a client of Flight sends to publish, to read and to ask."""
    recorder = Recorder(doors.flight)
    with Client(f"grpc://{_HOST}:{recorder.port}") as client:
        with client.producer(ATTACKED) as producer:
            for number in range(20):
                producer.send([b"x" * 100, b"%d" % number]).result(30)
        assert sum(one.batch.num_rows for one in client.fetch(ATTACKED)) == 40
        client.describe(ATTACKED)
    recorder.close()
    return [bytes(one) for one in recorder.sent if one]


# ------------------------------------------------------------------------------------- the witness


@dataclass(frozen=True, slots=True)
class Call:
    """One call of the witness."""

    ended_s: float
    call: str
    took_ms: float
    number: int


class Witness:
    """The well-behaved client, and its judgement."""

    def __init__(self, doors: Doors, folder: Path) -> None:
        """Start it."""
        self._doors = doors
        self._file = folder / "witness.jsonl"
        self._errors = folder / "witness.err"
        with self._errors.open("w") as errors:
            self._process = subprocess.Popen(
                [sys.executable, witness.__file__, doors.broker.url, _WITNESSED, str(self._file)],
                stderr=errors,
            )

    def stop(self) -> list[Call]:
        """End it; return its calls. Raises AssertionError if a call of it failed."""
        if self._process.poll() is None:
            self._process.terminate()
        code = self._process.wait(90)
        assert code == 0, f"the witness failed:\n{self._errors.read_text()[-3000:]}"
        lines = self._file.read_text(encoding="utf-8").splitlines()
        return [Call(*json.loads(line)) for line in lines]

    def require_stored(self, calls: list[Call]) -> int:
        """Read the stream; raise AssertionError unless it is what was acknowledged; its count."""
        acked = [witness.value_of(one.number) for one in calls if one.call == "publish"]
        with Client(self._doors.broker.url) as client:
            found = [
                value
                for one in client.fetch(_WITNESSED)
                for value in one.batch.column("value").to_pylist()
            ]
        assert found == acked, f"{len(acked)} records acknowledged, {len(found)} stored"
        return len(acked)


class Memory:
    """Samples the broker's memory until the end of the block."""

    def __init__(self, broker: BrokerProcess) -> None:
        self._broker = broker
        self._over = threading.Event()
        self._thread = threading.Thread(target=self._run, name="memory")
        self.most_bytes = 0

    def __enter__(self) -> Self:
        self._thread.start()
        return self

    def __exit__(self, *_: object) -> None:
        self._over.set()
        self._thread.join()

    def _run(self) -> None:
        while not self._over.wait(_SAMPLE_S):
            with suppress(OSError):  # the process has ended, which others notice
                self.most_bytes = max(self.most_bytes, self._broker.resident_bytes())


def errors_in(log: Path) -> list[str]:
    """Return what a broker's log has at level error or above, and tracebacks."""
    found = []
    for line in log.read_text(errors="replace").splitlines():
        with suppress(ValueError):
            body: dict[str, Any] = json.loads(line)
            if body.get("level") in ("error", "critical") or "exception" in body:
                found.append(line)
            continue
        if line.startswith(("Traceback", "Fatal", "Exception")):
            found.append(line)
    return found


def load() -> float:
    """Return the machine's load, per core."""
    return os.getloadavg()[0] / (os.cpu_count() or 1)
