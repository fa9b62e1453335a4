"""Each door is flooded within bounded counts and times while a publisher and a reader go on.

A row names a door and what a stranger does to it. For every row: what was acknowledged is read,
exactly; the broker lives, is ready, and stays below its bound of memory. The latencies of the
publisher are printed, not judged: this machine has other work.
"""

from __future__ import annotations

import json
import os
import socket
import sys
import threading
import time
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import ExitStack, contextmanager, suppress
from pathlib import Path
from typing import Final

import grpc
import pytest
from pyarrow import flight

from broker.codec.flight.protocol import ReadRequest
from broker.model.offsets import Offset
from crashkit.processes import BrokerProcess
from crashkit.stage import Witness
from fuzzkit.doors.strangers import actions_at_once
from headwater.client import Client
from headwater.local import embedded

pytestmark = [pytest.mark.integration, pytest.mark.slow]

RESIDENT_BYTES_MAX: Final = 350 * 1024 * 1024
FLOOD_S: Final = 0.7
WAIT_S: Final = 60.0
STRANGERS: Final = 8
LIFTBRIDGE_PORTS: Final[dict[BrokerProcess, int]] = {}
Attack = Callable[[BrokerProcess, int], object]  # one try of stranger number so


@contextmanager
def connected(port: int, count: int = 1) -> Iterator[list[socket.socket]]:
    """Hold connections to a port."""
    with ExitStack() as stack:
        yield [
            stack.enter_context(socket.create_connection(("127.0.0.1", port), timeout=1))
            for _ in range(count)
        ]


def connects(port_of: Callable[[BrokerProcess], int]) -> Attack:
    """Return an attack: connections that end at once, and some that say nothing for a while."""

    def attack(broker: BrokerProcess, number: int) -> None:
        with connected(port_of(broker), 20):
            time.sleep(0.01 * number)

    return attack


def garbage(port_of: Callable[[BrokerProcess], int], begin: bytes) -> Attack:
    """Return an attack: bytes that no protocol has, after a good beginning."""

    def attack(broker: BrokerProcess, _: int) -> None:
        with connected(port_of(broker)) as (one,):
            one.sendall(begin + os.urandom(16 * 1024))
            one.recv(1024)

    return attack


def action(name: str, body: object) -> Attack:
    """Return an attack: one action of Flight, whatever it answers."""
    data = body if isinstance(body, bytes) else json.dumps(body).encode()

    def attack(broker: BrokerProcess, _: int) -> None:
        with flight.FlightClient(broker.url) as client:
            options = flight.FlightCallOptions(timeout=2.0)
            list(client.do_action(flight.Action(name, data), options))

    return attack


def follow(broker: BrokerProcess, _: int) -> None:
    """Begin reads that never end, and read nothing of them."""
    ticket = ReadRequest(stream="s", partition=0, start=Offset(0), follow=True).to_ticket()
    with flight.FlightClient(broker.url) as client:
        held = [client.do_get(flight.Ticket(ticket)) for _ in range(20)]
        time.sleep(0.05)
        for one in held:
            one.cancel()


def calls_at_once(broker: BrokerProcess, number: int) -> None:
    """Make thousands of calls at once in one connection, and wait for all; the others only wait."""
    body = json.dumps({"names": ["s"]}).encode()
    time.sleep(0.01)
    with grpc.insecure_channel(f"127.0.0.1:{broker.flight_port}") as channel:
        count = 3_000 * (number == 0)
        actions_at_once(channel, "high_watermarks", body, count=count, timeout_s=20)


def flight_port(broker: BrokerProcess) -> int:
    """Return the port of Flight."""
    return broker.flight_port


def http_port(broker: BrokerProcess) -> int:
    """Return the port of health and metrics."""
    return broker.http_port


def liftbridge_port(broker: BrokerProcess) -> int:
    """Return the port of Liftbridge's API."""
    return LIFTBRIDGE_PORTS[broker]


