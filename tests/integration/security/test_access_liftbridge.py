"""Identity and authorization on the door of Liftbridge's API, over real connections of gRPC."""

from __future__ import annotations

import secrets
import threading
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, field
from typing import Any

import grpc
import pytest

from broker.adapters.liftbridge.config import LiftbridgeServiceConfig
from broker.adapters.liftbridge.service import LiftbridgeService
from broker.core.access.static_tokens import TOKEN_BYTES, make_token, split_token
from broker.errors import AccessDeniedError, AccessError, UnauthenticatedError
from broker.model.access import Action, Caller, Grant, Kind
from broker.model.quota import Quota
from broker.model.secret import Secret
from broker.model.stream import StreamConfig
from broker.runtime.api.access import Access
from broker.wire.liftbridge import api_pb2 as api
from broker.wire.liftbridge import message_pb2 as wire
from broker.wire.liftbridge.api_pb2_grpc import APIStub
from headwater.liftbridge import Liftbridge
from simkit.brokers.memory_broker import MemoryBroker
from simkit.waiting import wait_until

WAIT_S = 60
DENIED = grpc.StatusCode.PERMISSION_DENIED
UNKNOWN = grpc.StatusCode.UNAUTHENTICATED


@dataclass
class Heard:
    """An audit that keeps what it hears; a test may do something when it hears of a call."""

    notes: list[tuple[str, str, tuple[str, ...], str]] = field(default_factory=list)
    at: dict[str, Callable[[], object]] = field(default_factory=dict)  # by call, done once

    def note(
        self, *, caller: Caller, door: str, call: str, resources: Sequence[str], result: str
    ) -> None:
        """Keep it."""
        assert door == "liftbridge"
        self.notes.append((caller.principal, call, tuple(resources), result))
        self.at.pop(call, lambda: None)()


@dataclass
class Door:
    """A service that asks, and a connection to it."""

    broker: MemoryBroker
    access: Access
    heard: Heard
    stub: Any
    port: int

    def token(self, principal: str) -> Secret:
        """Make a token."""
        made = make_token(secrets.token_bytes(TOKEN_BYTES))
        token_id, digest = split_token(made)
        self.access.create_token(
            token_id, digest, principal, expires_us=0, note="", created_by="test"
        )
        return Secret(made)

    def grant(self, principal: str, kind: Kind, pattern: str, *actions: Action) -> Grant:
        """Grant something."""
        one = Grant(principal=principal, kind=kind, pattern=pattern, actions=tuple(sorted(actions)))
        self.access.grant([one])
        return one

    def ask(self, token: Secret | None, method: str, /, **fields: Any) -> Any:
        """Make a unary call."""
        request = getattr(api, f"{method}Request")(**fields)
        return getattr(self.stub, method)(request, timeout=WAIT_S, metadata=metadata(token))

    def code(self, token: Secret | None, method: str, /, **fields: Any) -> grpc.StatusCode:
        """Return the status with which a call is refused."""
        with pytest.raises(grpc.RpcError) as refused:
            self.ask(token, method, **fields)
        code: grpc.StatusCode = refused.value.code()
        return code


def metadata(token: Secret | None) -> list[tuple[str, str]]:
    """Return a call's metadata."""
    return [] if token is None else [("authorization", f"Bearer {token.reveal()}")]


@pytest.fixture
def door() -> Iterator[Door]:
    """Give a door with the streams s and hidden."""
    broker = MemoryBroker()
    for name in ("s", "hidden"):
        broker.metadata.note(name, broker.create(name, StreamConfig(subject=name)))
    access = Access(broker.metadata, broker.clock, enabled=True, namespace="default")
    heard = Heard()
    service = LiftbridgeService(
        broker, broker.clock, LiftbridgeServiceConfig(port=0), access=access, audit=heard
    )
    service.start()
    channel = grpc.insecure_channel(f"127.0.0.1:{service.port}")
    stub = APIStub(channel)  # type: ignore[no-untyped-call]  # generated
    yield Door(broker, access, heard, stub, service.port)
    channel.close()
    assert service.close(timeout_ms=10_000)
    broker.close()


def test_without_a_proof_nothing_is_done(door: Door) -> None:
    """A missing token and a wrong one are refused by their status."""
    wrong = Secret(make_token(secrets.token_bytes(TOKEN_BYTES)))
    for token in (None, wrong):
        assert door.code(token, "FetchMetadata") is UNKNOWN
        assert door.code(token, "CreateStream", name="t", subject="t") is UNKNOWN
        assert door.code(token, "Publish", stream="s", value=b"x") is UNKNOWN
        assert door.code(token, "PublishToSubject", subject="s", value=b"x") is UNKNOWN
        request = api.SubscribeRequest(stream="s", startPosition=api.EARLIEST)
        with pytest.raises(grpc.RpcError) as refused:
            next(door.stub.Subscribe(request, timeout=WAIT_S, metadata=metadata(token)))
        assert refused.value.code() is UNKNOWN


