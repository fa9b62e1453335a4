"""A stranger's idle connections take no partition down, and leave the door open for others.

Real processes with a real limit of descriptors. What was acknowledged is in the next read.
"""

from __future__ import annotations

import resource
import socket
import time
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager, suppress
from pathlib import Path
from typing import Final

import pytest

from broker.errors import HeadwaterError
from crashkit.processes import BrokerProcess
from crashkit.stage import Witness
from headwater.client import Client

pytestmark = [pytest.mark.integration, pytest.mark.slow]

LIMIT: Final = 1024
IDLE: Final = 1100
SEGMENT_BYTES: Final = 32 * 1024


@contextmanager
def idle_connections(port: int, count: int) -> Iterator[list[socket.socket]]:
    """Hold so many connections that never send a byte."""
    with ExitStack() as stack:
        held = []
        for _ in range(count):
            one = stack.enter_context(socket.socket())
            one.settimeout(5.0)
            with suppress(OSError):  # beyond the limit nobody accepts any more
                one.connect(("127.0.0.1", port))
            held.append(one)
        yield held


@pytest.fixture
def broker(tmp_path: Path) -> Iterator[BrokerProcess]:
    """Run a broker that may open 1,024 files."""
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    if hard != resource.RLIM_INFINITY and hard < 4 * LIMIT:
        pytest.skip("this test holds more connections than this shell may have")
    if soft != resource.RLIM_INFINITY:
        resource.setrlimit(resource.RLIMIT_NOFILE, (max(soft, 4 * LIMIT), hard))
    process = BrokerProcess(
        tmp_path / "broker",
        nats_url="",
        lake=str(tmp_path / "lake"),
        forked=False,
        descriptors_max=LIMIT,
    )
    process.start()
    try:
        process.wait_ready()
        yield process
    finally:
        with suppress(AssertionError):
            process.kill()
        resource.setrlimit(resource.RLIMIT_NOFILE, (soft, hard))


def test_idle_connections_beyond_the_limit_fail_no_log(broker: BrokerProcess) -> None:
    """Segments roll and checkpoints are made while all descriptors are taken; nothing is lost."""
    with Client(broker.url) as client:
        for number in range(4):
            client.create_stream(
                f"s{number}", subject=f"s{number}", segment_bytes_max=SEGMENT_BYTES
            )
        witnesses = [
            Witness(client, f"s{number}", seed=f"idle-{number}", subject=f"s{number}")
            for number in range(4)
        ]
        with ExitStack() as stack:
            producers = [stack.enter_context(client.producer(f"s{number}")) for number in range(4)]
            for witness, producer in zip(witnesses, producers, strict=True):
                witness.put(producer, 50)
            with idle_connections(broker.flight_port, IDLE):
                until_s = time.monotonic() + 6.0
                while time.monotonic() < until_s:
                    for witness, producer in zip(witnesses, producers, strict=True):
                        witness.put(producer, 100)
                with Client(broker.url) as other:  # a newcomer is let in
                    assert len(other.streams()) == 4
                broker.wait_ready()
            for witness, producer in zip(witnesses, producers, strict=True):
                witness.put(producer, 50)
        for witness in witnesses:
            witness.assert_exact()
    log = broker.log_path.read_text()
    assert "partition_failed" not in log
    assert "descriptor_budget" in log


def test_waves_of_connections_do_not_stop_a_publisher(broker: BrokerProcess) -> None:
    """Each wave takes every descriptor for a moment; the log is served from its reserve."""
    with Client(broker.url) as client:
        client.create_stream("s", subject="s", segment_bytes_max=SEGMENT_BYTES)
        witness = Witness(client, "s", seed="waves", subject="s")
        with client.producer("s") as producer:
            for _ in range(5):
                with idle_connections(broker.flight_port, IDLE):
                    witness.put(producer, 200)
        witness.assert_exact()
        with suppress(HeadwaterError):
            client.delete_stream("s")
    assert "partition_failed" not in broker.log_path.read_text()
