"""A broker with every door open, a NATS server, and a witness: what strangers are let loose on.

A guarded broker asks for TLS, certificates and proofs at each door.
"""

from __future__ import annotations

import json
import os
import random
import ssl
import subprocess
import sys
import threading
import time
import urllib.error
import urllib.request
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager, suppress
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Final, Self

import grpc
from pyarrow import flight

from clusterkit.hostile import Recorder
from crashkit.processes import BrokerProcess
from fuzzkit.doors import witness
from fuzzkit.doors.guard import Guard
from headwater.client import Client
from headwater.client.address import read_token
from headwater.local import embedded
from headwater.local.cluster_certificates import files_of, make_certificates
from simkit.servers.natsproc import NatsProcess
from simkit.tier.lake_broker import serving

ATTACKED: Final = "s"  # the stream that strangers name
_WITNESSED: Final = "witnessed"
_CLUSTER, _BROKER, _OTHER = "fuzzed", "fuzzed-broker-1", "fuzzed-broker-2"
_HOST: Final = "127.0.0.1"
_SAMPLE_S: Final = 0.2
# Otherwise all clients of a process share one, and wait together after a failure of any of them.
_OWN_CONNECTION: Final = (("grpc.use_local_subchannel_pool", 1),)
_READY_S: Final = 2.0
_LIFTBRIDGE_S: Final = 60.0


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
    guard: Guard | None = None
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

    @property
    def url(self) -> str:
        """Where Flight is."""
        return f"{'grpc' if self.guard is None else 'grpc+tls'}://{_HOST}:{self.flight}"

    def client(self) -> Client:
        """Return an honest client, who may do everything."""
        if self.guard is None:
            return Client(self.url)
        told = self.guard.environment()
        return Client(
            self.url,
            tls_ca_file=told["HEADWATER_TLS_CA_FILE"],
            tls_cert_file=told["HEADWATER_TLS_CERT_FILE"],
            tls_key_file=told["HEADWATER_TLS_KEY_FILE"],
            token=read_token(told["HEADWATER_TOKEN_FILE"]),
        )

    def ready(self) -> bool:
        """Tell whether the broker says that it serves."""
        if self.guard is None:
            return self.broker.ready()
        url = f"https://{_HOST}:{self.http}/readyz"
        try:
            with urllib.request.urlopen(url, timeout=_READY_S, context=self.guard.inside) as answer:
                return bool(answer.status == 200)
        except (OSError, urllib.error.URLError):
            return False

    def liftbridge_answers(self) -> bool:
        """Tell whether Liftbridge's API serves one who may do everything."""
        with self.channel(self.liftbridge) as channel:
            call: Any = channel.unary_unary("/proto.API/FetchMetadata")
            try:
                return bool(call(b"", timeout=_LIFTBRIDGE_S, metadata=self.shown(None)))
            except grpc.RpcError:
                return False

    def context(self, draw: random.Random) -> ssl.SSLContext | None:
        """Choose how a stranger connects to a door that is not the brokers' own."""
        return None if self.guard is None else self.guard.context(draw)

    def flight_client(self) -> Any:
        """Return a stranger's client, whom TLS lets in."""
        if self.guard is None:
            return flight.FlightClient(self.url, generic_options=[*_OWN_CONNECTION])
        pair = self.guard.client
        return flight.FlightClient(
            self.url,
            generic_options=[*_OWN_CONNECTION],
            tls_root_certs=self.guard.ca_file.read_bytes(),
            cert_chain=pair.cert,
            private_key=pair.key,
        )

    def options(self, draw: random.Random | None, seconds: float) -> Any:
        """Return the options of a stranger's call, with what :meth:`shown` chooses."""
        headers = [(name.encode(), value.encode()) for name, value in self.shown(draw)]
        return flight.FlightCallOptions(timeout=seconds, headers=headers)

    def shown(self, draw: random.Random | None) -> list[tuple[str, str]]:
        """Return the metadata of a stranger's call; None: of one who may do everything."""
        token = None if self.guard is None else self.guard.token(draw)
        return [] if token is None else [("authorization", f"Bearer {token}")]

    def channel(self, port: int) -> grpc.Channel:
        """Return a stranger's channel of gRPC, whom TLS lets in."""
        if self.guard is None:
            return grpc.insecure_channel(f"{_HOST}:{port}", options=_OWN_CONNECTION)
        pair = self.guard.client
        found = grpc.ssl_channel_credentials(self.guard.ca_file.read_bytes(), pair.key, pair.cert)
        return grpc.secure_channel(f"{_HOST}:{port}", found, options=_OWN_CONNECTION)


@contextmanager
def staged(folder: Path, *, guarded: bool = False) -> Iterator[Doors]:
    """Run the broker until the end of the block."""
    guard = Guard.made_in(folder / "guard") if guarded else None
    asked = {} if guard is None else guard.settings()
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
                **asked,
                "liftbridge": {
                    **asked.get("liftbridge", {}),
                    "enabled": True,
                    "port": liftbridge,
                },
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
        doors = Doors(
            broker, nats, broker.flight_port, broker.http_port, liftbridge, peer,
            _member(certificates), guard,
        )  # fmt: skip
        wait_ready(doors, 300.0)  # a machine with other work may need minutes
        create_attacked(doors)
        with doors.client() as client:
            client.create_stream(_WITNESSED, subject=_WITNESSED)
        with serving(str(folder / "honest")) as served:  # not at a door with TLS: it hides bytes
            doors.honest = _honest(int(served.server.rpartition(":")[2]))
        yield doors


def create_attacked(doors: Doors) -> None:
    """Create the stream that strangers name; raises HeadwaterError."""
    with doors.client() as client:
        client.create_stream(ATTACKED, subject=ATTACKED, puback=True)


def wait_ready(doors: Doors, seconds: float) -> None:
    """Block until the broker says that it serves."""
    until_s = time.monotonic() + seconds
    while not doors.ready():
        assert doors.broker.exit_code is None, doors.broker.log_tail()
        assert time.monotonic() < until_s, f"not ready:\n{doors.broker.log_tail()}"
        time.sleep(_SAMPLE_S)


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


def _honest(port: int) -> list[bytes]:
    """Record what a client of Flight sends to publish, to read and to ask."""
    recorder = Recorder(port)
    with Client(f"grpc://{_HOST}:{recorder.port}") as client:
        client.create_stream(ATTACKED)
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
                [sys.executable, witness.__file__, doors.url, _WITNESSED, str(self._file)],
                stderr=errors,
                env={**os.environ, **({} if doors.guard is None else doors.guard.environment())},
                start_new_session=True,  # the strangers' one gets what processors are left
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
        with self._doors.client() as client:
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


class Busy:
    """How busy the machine's processors were since this was made, whoever had them."""

    def __init__(self) -> None:
        self._before = _ticks()

    def share(self) -> float:
        """Return 1.0 if no processor was ever idle."""
        idle, every = (now - then for now, then in zip(_ticks(), self._before, strict=True))
        return 1.0 - idle / max(every, 1)


def _ticks() -> tuple[int, int]:
    """Return for how long processors were idle, and the sum of all that they were (Linux)."""
    every = [int(one) for one in Path("/proc/stat").read_text().splitlines()[0].split()[1:9]]
    return every[3] + every[4], sum(every)  # idle, and idle while a disk works
