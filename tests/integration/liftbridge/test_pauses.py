"""Paused and read-only partitions as a client of Liftbridge meets them."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import dataclass
from typing import Any

import grpc
import pytest

from broker.adapters.liftbridge.config import LiftbridgeServiceConfig
from broker.adapters.liftbridge.service import LiftbridgeService
from broker.model.stream import StreamConfig
from broker.wire.liftbridge import api_pb2 as api
from broker.wire.liftbridge import message_pb2 as wire
from broker.wire.liftbridge.api_pb2_grpc import APIStub
from simkit.brokers.memory_broker import MemoryBroker

pytestmark = pytest.mark.integration

WAIT_S = 60.0
NOT_FOUND = grpc.StatusCode.NOT_FOUND
FAILED = grpc.StatusCode.FAILED_PRECONDITION
EXHAUSTED = grpc.StatusCode.RESOURCE_EXHAUSTED


@dataclass
class Rig:
    """A running service, the broker behind it, and a client."""

    broker: MemoryBroker
    stub: APIStub

    def publish(self, value: bytes = b"x", partition: int = 0) -> wire.Ack:
        """Publish one message to stream s and return its ack."""
        request = api.PublishRequest(stream="s", value=value, partition=partition)
        ack: wire.Ack = self.stub.Publish(request, timeout=WAIT_S).ack
        return ack

    def pause(self, *partitions: int, resume_all: bool = False) -> None:
        """Pause partitions of s; none: all."""
        request = api.PauseStreamRequest(name="s", partitions=partitions, resumeAll=resume_all)
        self.stub.PauseStream(request, timeout=WAIT_S)

    def readonly(self, *partitions: int, on: bool = True) -> None:
        """Make partitions of s read-only, or not."""
        request = api.SetStreamReadonlyRequest(name="s", partitions=partitions, readonly=on)
        self.stub.SetStreamReadonly(request, timeout=WAIT_S)

    def told(self) -> list[tuple[bool, bool]]:
        """Return of each partition whether it is paused, and whether it is read-only."""
        answer = self.stub.FetchMetadata(api.FetchMetadataRequest(streams=["s"]), timeout=WAIT_S)
        rows = answer.streamMetadata[0].partitions
        return [(rows[number].paused, rows[number].readonly) for number in sorted(rows)]

    def metadata(self) -> api.PartitionMetadata:
        """Return what the leader of partition 0 says."""
        request = api.FetchPartitionMetadataRequest(stream="s", partition=0)
        found: api.PartitionMetadata
        found = self.stub.FetchPartitionMetadata(request, timeout=WAIT_S).metadata
        return found

    def subscribe(self, **fields: object) -> Any:
        """Begin to read partition 0 from its first record on."""
        request = api.SubscribeRequest(
            stream="s", startPosition=api.EARLIEST, **fields  # type: ignore[arg-type]
        )  # fmt: skip
        return self.stub.Subscribe(request, timeout=WAIT_S)


def ends(call: Any) -> tuple[list[bytes], grpc.StatusCode, str]:
    """Read a subscription to its end; return its values, its status and the words of it."""
    found: list[bytes] = []
    with pytest.raises(grpc.RpcError) as ended:
        found.extend(one.value for one in call)
    return found, ended.value.code(), str(ended.value.details())


def code_of(call: Callable[..., object], request: object) -> grpc.StatusCode:
    """Return the status with which a call is refused."""
    with pytest.raises(grpc.RpcError) as refused:
        call(request, timeout=WAIT_S)
    code: grpc.StatusCode = refused.value.code()
    return code


@pytest.fixture
def rig() -> Iterator[Rig]:
    """Give a service with an empty stream s of two partitions."""
    broker = MemoryBroker()
    service = LiftbridgeService(broker, broker.clock, LiftbridgeServiceConfig(port=0))
    service.start()
    channel = grpc.insecure_channel(f"127.0.0.1:{service.port}")
    broker.create("s", StreamConfig(subject="foo", partitions=2))
    yield Rig(broker, APIStub(channel))  # type: ignore[no-untyped-call]  # generated
    channel.close()
    assert service.close(timeout_ms=10_000)
    broker.close()


def test_a_publish_resumes_a_paused_partition(rig: Rig) -> None:
    """L28: Publish and PublishAsync; the metadata shows what is paused."""
    rig.pause(0)
    rig.pause(0)
    assert rig.told() == [(True, False), (False, False)]
    assert rig.publish().offset == 0
    assert rig.told() == [(False, False), (False, False)]
    rig.pause()
    assert rig.told() == [(True, False), (True, False)]
    requests = [api.PublishRequest(stream="s", value=b"x", partition=one) for one in (0, 1, 0)]
    answers = list(rig.stub.PublishAsync(iter(requests), timeout=WAIT_S))
    assert sorted(one.ack.offset for one in answers) == [0, 1, 2]
    assert rig.told() == [(False, False), (False, False)]


def test_a_stream_paused_with_resume_all_is_resumed_by_any_publish(rig: Rig) -> None:
    """Also by a publisher who has been publishing to a partition that was not paused."""

    def requests() -> Iterator[api.PublishRequest]:
        yield api.PublishRequest(stream="s", value=b"x")
        rig.pause(1, resume_all=True)
        yield api.PublishRequest(stream="s", value=b"x")

    answers = list(rig.stub.PublishAsync(requests(), timeout=WAIT_S))
    assert [one.ack.offset for one in answers] == [0, 1]
    assert rig.told() == [(False, False), (False, False)]


def test_subscribers_of_a_paused_partition_are_refused_or_resume_it(rig: Rig) -> None:
    """Whatever their start, and those who follow when it is paused."""
    rig.publish(b"0")
    call = rig.subscribe()
    assert [next(call).value for _ in range(2)] == [b"", b"0"]
    rig.pause()
    assert ends(call)[1:] == (FAILED, "Partition is paused")
    assert ends(rig.subscribe())[1] is FAILED
    call = rig.subscribe(resume=True)
    assert [next(call).value for _ in range(2)] == [b"", b"0"]
    call.cancel()
    assert rig.told()[0] == (False, False)


def test_a_read_only_partition_refuses_publishes(rig: Rig) -> None:
    """L29: by its own code in PublishAsync; it is not resumed for a publish in vain."""
    rig.pause(0)
    rig.readonly(0)
    assert rig.told() == [(True, True), (False, False)]
    request = api.PublishRequest(stream="s", value=b"x", correlationId="c")
    assert code_of(rig.stub.Publish, request) is FAILED
    (answer,) = rig.stub.PublishAsync(iter([request]), timeout=WAIT_S)
    assert answer.asyncError.code == api.PublishAsyncError.READONLY
    assert answer.correlationId == "c"
    assert rig.publish(partition=1).offset == 0
    assert rig.told()[0] == (True, True)
    rig.readonly(on=False)
    assert rig.publish().offset == 0


def test_subscribers_get_everything_of_a_read_only_partition_and_then_its_end(rig: Rig) -> None:
    """Those who follow, those who come later, and those of an empty one."""
    rig.publish(b"0")
    call = rig.subscribe()
    assert next(call).value == b""
    rig.publish(b"1")
    rig.readonly()
    assert ends(call) == ([b"0", b"1"], EXHAUSTED, "End of readonly partition")
    assert ends(rig.subscribe()) == ([b"", b"0", b"1"], EXHAUSTED, "End of readonly partition")
    beyond = rig.subscribe(stopPosition=api.STOP_OFFSET, stopOffset=9)
    assert ends(beyond) == ([b"", b"0", b"1"], EXHAUSTED, "End of readonly partition")
    first = rig.subscribe(stopPosition=api.STOP_OFFSET, stopOffset=0)
    assert ends(first) == ([b"", b"0"], EXHAUSTED, "Stop offset reached")
    assert ends(rig.subscribe(partition=1)) == ([b""], EXHAUSTED, "End of readonly partition")


def test_event_times_are_told(rig: Rig) -> None:
    """L31: in nanoseconds; 0 is never."""
    kinds = ("messagesReceivedTimestamps", "pauseTimestamps", "readonlyTimestamps")
    never = api.PartitionEventTimestamps()
    assert all(getattr(rig.metadata(), kind) == never for kind in kinds)
    start_ns = rig.broker.clock.now_us() * 1000
    rig.pause(0)
    rig.broker.clock.advance(us=5)
    rig.publish()
    rig.broker.clock.advance(us=5)
    rig.publish()
    rig.readonly()
    found = rig.metadata()
    times = [(one.firstTimestamp - start_ns, one.latestTimestamp - start_ns) for one in (
        found.messagesReceivedTimestamps, found.pauseTimestamps, found.readonlyTimestamps,
    )]  # fmt: skip
    assert times == [(5_000, 10_000), (0, 5_000), (10_000, 10_000)]
    assert found.readonly


def test_what_does_not_exist_cannot_be_paused(rig: Rig) -> None:
    """Streams, partitions, and what only looks like a stream."""
    for name, partition in (("no", 0), ("s", 2), ("__cursors", 0)):
        pause = api.PauseStreamRequest(name=name, partitions=[partition])
        assert code_of(rig.stub.PauseStream, pause) is NOT_FOUND
        readonly = api.SetStreamReadonlyRequest(name=name, partitions=[partition])
        assert code_of(rig.stub.SetStreamReadonly, readonly) is NOT_FOUND