HTTP2: Final = b"PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n"
FLOODS: Final[dict[str, Attack]] = {
    "Flight: connections": connects(flight_port),
    "Flight: garbage": garbage(flight_port, HTTP2),
    "Flight: unknown actions": action("no_such_action", {}),
    "Flight: nested JSON": action("describe_stream", b"[" * 60_000),
    "Flight: leases": action("take_lease", {"name": "s", "owner": "x", "ttl_ms": 86_400_000}),
    "Flight: high watermarks": action("high_watermarks", {"names": ["s"] * 100}),
    "Flight: flushes": action("tier_flush", {"name": "s", "timeout_ms": 60_000}),
    "Flight: followers": follow,
    "Flight: calls at once": calls_at_once,
    "HTTP: connections": connects(http_port),
    "HTTP: garbage": garbage(http_port, b"GET /metrics HTTP/1.1\r\nX: "),
    "Liftbridge: connections": connects(liftbridge_port),
    "Liftbridge: garbage": garbage(liftbridge_port, HTTP2),
}


@pytest.fixture(scope="module")
def broker(tmp_path_factory: pytest.TempPathFactory) -> Iterator[BrokerProcess]:
    """Run a broker with every door open."""
    folder = tmp_path_factory.mktemp("floods")
    port = embedded.free_port()
    process = BrokerProcess(
        folder / "broker",
        nats_url="",
        lake=str(folder / "lake"),
        settings={"liftbridge": {"enabled": True, "port": port}},
        forked=False,
    )
    LIFTBRIDGE_PORTS[process] = port
    process.start()
    try:
        process.wait_ready()
        with Client(process.url) as client:
            client.create_stream("s", subject="s")
        yield process
    finally:
        with suppress(AssertionError):
            process.kill()


@contextmanager
def flooded(broker: BrokerProcess, attack: Attack) -> Iterator[None]:
    """Let strangers attack again and again during the block, which begins when each has begun."""
    ended = threading.Event()
    begun = threading.Barrier(STRANGERS + 1)

    def stranger(number: int) -> None:
        begun.wait(WAIT_S)
        while not ended.is_set():
            with suppress(OSError, flight.FlightError, ValueError):  # whatever it is answered
                attack(broker, number)

    with ThreadPoolExecutor(STRANGERS) as pool:
        attacks = [pool.submit(stranger, number) for number in range(STRANGERS)]
        try:
            begun.wait(WAIT_S)
            yield
        finally:
            ended.set()
        for one in attacks:
            one.result(WAIT_S)


def resident_bytes(pid: int) -> int:
    """Return the memory of a process now."""
    for line in Path(f"/proc/{pid}/status").read_text().splitlines():
        if line.startswith("VmRSS:"):
            return int(line.split()[1]) * 1024
    raise AssertionError("the kernel does not tell")


@pytest.mark.parametrize("door", FLOODS)
def test_a_flooded_door_leaves_others_served(broker: BrokerProcess, door: str) -> None:
    """The publisher's records are acknowledged and read, and memory stays below its bound."""
    stream = "w" + "".join(one for one in door if one.isalnum())
    waits_ms: list[float] = []
    with Client(broker.url) as client:
        client.create_stream(stream, subject=stream)
        witness = Witness(client, stream, seed=stream, subject=stream)
        with client.producer(stream) as producer, flooded(broker, FLOODS[door]):
            until_s = time.monotonic() + FLOOD_S
            while not waits_ms or time.monotonic() < until_s:
                began_s = time.monotonic()
                witness.put(producer, 5)
                waits_ms.append((time.monotonic() - began_s) * 1000)
        witness.assert_exact()
    assert broker.exit_code is None
    broker.wait_ready()
    waits_ms.sort()
    megabytes = resident_bytes(broker.pid) / 1024**2
    p99_ms = waits_ms[len(waits_ms) * 99 // 100]
    sys.stderr.write(f"{door}: p99 {p99_ms:.0f} ms, {megabytes:.0f} MiB\n")
    assert resident_bytes(broker.pid) < RESIDENT_BYTES_MAX