def test_each_call_asks_for_its_right(door: Door) -> None:
    """A writer publishes, a reader subscribes and has cursors and groups; neither does more."""
    door.grant("writer", "stream", "s", "publish")
    door.grant("reader", "stream", "s", "consume")
    door.grant("reader", "group", "g", "consume")
    writer, reader = door.token("writer"), door.token("reader")
    acked = door.ask(writer, "Publish", stream="s", value=b"x", ackPolicy=wire.ALL)
    assert acked.ack.offset == 0
    assert door.code(reader, "Publish", stream="s", value=b"x") is DENIED
    for token in (writer, reader):
        assert door.code(token, "Publish", stream="hidden", value=b"x") is DENIED
        assert door.code(token, "DeleteStream", name="s") is DENIED
        assert door.code(token, "PauseStream", name="s") is DENIED
        assert door.code(token, "SetStreamReadonly", name="s", readonly=True) is DENIED
        assert door.code(token, "CreateStream", name="t", subject="t") is DENIED
        assert door.code(token, "PublishToSubject", subject="s", value=b"x") is DENIED
        told = door.ask(token, "FetchMetadata")
        assert {one.name for one in told.streamMetadata} == {"s", "__cursors"}
    door.ask(reader, "SetCursor", stream="s", cursorId="c", offset=3)
    assert door.ask(reader, "FetchCursor", stream="s", cursorId="c").offset == 3
    assert door.code(writer, "FetchCursor", stream="s", cursorId="c") is DENIED
    door.ask(reader, "JoinConsumerGroup", groupId="g", consumerId="m", streams=["s"])
    joined = {"groupId": "g", "consumerId": "n"}
    assert door.code(reader, "JoinConsumerGroup", **joined, streams=["s", "hidden"]) is DENIED
    assert door.code(writer, "LeaveConsumerGroup", groupId="g", consumerId="m") is DENIED


def test_an_inbox_asks_for_the_right_to_publish_on_its_subject(door: Door) -> None:
    """The broker publishes there for the caller, who could else write on a stranger's subject."""
    door.grant("writer", "stream", "s", "publish")
    door.grant("writer", "subject", "mine.>", "publish")
    writer = door.token("writer")
    own = {"value": b"x", "ackInbox": "mine.inbox"}
    strange = {"value": b"x", "ackInbox": "hidden"}
    assert door.code(writer, "PublishToSubject", subject="mine.a", **strange) is DENIED
    served = door.code(writer, "PublishToSubject", subject="mine.a", **own)
    assert served is grpc.StatusCode.UNAVAILABLE  # this broker has no NATS
    assert door.code(writer, "Publish", stream="s", **strange) is DENIED
    assert door.ask(writer, "Publish", stream="s", ackPolicy=wire.ALL, **own).ack.offset == 0


def test_a_message_that_may_not_be_published_does_not_end_the_call(door: Door) -> None:
    """PublishAsync refuses single messages, as Liftbridge does, also after a revocation."""
    grant = door.grant("writer", "stream", "s", "publish")
    writer = door.token("writer")
    done = threading.Event()
    found: dict[str, int] = {}

    def messages() -> Iterator[api.PublishRequest]:
        yield api.PublishRequest(stream="hidden", correlationId="a", ackPolicy=wire.ALL)
        yield api.PublishRequest(stream="s", correlationId="b", ackPolicy=wire.ALL)
        assert done.wait(WAIT_S)
        door.access.revoke([grant])
        yield api.PublishRequest(stream="s", correlationId="c", ackPolicy=wire.ALL)

    for one in door.stub.PublishAsync(messages(), timeout=WAIT_S, metadata=metadata(writer)):
        found[one.correlationId] = one.asyncError.code
        if one.correlationId == "b":
            done.set()
    refused = api.PublishAsyncError.PERMISSION_DENIED
    assert found == {"a": refused, "b": api.PublishAsyncError.UNKNOWN, "c": refused}


def test_a_revocation_ends_a_subscription(door: Door) -> None:
    """A subscriber that waits for records hears of it."""
    grant = door.grant("reader", "stream", "s", "consume")
    call = door.stub.Subscribe(
        api.SubscribeRequest(stream="s", startPosition=api.EARLIEST),
        timeout=WAIT_S,
        metadata=metadata(door.token("reader")),
    )
    assert next(call) == wire.Message()
    door.access.revoke([grant])
    with pytest.raises(grpc.RpcError) as ended:
        next(call)
    assert ended.value.code() is DENIED


