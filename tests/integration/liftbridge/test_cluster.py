"""Liftbridge's API of three brokers: any of them takes publishes, and a leader may be killed."""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator
from functools import partial
from pathlib import Path
from typing import Any

import grpc
import pytest

from broker.wire.liftbridge import api_pb2 as api
from broker.wire.liftbridge import message_pb2 as wire
from broker.wire.liftbridge.api_pb2_grpc import APIStub
from clusterkit.lift_brokers import serve_liftbridge
from clusterkit.running import Cluster
from headwater.local.embedded import start_nats

pytestmark = pytest.mark.integration

WAIT_S = 60.0


class Rig:
    """Three brokers that serve Liftbridge's API, and a client of each."""

    def __init__(self, cluster: Cluster, ports: list[int]) -> None:
        self.cluster = cluster
        self.channels = [grpc.insecure_channel(f"127.0.0.1:{port}") for port in ports]
        self.stubs = [APIStub(one) for one in self.channels]  # type: ignore[no-untyped-call]

    def until(self, ask: Callable[[], Any]) -> Any:
        """Return what a call answers, once it is not refused any more, as clients do."""
        deadline = time.monotonic() + WAIT_S
        while True:
            try:
                return ask()
            except grpc.RpcError:
                if time.monotonic() > deadline:
                    raise
                time.sleep(0.02)

    def leader(self, number: int) -> int:
        """Return the broker that leads the partition, as broker ``number`` knows."""

        def ask() -> int:
            told = self.stubs[number].FetchMetadata(
                api.FetchMetadataRequest(streams=["s"]), timeout=WAIT_S
            )
            return self.names.index(told.streamMetadata[0].partitions[0].leader)

        deadline = time.monotonic() + WAIT_S
        while True:
            try:
                return ask()
            except (ValueError, grpc.RpcError):
                if time.monotonic() > deadline:
                    raise
                time.sleep(0.02)

    @property
    def names(self) -> list[str]:
        """The brokers' ids."""
        return [self.cluster.name(number) for number in range(3)]

    def publish(self, number: int, values: list[bytes]) -> list[api.PublishResponse]:
        """Publish at one broker, with acks of all replicas; return the answers."""
        requests = (
            api.PublishRequest(
                stream="s", value=value, correlationId=value.decode(), ackPolicy=wire.ALL
            )
            for value in values
        )
        return list(self.stubs[number].PublishAsync(requests, timeout=WAIT_S))

    def read(self, number: int) -> list[bytes]:
        """Return all values, from the leader."""
        request = api.SubscribeRequest(
            stream="s", startPosition=api.EARLIEST, stopPosition=api.STOP_LATEST
        )
        found: list[bytes] = []
        with pytest.raises(grpc.RpcError) as ended:
            found.extend(one.value for one in self.stubs[number].Subscribe(request, timeout=WAIT_S))
        assert ended.value.code() is grpc.StatusCode.RESOURCE_EXHAUSTED
        return found[1:]


@pytest.fixture
def rig(tmp_path: Path) -> Iterator[Rig]:
    """Give a cluster with a stream s of three replicas."""
    with start_nats(tmp_path / "nats") as nats:
        cluster = Cluster(tmp_path, nats)
        ports = serve_liftbridge(cluster)
        try:
            cluster.start_all()
            made = Rig(cluster, list(ports.values()))
            request = api.CreateStreamRequest(
                name="s", subject="s", replicationFactor=3, minIsr=api.NullableInt32(value=2)
            )
            made.until(lambda: _create(made.stubs[0], request))
            yield made
            for one in made.channels:
                one.close()
        finally:
            cluster.close()


def _create(stub: Any, request: api.CreateStreamRequest) -> None:
    """Create a stream; one that is there was created by a call before, without an answer."""
    try:
        stub.CreateStream(request, timeout=WAIT_S)
    except grpc.RpcError as refused:
        if refused.code() is not grpc.StatusCode.ALREADY_EXISTS:
            raise


def test_any_broker_takes_publishes_and_a_killed_leader_loses_none(rig: Rig) -> None:
    """Brokers that do not lead hand messages over; the next leader has every acked message."""
    values = [b"%05d" % number for number in range(600)]
    for number in range(3):
        answers = rig.publish(number, values[number * 100 : number * 100 + 100])
        assert [one.ack.offset for one in answers] == list(range(number * 100, number * 100 + 100))
    before = rig.leader(0)
    assert rig.read(before) == values[:300]
    unknown = api.PublishRequest(stream="no", value=b"x")
    with pytest.raises(grpc.RpcError) as refused:
        rig.stubs[(before + 1) % 3].Publish(unknown, timeout=WAIT_S)
    assert refused.value.code() is grpc.StatusCode.NOT_FOUND
    rig.cluster.kill(before)
    other = (before + 1) % 3
    acked: list[bytes] = []
    for value in values[300:400]:
        request = api.PublishRequest(stream="s", value=value, ackPolicy=wire.ALL)
        rig.until(partial(rig.stubs[other].Publish, request, timeout=WAIT_S))
        acked.append(value)
    after = rig.leader(other)
    assert after != before
    found = rig.read(after)
    assert [one for one in values[:300] + acked if one not in found] == []
    assert found[:300] == values[:300]
