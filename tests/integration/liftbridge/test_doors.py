"""Liftbridge's API: TLS, limits on connections, and a whole server whose table is read."""

from __future__ import annotations

import socket
import time
from collections.abc import Iterator
from contextlib import suppress
from pathlib import Path

import grpc
import pytest

from broker.adapters.liftbridge.config import LiftbridgeServiceConfig
from broker.adapters.liftbridge.service import LiftbridgeService
from broker.adapters.tls.context import server_context
from broker.errors import InvalidConfigError
from broker.model.stream import StreamConfig
from broker.wire.liftbridge import api_pb2 as api
from broker.wire.liftbridge.api_pb2_grpc import APIStub
from headwater.client import Client
from headwater.local import embedded
from headwater.local.runtime_file import RuntimeFile
from simkit.brokers.memory_broker import MemoryBroker
from simkit.servers.certificates import Authority

pytestmark = pytest.mark.integration

WAIT_S = 60.0


@pytest.fixture
def broker() -> Iterator[MemoryBroker]:
    """Give an empty broker."""
    broker = MemoryBroker()
    yield broker
    broker.close()


def stub_of(channel: grpc.Channel) -> APIStub:
    """Return a client's stub."""
    return APIStub(channel)  # type: ignore[no-untyped-call]  # generated


def test_clients_show_certificates(broker: MemoryBroker, tmp_path: Path) -> None:
    """With a CA for clients, a client without a certificate of it is not served."""
    authority = Authority()
    tls = server_context(authority.files(tmp_path), protocols=["h2"])
    service = LiftbridgeService(broker, broker.clock, LiftbridgeServiceConfig(port=0, tls=tls))
    service.start()
    own = authority.issue("client")
    address = f"localhost:{service.port}"
    good = grpc.ssl_channel_credentials(authority.cert, own.key, own.cert)
    bad = grpc.ssl_channel_credentials(authority.cert)
    request = api.FetchMetadataRequest()
    with grpc.secure_channel(address, good) as channel:
        assert stub_of(channel).FetchMetadata(request, timeout=WAIT_S).brokers
    with grpc.secure_channel(address, bad) as channel, pytest.raises(grpc.RpcError) as refused:
        stub_of(channel).FetchMetadata(request, timeout=WAIT_S)
    assert refused.value.code() is grpc.StatusCode.UNAVAILABLE
    assert service.close(timeout_ms=10_000)


def test_an_address_that_is_taken_is_a_wrong_configuration(broker: MemoryBroker) -> None:
    """The error names the address."""
    with socket.create_server(("127.0.0.1", 0)) as taken:
        port = taken.getsockname()[1]
        service = LiftbridgeService(broker, broker.clock, LiftbridgeServiceConfig(port=port))
        with pytest.raises(InvalidConfigError, match=f"127.0.0.1:{port}"):
            service.start()


def test_connections_and_subscriptions_are_bounded(broker: MemoryBroker) -> None:
    """Connections and subscriptions beyond a limit are refused; earlier ones go on."""
    broker.create("s", StreamConfig(subject="foo"))
    config = LiftbridgeServiceConfig(port=0, connections_max=1, subscriptions_max=1)
    service = LiftbridgeService(broker, broker.clock, config)
    service.start()
    with grpc.insecure_channel(f"127.0.0.1:{service.port}") as channel:
        stub = stub_of(channel)
        first = stub.Subscribe(api.SubscribeRequest(stream="s"), timeout=WAIT_S)
        next(first)
        second = stub.Subscribe(api.SubscribeRequest(stream="s"), timeout=WAIT_S)
        with pytest.raises(grpc.RpcError) as refused:
            next(second)
        assert refused.value.code() is grpc.StatusCode.UNAVAILABLE
        with socket.create_connection(("127.0.0.1", service.port), timeout=WAIT_S) as other:
            assert other.recv(1) == b"", "a connection beyond the limit is closed"
        stub.Publish(api.PublishRequest(stream="s", value=b"x"), timeout=WAIT_S)
        assert next(first).value == b"x"
    assert service.close(timeout_ms=10_000)


