"""A broker has more partitions than descriptors, takes records to all of them, and starts again.

Once a second stream of 1,024 partitions failed at a limit of 4,096 descriptors, and was durable:
the broker never started again.
"""

from __future__ import annotations

import resource
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import Final

import grpc
import pytest

from broker.wire.liftbridge import api_pb2 as api
from broker.wire.liftbridge import message_pb2 as wire
from broker.wire.liftbridge.api_pb2_grpc import APIStub
from crashkit.processes import BrokerProcess
from headwater.client import Client
from headwater.local import embedded

pytestmark = [pytest.mark.integration, pytest.mark.slow]

LIMIT: Final = 256
PARTITIONS: Final = 100  # of each stream
STREAMS: Final = ("a", "b", "c")
WAIT_S: Final = 120.0


@contextmanager
def running(broker: BrokerProcess) -> Iterator[Client]:
    """Run it until the end of the block; give a client."""
    broker.start()
    try:
        broker.wait_ready(WAIT_S)
        assert resource.prlimit(broker.pid, resource.RLIMIT_NOFILE) == (LIMIT, LIMIT)
        with Client(broker.url) as client:
            yield client
    finally:
        with suppress(AssertionError):
            broker.kill()


def test_a_broker_has_more_partitions_than_descriptors(tmp_path: Path) -> None:
    """Each partition takes a record before the start and after it, and has both."""
    port = embedded.free_port()
    broker = BrokerProcess(
        tmp_path / "broker",
        nats_url="",
        lake=str(tmp_path / "lake"),
        settings={"liftbridge": {"enabled": True, "port": port}},
        forked=False,
        descriptors_max=LIMIT,
    )
    with running(broker) as client:
        for name in STREAMS:
            client.create_stream(name, partitions=PARTITIONS)
        put_everywhere(port, b"before")
    with running(broker) as client:
        put_everywhere(port, b"after")
        for name in STREAMS:
            assert client.high_watermarks([name])[name].offsets == (2,) * PARTITIONS
            for number in range(0, PARTITIONS, 25):
                found = client.fetch(name, number)
                values = [one for part in found for one in part.batch["value"].to_pylist()]
                assert values == [b"before", b"after"]
    assert "partition_failed" not in broker.log_path.read_text()


def put_everywhere(port: int, value: bytes) -> None:
    """Publish a record to each partition of each stream, with an ack."""
    requests = (
        api.PublishRequest(stream=name, partition=number, value=value)
        for name in STREAMS
        for number in range(PARTITIONS)
    )
    with grpc.insecure_channel(f"127.0.0.1:{port}") as channel:
        stub = APIStub(channel)  # type: ignore[no-untyped-call]  # generated
        acks = [one.ack for one in stub.PublishAsync(requests, timeout=WAIT_S)]
    assert len(acks) == len(STREAMS) * PARTITIONS
    assert {one.ackError for one in acks} == {wire.Ack.OK}
