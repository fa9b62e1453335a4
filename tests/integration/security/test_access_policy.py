"""A policy in casbin's files at two doors, Flight and Liftbridge's API, while reads are open."""

from __future__ import annotations

import itertools
import secrets
import time
from collections import deque
from collections.abc import Callable, Iterable, Iterator
from pathlib import Path
from statistics import median
from typing import Any

import grpc
import pytest

from broker.adapters.access.casbin_policy import CasbinFiles
from broker.adapters.clock import SystemClock
from broker.adapters.flight.config import FlightServiceConfig
from broker.adapters.flight.service import FlightService
from broker.adapters.liftbridge.config import LiftbridgeServiceConfig
from broker.adapters.liftbridge.service import LiftbridgeService
from broker.core.access.static_tokens import TOKEN_BYTES, make_token, split_token
from broker.errors import AccessDeniedError
from broker.model.secret import Secret
from broker.model.stream import StreamConfig
from broker.process.watched_files import WatchedFiles
from broker.runtime.api.access import Access
from broker.wire.liftbridge import api_pb2 as api
from broker.wire.liftbridge.api_pb2_grpc import APIStub
from headwater.client import Client
from simkit.brokers.memory_broker import MemoryBroker

pytestmark = pytest.mark.integration

SOON_S = 1.0  # a revocation is in force within this time, on open streams too
TRIES = 3  # to measure a time: the machine may stand still during one of them
WAIT_S = 60
MODEL = """
[request_definition]
r = sub, obj, act
[policy_definition]
p = sub, obj, act
[policy_effect]
e = some(where (p.eft == allow))
[matchers]
m = r.sub == p.sub && r.obj == p.obj && r.act == p.act
"""
READS = "p, ann, s, Subscribe\n"
WRITES = "p, ann, s, Publish\n"


class Site:
    """Two doors of a broker that has a policy, and one token."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        (folder / "model.conf").write_text(MODEL)
        self.write(READS + WRITES)
        policy = CasbinFiles(str(folder / "model.conf"), str(folder / "policy.csv"))
        self.watched = WatchedFiles([policy], SystemClock(), lambda crash: None)
        self.watched.start()
        self.broker = MemoryBroker()
        self.broker.metadata.note("s", self.broker.create("s", StreamConfig(subject="s")))
        clock = self.broker.clock
        self.access = Access(
            self.broker.metadata, clock, enabled=True, namespace="default", policy=policy.policy
        )
        self.token = Secret(make_token(secrets.token_bytes(TOKEN_BYTES)))
        self.access.create_token(
            *split_token(self.token.reveal()), "ann", expires_us=0, note="", created_by="test"
        )
        config = FlightServiceConfig(port=0)
        self.flight = FlightService(self.broker, clock, config, access=self.access)
        self.flight.start()
        self.liftbridge = LiftbridgeService(
            self.broker, clock, LiftbridgeServiceConfig(port=0), access=self.access
        )
        self.liftbridge.start()

    def write(self, lines: str) -> None:
        """Replace the policy."""
        (self.folder / "next").write_text(lines)
        (self.folder / "next").rename(self.folder / "policy.csv")

    def subscribe(self, stub: Any) -> Iterator[Any]:
        """Subscribe to the stream by Liftbridge's API."""
        call: Iterator[Any] = stub.Subscribe(
            api.SubscribeRequest(stream="s", startPosition=api.EARLIEST),
            timeout=WAIT_S,
            metadata=[("authorization", f"Bearer {self.token.reveal()}")],
        )
        return call

    def close(self) -> None:
        """End everything."""
        assert self.flight.close(timeout_ms=10_000)
        assert self.liftbridge.close(timeout_ms=10_000)
        self.watched.stop()
        self.broker.close()


@pytest.fixture
def site(tmp_path: Path) -> Iterator[Site]:
    """Give both doors."""
    found = Site(tmp_path)
    yield found
    found.close()


def exhaust(endless: Iterable[object]) -> None:
    """Take from it until it fails."""
    deque(endless, maxlen=0)


def once_allowed(call: Callable[[], object]) -> None:
    """Make a call again and again until the policy that lets it is in force."""
    deadline_s = time.monotonic() + WAIT_S
    while True:
        try:
            call()
        except AccessDeniedError:
            assert time.monotonic() < deadline_s
            time.sleep(0.02)
        else:
            return


def publish(client: Client) -> None:
    """Store a record."""
    with client.producer("s") as producer:
        producer.send([b"one"]).result(WAIT_S)


def reads_end_after_s(site: Site, client: Client, stub: Any) -> float:
    """End open writes by a policy, then reads at both doors; return how long that one took."""
    producer = client.producer("s")
    producer.send([b"one"]).result(WAIT_S)
    following = client.fetch("s", follow=True)
    assert next(following).batch.num_rows
    subscribed = site.subscribe(stub)
    next(subscribed)
    assert next(subscribed).value == b"one"
    site.write(READS)
    with pytest.raises(AccessDeniedError):
        exhaust(producer.send([b"two"]).result(WAIT_S) for _ in itertools.count())
    with pytest.raises(AccessDeniedError):
        producer.close()
    assert next(following).batch.num_rows
    began_s = time.monotonic()
    site.write("p, bob, s, Subscribe\n")
    with pytest.raises(AccessDeniedError):
        exhaust(following)
    with pytest.raises(grpc.RpcError) as ended:
        exhaust(subscribed)
    took_s = time.monotonic() - began_s
    assert ended.value.code() is grpc.StatusCode.PERMISSION_DENIED
    return took_s


def test_a_changed_policy_ends_open_reads_and_writes(site: Site) -> None:
    """Without a restart, within a second, at both doors; what was not changed goes on."""
    with (
        Client(f"127.0.0.1:{site.flight.port}", token=site.token) as client,
        grpc.insecure_channel(f"127.0.0.1:{site.liftbridge.port}") as channel,
    ):
        took_s = []
        for _ in range(TRIES):
            site.write(READS + WRITES)
            once_allowed(lambda: publish(client))
            once_allowed(lambda: list(client.fetch("s")))
            stub = APIStub(channel)  # type: ignore[no-untyped-call]  # generated
            took_s.append(reads_end_after_s(site, client, stub))
    assert median(took_s) < SOON_S, took_s
