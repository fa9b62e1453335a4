"""Edges of Liftbridge's API, each of which was compared with Liftbridge 1.9.0."""

from __future__ import annotations

import queue
from collections.abc import Iterator
from typing import Any

import grpc
import pytest

from broker.wire.liftbridge import api_pb2 as api
from broker.wire.liftbridge import message_pb2 as wire
from broker.wire.liftbridge.reflection_pb2 import ReflectionRequest, ReflectionResponse
from clusterkit.lift_brokers import LiftServer, lift_up
from clusterkit.lift_calls import (
    WAIT_S,
    LiftCalls,
    ack_of,
    in_envelope,
    new_name,
    publish_async,
    until,
)
from simkit.servers.natsproc import RawNats

pytestmark = pytest.mark.integration

FAILED = grpc.StatusCode.FAILED_PRECONDITION
INVALID = grpc.StatusCode.INVALID_ARGUMENT
LATER_POLICY: Any = 9  # of a client that is newer than this API


@pytest.fixture(scope="module")
def up(tmp_path_factory: pytest.TempPathFactory) -> Iterator[LiftServer]:
    """Run `headwater up`."""
    with lift_up(tmp_path_factory.mktemp("edges") / "data") as running:
        yield running


@pytest.fixture(scope="module")
def calls(up: LiftServer) -> Iterator[LiftCalls]:
    """Give a client."""
    with LiftCalls(up.address) as made:
        yield made


@pytest.fixture
def nats(up: LiftServer) -> Iterator[RawNats]:
    """Give a plain NATS client."""
    with RawNats(int(up.nats.rpartition(":")[2])) as client:
        yield client


def said(calls: LiftCalls, name: str, /, **fields: Any) -> str:
    """Return the message with which a call is refused."""
    return str(calls.refusal(name, **fields).details())


def test_an_acknowledgement_is_also_on_the_inbox_that_a_publish_names(
    calls: LiftCalls, nats: RawNats
) -> None:
    """Its program may wait there, as those of Liftbridge's oldest clients do; NONE has none."""
    stream, inbox = calls.create(), f"inbox.{new_name()}"
    nats.subscribe(inbox)
    calls.publish(stream, ackInbox=inbox, ackPolicy=wire.NONE, correlationId="none")
    acked = calls.publish(stream, ackInbox=inbox, correlationId="mine")
    subject, payload = nats.next_message()
    assert subject == inbox
    assert ack_of(payload) == acked
    assert (acked.offset, acked.ackInbox, acked.correlationId) == (1, inbox, "mine")
    assert calls.refused("Publish", stream=stream, ackInbox="two words") is INVALID


def test_an_envelope_with_an_ack_policy_of_a_later_client_is_a_message(
    calls: LiftCalls, nats: RawNats
) -> None:
    """Its value is stored, not the envelope: an unknown number of an enum is legal protobuf."""
    stream = calls.create()
    nats.publish(stream, in_envelope(b"value", key=b"k", ackPolicy=LATER_POLICY))
    (found,) = calls.first(stream, 1)
    assert (found.key, found.value) == (b"k", b"value")


def test_no_message_is_at_an_offset_below_zero(calls: LiftCalls, nats: RawNats) -> None:
    """-1 expects nothing; every lower offset is a wrong one, at each of the three ways in."""
    stream = calls.create(optimisticConcurrencyControl=api.NullableBool(value=True))
    wrong: dict[str, Any] = {"stream": stream, "value": b"x", "expectedOffset": -2}
    assert calls.refused("Publish", **wrong) is FAILED
    (told,) = publish_async(calls, [api.PublishRequest(**wrong)])
    assert told.asyncError.code == api.PublishAsyncError.INCORRECT_OFFSET
    inbox = f"inbox.{new_name()}"
    nats.subscribe(inbox)
    nats.publish(stream, in_envelope(b"x", offset=-2, ackInbox=inbox))
    assert ack_of(nats.next_message()[1]).ackError == wire.Ack.INCORRECT_OFFSET
    assert calls.publish(stream, expectedOffset=-1).offset == 0


def test_a_report_about_a_group_that_is_gone_is_a_failed_precondition(calls: LiftCalls) -> None:
    """As about another epoch: the member asks for the metadata and joins again."""
    report = {"consumerId": "c", "coordinator": "b", "epoch": 1}
    assert calls.refused("ReportConsumerGroupCoordinator", groupId="nobody", **report) is FAILED


def test_a_stop_before_the_start_is_refused(calls: LiftCalls) -> None:
    """Whether the client named the two offsets or the server looked them up."""
    stream = calls.create()
    calls.publish(stream)
    until(lambda: calls.partition(stream).highWatermark == 0, "committed")
    (first,) = calls.read(stream)
    latest = {"stopPosition": api.STOP_LATEST}
    at_first = {"stopPosition": api.STOP_TIMESTAMP, "stopTimestamp": first.timestamp}
    assert len(calls.read(stream, **at_first)) == 1
    for stop in (latest, at_first, {"stopPosition": api.STOP_OFFSET, "stopOffset": 0}):
        for start in (
            {"startPosition": api.NEW_ONLY},
            {"startPosition": api.OFFSET, "startOffset": 1},
            {"startPosition": api.TIMESTAMP, "startTimestamp": first.timestamp + 1_000_000_000},
        ):
            fields: dict[str, Any] = {"stream": stream, **start, **stop}
            assert calls.refused("Subscribe", **fields) is INVALID, fields
            assert said(calls, "Subscribe", **fields) == "Stop offset is before start offset: 0 < 1"


