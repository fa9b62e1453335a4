"""Cursors and consumer groups as a foreign gRPC client meets them."""

from __future__ import annotations

from collections.abc import Callable, Iterator
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


class Rig:
    """A broker with stream s of four partitions, and a client."""

    def __init__(self, broker: MemoryBroker, port: int) -> None:
        self.broker = broker
        self.channel = grpc.insecure_channel(f"127.0.0.1:{port}")
        self.stub: Any = APIStub(self.channel)  # type: ignore[no-untyped-call]  # generated

    def ask(self, name: str, **fields: Any) -> Any:
        """Make a unary call."""
        request = getattr(api, f"{name}Request")(**fields)
        return getattr(self.stub, name)(request, timeout=WAIT_S)

    def code(self, name: str, **fields: Any) -> grpc.StatusCode:
        """Return the status with which a unary call is refused."""
        with pytest.raises(grpc.RpcError) as refused:
            self.ask(name, **fields)
        code: grpc.StatusCode = refused.value.code()
        return code

    def join(self, member: str) -> Any:
        """Join group g."""
        return self.ask("JoinConsumerGroup", groupId="g", consumerId=member, streams=["s"])

    def epoch(self) -> int:
        """Return the epoch of group g, as clients look it up."""
        told = self.ask("FetchMetadata", groups=["g"])
        assert told.groupMetadata[0].error == api.ConsumerGroupMetadata.OK
        epoch: int = told.groupMetadata[0].epoch
        return epoch

    def assigned(self, member: str) -> list[int]:
        """Return a member's partitions of s."""
        told = self.ask(
            "FetchConsumerGroupAssignments", groupId="g", consumerId=member, epoch=self.epoch()
        )
        return [number for one in told.assignments for number in one.partitions]

    def subscribe(self, member: str, epoch: int) -> Any:
        """Subscribe to partition 0 for group g; return the call, behind its first message."""
        request = api.SubscribeRequest(
            stream="s",
            startPosition=api.EARLIEST,
            consumer=api.Consumer(groupId="g", groupEpoch=epoch, consumerId=member),
        )
        call = self.stub.Subscribe(request, timeout=WAIT_S)
        assert next(call) == wire.Message()
        return call


@pytest.fixture
def rig() -> Iterator[Rig]:
    """Give a service."""
    broker = MemoryBroker()
    service = LiftbridgeService(broker, broker.clock, LiftbridgeServiceConfig(port=0))
    service.start()
    broker.create("s", StreamConfig(subject="s", partitions=4))
    made = Rig(broker, service.port)
    yield made
    made.channel.close()
    assert service.close(timeout_ms=10_000)
    broker.close()


def test_cursors_are_set_and_fetched(rig: Rig) -> None:
    """-1 if unset; clients find the broker for them as the leader of a stream's partition."""
    told = rig.ask("FetchMetadata", streams=["__cursors"])
    assert told.streamMetadata[0].partitions[0].leader == told.brokers[0].id
    asked = {"stream": "s", "partition": 1, "cursorId": "c"}
    assert rig.ask("FetchCursor", **asked).offset == -1
    rig.ask("SetCursor", **asked, offset=7)
    rig.ask("SetCursor", **asked, offset=5)
    assert rig.ask("FetchCursor", **asked).offset == 5
    assert rig.ask("FetchCursor", **{**asked, "partition": 0}).offset == -1
    for wrong in ({"cursorId": ""}, {"stream": ""}):
        for call in ("SetCursor", "FetchCursor"):
            assert rig.code(call, **{**asked, **wrong}) is grpc.StatusCode.INVALID_ARGUMENT


def test_a_late_cursor_of_a_group_is_not_found_and_the_next_stream_has_none(rig: Rig) -> None:
    """A member that has not heard of the deletion sets its place once more."""
    asked = {"stream": "s", "partition": 1, "cursorId": "__group:g"}
    rig.ask("SetCursor", **asked, offset=41)
    assert rig.ask("FetchCursor", **asked).offset == 41
    rig.broker.delete("s")
    assert rig.code("SetCursor", **asked, offset=41) is grpc.StatusCode.NOT_FOUND
    rig.broker.create("s", StreamConfig(subject="s", partitions=4))
    assert rig.ask("FetchCursor", **asked).offset == -1


def test_members_share_the_partitions(rig: Rig) -> None:
    """Two get two each; one leaves, the other gets all; each change has another epoch."""
    first = rig.join("a")
    assert (first.consumerTimeout, first.coordinatorTimeout) == (15 * 10**9, 15 * 10**9)
    assert rig.assigned("a") == [0, 1, 2, 3]
    second = rig.join("b")
    assert second.epoch > first.epoch
    assert (rig.assigned("a"), rig.assigned("b")) == ([0, 2], [1, 3])
    stale = {"groupId": "g", "consumerId": "a", "epoch": first.epoch}
    assert rig.code("FetchConsumerGroupAssignments", **stale) is (
        grpc.StatusCode.FAILED_PRECONDITION
    )
    rig.ask("LeaveConsumerGroup", groupId="g", consumerId="a")
    assert rig.assigned("b") == [0, 1, 2, 3]