def test_a_revocation_while_a_subscription_is_admitted_ends_it(door: Door) -> None:
    """It comes between the decision and the first record: the audit hears of the call there."""
    (writer,) = let_use(door, "writer")
    door.ask(writer, "Publish", stream="s", value=b"x", ackPolicy=wire.ALL)
    grant = door.grant("reader", "stream", "s", "consume")
    door.heard.notes.clear()
    door.heard.at["Subscribe"] = lambda: door.access.revoke([grant])
    call = subscribe(door, door.token("reader"))
    assert next(call) == wire.Message()  # the sign that the call was taken
    with pytest.raises(grpc.RpcError) as ended:
        pytest.fail(f"a record was sent: {next(call)}")
    assert ended.value.code() is DENIED
    told = [(call, result) for _, call, _, result in door.heard.notes]
    assert told == [("Subscribe", "ok"), ("Subscribe", "AccessDeniedError")]


def as_member(group: str, epoch: int) -> dict[str, Any]:
    """Return the fields of a subscription of stream s for a group."""
    member = api.Consumer(groupId=group, groupEpoch=epoch, consumerId="m")
    return {"stream": "s", "startPosition": api.EARLIEST, "consumer": member}


def test_a_revocation_of_its_group_ends_a_members_subscription(door: Door) -> None:
    """Both the stream and the group are asked for again."""
    door.grant("reader", "stream", "s", "consume")
    grant = door.grant("reader", "group", "g", "consume")
    request = api.SubscribeRequest(**as_member("g", 1))
    call = door.stub.Subscribe(request, timeout=WAIT_S, metadata=metadata(door.token("reader")))
    assert next(call) == wire.Message()
    door.access.revoke([grant])
    with pytest.raises(grpc.RpcError) as ended:
        next(call)
    assert ended.value.code() is DENIED


def refusal(door: Door, token: Secret, method: str, /, **fields: Any) -> tuple[Any, str]:
    """Return the status and the text with which a call, or a subscription, is refused."""
    request = getattr(api, f"{method}Request")(**fields)

    def first() -> Any:
        found = getattr(door.stub, method)(request, timeout=WAIT_S, metadata=metadata(token))
        return next(found) if method == "Subscribe" else found

    with pytest.raises(grpc.RpcError) as refused:
        pytest.fail(f"{method} was served: {first()}")
    return refused.value.code(), str(refused.value.details())


def test_who_may_read_a_stream_reaches_no_group_of_others_by_it(door: Door) -> None:
    """Not its cursor, not its readers; whether it is there or not, the refusal is the same."""
    stranger, member = let_use(door, "stranger", "member")
    door.grant("member", "group", "theirs", "consume")
    joined = {"groupId": "theirs", "consumerId": "m", "streams": ["s"]}
    epoch = door.ask(member, "JoinConsumerGroup", **joined).epoch
    position = {"stream": "s", "cursorId": "__group:theirs"}
    door.ask(member, "SetCursor", **position, offset=3)
    request = api.SubscribeRequest(**as_member("theirs", epoch))
    reading = door.stub.Subscribe(request, timeout=WAIT_S, metadata=metadata(member))
    assert next(reading) == wire.Message()
    refusals = {
        (code, text.replace(group, "G"))
        for group in ("theirs", "absent")
        for code, text in (
            refusal(door, stranger, "FetchCursor", stream="s", cursorId=f"__group:{group}"),
            refusal(door, stranger, "SetCursor", stream="s", cursorId=f"__group:{group}", offset=9),
            refusal(door, stranger, "Subscribe", **as_member(group, 0)),
            refusal(door, stranger, "Subscribe", **as_member(group, 2**62)),
        )
    }
    assert refusals == {(DENIED, "no grant lets 'stranger' consume group 'G'")}
    assert door.ask(member, "FetchCursor", **position).offset == 3
    door.ask(stranger, "Publish", stream="s", value=b"x", ackPolicy=wire.ALL)
    assert next(reading).value == b"x"  # nobody has taken the member's place
    reading.cancel()
    assert ("stranger", "SetCursor", ("stream:s", "group:theirs"), "AccessDeniedError") in (
        door.heard.notes
    )
    door.ask(stranger, "SetCursor", stream="s", cursorId="theirs", offset=1)  # one's own cursor


def test_our_client_of_the_api_brings_its_token(door: Door) -> None:
    """Over the loopback without TLS, and with errors of their own kinds."""
    door.grant("both", "stream", "s", "publish", "consume")
    address = f"127.0.0.1:{door.port}"
    with Liftbridge(address, token=door.token("both")) as client:
        acked = client.publish("s", b"x")
        assert acked is not None
        assert acked.offset == 0
        with pytest.raises(AccessDeniedError):
            client.publish("hidden", b"x")
    with Liftbridge(address) as nobody, pytest.raises(AccessError):
        nobody.publish("s", b"x")
    wrong = make_token(secrets.token_bytes(TOKEN_BYTES))
    with Liftbridge(address, token=wrong) as stranger, pytest.raises(UnauthenticatedError):
        stranger.publish("s", b"x")