def check_subjects(stub: APIStub) -> None:
    """Publish to subjects over a running server's NATS; stream s has 2000 records on foo."""

    def publish(subject: str, timeout: float | None = WAIT_S, **fields: str) -> int:
        request = api.PublishToSubjectRequest(
            subject=subject,
            value=b"x",
            correlationId="c",
            **fields,  # type: ignore[arg-type]
        )
        ack = stub.PublishToSubject(request, timeout=timeout).ack
        assert ack.correlationId == ("c" if ack.stream else "")
        return int(ack.offset)

    assert publish("foo") == 2000
    assert publish("foo", ackInbox="my.own.inbox") == 2001
    assert publish("foo", timeout=None) == 0, "without a deadline nothing is waited for"
    assert publish("foo") == 2003
    for subject, timeout, code in (
        ("nobody.listens", 0.5, grpc.StatusCode.DEADLINE_EXCEEDED),
        ("a b", WAIT_S, grpc.StatusCode.INVALID_ARGUMENT),
        ("foo.*", WAIT_S, grpc.StatusCode.INVALID_ARGUMENT),
    ):
        with pytest.raises(grpc.RpcError) as refused:
            publish(subject, timeout=timeout)
        assert refused.value.code() is code


def check_activity(stub: APIStub, request: api.CreateStreamRequest) -> None:
    """Create a stream, read what the activity stream tells of it, and try to write there."""
    deadline_s = time.monotonic() + WAIT_S
    start = api.SubscribeRequest(stream="__activity", startPosition=api.EARLIEST)
    call = stub.Subscribe(start, timeout=WAIT_S)
    while time.monotonic() < deadline_s:  # the server makes the stream a moment after its start
        with suppress(grpc.RpcError):
            next(call)
            break
        call = stub.Subscribe(start, timeout=WAIT_S)
    stub.CreateStream(request, timeout=WAIT_S)
    events = [api.ActivityStreamEvent.FromString(next(call).value) for _ in range(2)]
    assert [(one.id, one.op, one.createStreamOp.stream) for one in events] == [
        (1, api.CREATE_STREAM, "__activity"),
        (2, api.CREATE_STREAM, "s"),
    ]
    call.cancel()
    with pytest.raises(grpc.RpcError) as refused:
        stub.Publish(api.PublishRequest(stream="__activity", value=b"x"), timeout=WAIT_S)
    assert refused.value.code() is grpc.StatusCode.INVALID_ARGUMENT


def test_a_whole_server_serves_its_table(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """`headwater up` with the API on: records that only the table has, after a restart."""
    port = embedded.free_port()
    monkeypatch.setenv("HEADWATER_LIFTBRIDGE_ENABLED", "true")
    monkeypatch.setenv("HEADWATER_LIFTBRIDGE_PORT", str(port))
    monkeypatch.setenv("HEADWATER_NODE_ACTIVITY_STREAM", "true")
    data = tmp_path / "data"
    options = ("--nats-port", "0", "--flight-port", "0", "--http-port", "0")
    request = api.CreateStreamRequest(
        name="s",
        subject="foo",
        segmentMaxBytes=api.NullableInt64(value=4096),
    )
    address = f"127.0.0.1:{port}"
    with embedded.start_up(data, *options) as server, grpc.insecure_channel(address) as channel:
        banner = f"Liftbridge  {address}"  # written when programs can already see the addresses
        embedded.wait_ready(server, lambda: banner in server.log_path.read_text())
        stub = stub_of(channel)
        check_activity(stub, request)
        with Client(RuntimeFile.read(data).flight) as client:
            client.alter_stream("s", local_retention_bytes=1)
        requests = (api.PublishRequest(stream="s", value=b"%05d" % one) for one in range(2000))
        acked = [one.ack.offset for one in stub.PublishAsync(requests, timeout=WAIT_S)]
        assert acked == list(range(2000))
        with Client(RuntimeFile.read(data).flight) as client:
            (status,) = client.tier_flush("s")
            assert status.cold.end == 2000
        check_subjects(stub)
        place = {"stream": "s", "partition": 0, "cursorId": "c"}
        stub.SetCursor(api.SetCursorRequest(**place, offset=77), timeout=WAIT_S)  # type: ignore[arg-type]
    with embedded.start_up(data, *options), grpc.insecure_channel(address) as channel:
        stub = stub_of(channel)
        fetched = stub.FetchCursor(api.FetchCursorRequest(**place), timeout=WAIT_S)  # type: ignore[arg-type]
        assert fetched.offset == 77
        call = stub.Subscribe(
            api.SubscribeRequest(
                stream="s", startPosition=api.EARLIEST, stopPosition=api.STOP_LATEST
            ),
            timeout=WAIT_S,
        )
        next(call)
        found = [next(call) for _ in range(2000)]
    assert [int(one.value) for one in found] == acked
    assert [one.offset for one in found] == acked