def test_what_groups_refuse(rig: Rig) -> None:
    """Refusals have the status codes that Liftbridge's clients know."""
    bad, gone, not_now = (
        grpc.StatusCode.INVALID_ARGUMENT,
        grpc.StatusCode.NOT_FOUND,
        grpc.StatusCode.FAILED_PRECONDITION,
    )
    wrongs: list[dict[str, Any]] = [{"groupId": ""}, {"consumerId": ""}, {"streams": []}]
    for wrong in wrongs:
        asked = {"groupId": "g", "consumerId": "a", "streams": ["s"], **wrong}
        assert rig.code("JoinConsumerGroup", **asked) is bad
    assert rig.code("JoinConsumerGroup", groupId="g", consumerId="a", streams=["no"]) is not_now
    told = rig.ask("FetchMetadata", groups=["g"])
    assert told.groupMetadata[0].error == api.ConsumerGroupMetadata.UNKNOWN_GROUP
    for call in ("LeaveConsumerGroup", "FetchConsumerGroupAssignments"):
        assert rig.code(call, groupId="g", consumerId="a") is gone
        assert rig.code(call, groupId="g") is bad
    rig.join("a")
    assert rig.code("JoinConsumerGroup", groupId="g", consumerId="a", streams=["s"]) is not_now
    assert rig.code("LeaveConsumerGroup", groupId="g", consumerId="b") is not_now
    report = {"groupId": "g", "consumerId": "a", "coordinator": "no", "epoch": rig.epoch()}
    assert rig.code("ReportConsumerGroupCoordinator", **report) is not_now


@pytest.mark.parametrize(
    ("call", "ids"),
    [
        ("JoinConsumerGroup", ["groupId", "consumerId"]),
        ("LeaveConsumerGroup", ["groupId", "consumerId"]),
        ("FetchConsumerGroupAssignments", ["groupId", "consumerId"]),
        ("ReportConsumerGroupCoordinator", ["groupId", "consumerId", "coordinator"]),
    ],
)
def test_an_empty_id_is_an_invalid_argument(rig: Rig, call: str, ids: list[str]) -> None:
    """Whatever else the call would be refused for: the member is of another group here."""
    rig.join("a")
    more: dict[str, Any] = {"streams": ["s"]} if call == "JoinConsumerGroup" else {}
    for empty in ids:
        asked = {**dict.fromkeys(ids, "no"), **more, empty: ""}
        assert rig.code(call, **asked) is grpc.StatusCode.INVALID_ARGUMENT, empty


def test_a_silent_member_is_expelled(rig: Rig) -> None:
    """Its partitions go to the others; its polls are refused from then on."""
    rig.join("a")
    rig.join("b")
    groups = rig.broker.groups
    for _ in range(40):
        rig.broker.clock.advance(us=500_000)
        rig.assigned("b")
        groups.turn(rig.broker.clock.monotonic_ms())
    assert rig.assigned("b") == [0, 1, 2, 3]
    silent = {"groupId": "g", "consumerId": "a", "epoch": rig.epoch()}
    assert rig.code("FetchConsumerGroupAssignments", **silent) is (
        grpc.StatusCode.FAILED_PRECONDITION
    )


def test_a_later_epoch_takes_a_partition_over(rig: Rig) -> None:
    """The earlier subscription ends in order; one with an old epoch is refused."""
    first = rig.join("a").epoch
    before = rig.subscribe("a", first)
    second = rig.join("b").epoch
    after = rig.subscribe("b", second)
    assert list(before) == []
    refused = rig.stub.Subscribe(
        api.SubscribeRequest(
            stream="s", consumer=api.Consumer(groupId="g", groupEpoch=first, consumerId="a")
        ),
        timeout=WAIT_S,
    )
    with pytest.raises(grpc.RpcError) as told:
        next(refused)
    assert told.value.code() is grpc.StatusCode.FAILED_PRECONDITION
    rig.ask("Publish", stream="s", value=b"x")
    assert next(after).value == b"x"
    after.cancel()


def test_a_member_without_an_id_is_refused(rig: Rig) -> None:
    """Other members of the group are not affected."""
    call: Callable[..., Any] = rig.stub.Subscribe
    request = api.SubscribeRequest(stream="s", consumer=api.Consumer(groupId="g"))
    with pytest.raises(grpc.RpcError) as told:
        next(call(request, timeout=WAIT_S))
    assert told.value.code() is grpc.StatusCode.INVALID_ARGUMENT