def let_use(door: Door, *principals: str) -> list[Secret]:
    """Let the principals publish to stream s and read it; return their tokens."""
    for one in principals:
        door.grant(one, "stream", "s", "publish", "consume")
    return [door.token(one) for one in principals]


def subscribe(door: Door, token: Secret, *, timeout_s: float = WAIT_S) -> Any:
    """Read stream s from its start."""
    request = api.SubscribeRequest(stream="s", startPosition=api.EARLIEST)
    return door.stub.Subscribe(request, timeout=timeout_s, metadata=metadata(token))


def test_a_publisher_beyond_its_quota_is_held_and_loses_nothing(door: Door) -> None:
    """The clock stands still: nothing more of ann is stored, and bob is not held up."""
    ann, bob = let_use(door, "ann", "bob")
    door.access.set_quota(Quota(principal="ann", publish_bytes_per_s=1024))
    first = threading.Event()
    found: list[str] = []

    def messages() -> Iterator[api.PublishRequest]:
        for name in "abc":
            yield api.PublishRequest(
                stream="s", correlationId=name, value=b"x" * 2048, ackPolicy=wire.ALL
            )
            assert first.wait(WAIT_S)

    def acked() -> None:
        call = door.stub.PublishAsync(messages(), timeout=WAIT_S, metadata=metadata(ann))
        for one in call:
            found.append(one.correlationId)
            first.set()

    publishing = threading.Thread(target=acked)
    publishing.start()
    assert first.wait(WAIT_S)
    for _ in range(5):
        door.ask(bob, "Publish", stream="s", value=b"y", ackPolicy=wire.ALL)
    assert found == ["a"]
    while publishing.is_alive():
        door.broker.clock.advance(us=100_000)
        publishing.join(0.01)
    assert found == ["a", "b", "c"]


def test_a_message_that_is_held_until_its_deadline_is_not_stored(door: Door) -> None:
    """Its publisher was not told that it is, and its connection goes on."""
    (ann,) = let_use(door, "ann")
    door.access.set_quota(Quota(principal="ann", publish_bytes_per_s=1024))
    big = api.PublishRequest(stream="s", value=b"x" * 1_500_000, ackPolicy=wire.ALL)
    door.stub.Publish(big, timeout=WAIT_S, metadata=metadata(ann))
    for _ in range(3):  # of more bytes together than a window of HTTP/2 has
        with pytest.raises(grpc.RpcError) as late:
            door.stub.Publish(big, timeout=0.1, metadata=metadata(ann))
        assert late.value.code() is grpc.StatusCode.DEADLINE_EXCEEDED
    door.broker.clock.advance(us=10_000_000_000)
    acked = door.stub.Publish(big, timeout=WAIT_S, metadata=metadata(ann))
    assert acked.ack.offset == 1


def test_a_subscriber_beyond_its_quota_is_held(door: Door) -> None:
    """Until it may read on: here, because its quota is gone."""
    ann, bob = let_use(door, "ann", "bob")
    door.ask(bob, "Publish", stream="s", value=b"x" * 2048, ackPolicy=wire.ALL)
    door.access.set_quota(Quota(principal="*", read_bytes_per_s=1024))
    reading = subscribe(door, ann)
    assert next(reading) == wire.Message()  # has used a part of the second's tokens
    wait_until(lambda: door.access.usage._quotas._waits, "the next piece is held")
    door.access.remove_quota("*")
    assert len(next(reading).value) == 2048
    assert door.access.usage.throttled()["token", "read"].pieces == 1
    reading.cancel()


def test_calls_beyond_a_quota_are_refused(door: Door) -> None:
    """Requests of a second, and calls that are open; with the status that clients try again on."""
    ann, bob = let_use(door, "ann", "bob")
    door.access.set_quota(Quota(principal="ann", requests_per_s=1))
    door.ask(ann, "FetchMetadata")
    assert door.code(ann, "FetchMetadata") is grpc.StatusCode.UNAVAILABLE
    door.broker.clock.advance(us=1_000_000)
    door.ask(ann, "FetchMetadata")
    door.access.set_quota(Quota(principal="bob", open_calls=1))
    reading = subscribe(door, bob)
    next(reading)
    with pytest.raises(grpc.RpcError) as refused:
        next(subscribe(door, bob))
    assert refused.value.code() is grpc.StatusCode.UNAVAILABLE