def test_refusals_begin_with_liftbridges_words(calls: LiftCalls) -> None:
    """Programs look for them; what Headwater knows more comes behind."""
    stream = calls.create(optimisticConcurrencyControl=api.NullableBool(value=True))
    again = {"name": stream, "subject": "other"}
    assert said(calls, "CreateStream", **again).startswith("stream already exists: ")
    bad = {"name": new_name(), "subject": "two words"}
    assert said(calls, "CreateStream", **bad).startswith("Subject is invalid: ")
    assert said(calls, "Subscribe", stream="nope").startswith("No such partition: ")
    assert said(calls, "Subscribe", stream=stream, partition=7) == "No such partition"
    nowhere = said(calls, "FetchPartitionMetadata", stream="nope")
    assert nowhere.startswith("partition not found: ")
    early = {"stream": stream, "value": b"x", "expectedOffset": 5}
    assert said(calls, "Publish", **early).startswith("incorrect expected offset: ")


def test_a_call_that_publishes_goes_on_in_a_stream_that_was_made_again(calls: LiftCalls) -> None:
    """Clients keep one PublishAsync for all streams: it must not stay with the deleted one."""
    stream = calls.create()
    asked: queue.SimpleQueue[api.PublishRequest | None] = queue.SimpleQueue()
    answers = calls.stub.PublishAsync(iter(asked.get, None), timeout=WAIT_S)

    def publish() -> api.PublishResponse:
        asked.put(api.PublishRequest(stream=stream, value=b"x"))
        answer: api.PublishResponse = next(answers)
        return answer

    assert [publish().ack.offset for _ in range(2)] == [0, 1]
    calls.ask("DeleteStream", name=stream)
    assert publish().asyncError.code == api.PublishAsyncError.NOT_FOUND
    for _ in range(3):  # the first time the call knows that the stream was gone
        calls.create(name=stream)
        told = publish()
        assert (told.ack.offset, told.asyncError.message) == (0, "")
        calls.ask("DeleteStream", name=stream)
    asked.put(None)
    assert list(answers) == []


def test_a_subscriber_of_a_stream_that_is_made_again_is_told_that_it_is_gone(
    calls: LiftCalls,
) -> None:
    """It must not go on in another stream, as it would after Unavailable."""
    for _ in range(3):  # it looks a few times a second, so it may see either state
        stream = calls.create()
        subscription = calls.subscribe(stream, startPosition=api.EARLIEST)
        calls.ask("DeleteStream", name=stream)
        calls.create(name=stream)
        with pytest.raises(grpc.RpcError) as ended:
            list(subscription)
        assert ended.value.code() is grpc.StatusCode.NOT_FOUND


def test_a_call_without_a_message_is_refused(up: LiftServer) -> None:
    """A caller that ends its side at once gets a status, also from the two calls that publish."""
    with grpc.insecure_channel(up.address) as channel:
        for method in ("Publish", "FetchMetadata", "Subscribe"):
            empty = channel.stream_unary(f"/proto.API/{method}", bytes, bytes)
            with pytest.raises(grpc.RpcError) as told:
                empty(iter(()), timeout=WAIT_S)
            assert told.value.code() is grpc.StatusCode.INTERNAL, method
        stream = channel.stream_stream("/proto.API/PublishAsync", bytes, bytes)
        assert list(stream(iter(()), timeout=WAIT_S)) == []


@pytest.mark.parametrize("version", ["v1", "v1alpha"])
def test_a_tool_finds_the_services_without_a_schema(up: LiftServer, version: str) -> None:
    """By gRPC's server reflection; the answers come one by one, while the call stays open."""
    with grpc.insecure_channel(up.address) as channel:
        reflect = channel.stream_stream(
            f"/grpc.reflection.{version}.ServerReflection/ServerReflectionInfo",
            ReflectionRequest.SerializeToString,
            ReflectionResponse.FromString,
        )
        asked: queue.SimpleQueue[ReflectionRequest | None] = queue.SimpleQueue()
        answers = reflect(iter(asked.get, None), timeout=WAIT_S)
        asked.put(ReflectionRequest(listServices=""))
        names = [one.name for one in next(answers).services.service]
        assert "proto.API" in names
        asked.put(ReflectionRequest(fileContainingSymbol="proto.API"))
        assert len(next(answers).fileDescriptors.fileDescriptorProto) == 2
        asked.put(None)
        assert list(answers) == []


def test_a_missing_stream_is_told_without_the_names_of_others(calls: LiftCalls) -> None:
    """They may be another tenant's."""
    stream = calls.create()
    assert stream not in said(calls, "DeleteStream", name="nope")
