"""The windowed publisher: every record is answered, retried, or reported; against nats-server."""

from __future__ import annotations

import asyncio
import json
import threading
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Self

import nats
import pytest
from nats.aio.msg import Msg

from broker.errors import (
    CommitTimeoutError,
    DiskFullError,
    InvalidRequestError,
    RecordTooLargeError,
    UnavailableError,
)
from broker.model.ids import StreamUuid
from broker.model.stream import Stream, StreamConfig
from headwater.local import embedded
from headwater.nats_publisher import MESSAGE_ID_HEADER, NatsMessage, NatsPublisher

pytestmark = pytest.mark.integration

ORDERS = Stream(
    name="orders",
    uuid=StreamUuid("3f0c6d4e-0000-4000-8000-000000000001"),
    config=StreamConfig(subject="orders.*", puback=True),
    created_us=0,
    table_name="orders",
)

Answer = Callable[[int, Msg], bytes | None]  # number of the message -> the answer


@pytest.fixture
def server(tmp_path: Path) -> Iterator[embedded.EmbeddedServer]:
    """Run nats-server."""
    with embedded.start_nats(tmp_path) as running:
        yield running


class Responder:
    """Takes the place of a broker, in its own thread: subscribes, and answers as set."""

    def __init__(self, url: str, answer: Answer) -> None:
        self.seen: list[Msg] = []
        self._url = url
        self._answer = answer
        self._ready = threading.Event()
        self._loop = asyncio.new_event_loop()
        self._stop: asyncio.Event = asyncio.Event()
        self._thread = threading.Thread(target=lambda: self._loop.run_until_complete(self._run()))

    async def _run(self) -> None:
        connection = await nats.connect(self._url)

        async def on_message(message: Msg) -> None:
            self.seen.append(message)
            reply = self._answer(len(self.seen) - 1, message)
            if reply is not None and message.reply:
                await connection.publish(message.reply, reply)

        await connection.subscribe("orders.>", cb=on_message)
        await connection.flush()
        self._ready.set()
        await self._stop.wait()
        await connection.close()

    def __enter__(self) -> Self:
        self._thread.start()
        assert self._ready.wait(60)
        return self

    def __exit__(self, *_: object) -> None:
        self._loop.call_soon_threadsafe(self._stop.set)
        self._thread.join()
        self._loop.close()


def _ok(index: int, _message: Msg) -> bytes:
    return _ack(index, {})


def _ack(index: int, more: dict[str, bool]) -> bytes:
    sender = {"stream": "orders", "partition": 0, "stream_uuid": ORDERS.uuid}
    return json.dumps({**sender, "seq": index + 1, **more}).encode()


def _messages(count: int) -> list[NatsMessage]:
    return [NatsMessage("orders.a", b"%d" % n, {"Headwater-Key": str(n)}) for n in range(count)]


def test_every_message_is_acknowledged_once(server: embedded.EmbeddedServer) -> None:
    """More messages than the window fit through it, in order, each with an id of its own."""
    with (
        Responder(server.address, _ok) as broker,
        NatsPublisher(server.address, stream=ORDERS, window=16, ack_timeout_s=3600) as out,
    ):
        out.publish(_messages(500))
        counts = out.finish()
    assert (counts.sent, counts.acked, counts.retried) == (500, 500, 0)
    assert [message.data for message in broker.seen] == [b"%d" % n for n in range(500)]
    ids = [(message.headers or {})[MESSAGE_ID_HEADER] for message in broker.seen]
    assert len(set(ids)) == 500
    assert (broker.seen[7].headers or {})["Headwater-Key"] == "7"


def test_a_lost_answer_is_asked_for_again_with_the_same_id(
    server: embedded.EmbeddedServer,
) -> None:
    """A retry can be recognised; a late duplicate answer counts as one record."""

    def answer(index: int, message: Msg) -> bytes | None:
        return None if index == 0 else _ack(0, {"duplicate": True})

    with (
        Responder(server.address, answer) as broker,
        NatsPublisher(server.address, stream=ORDERS, ack_timeout_s=0.1) as out,
    ):
        out.publish(_messages(1))
        counts = out.finish()
    assert (counts.sent, counts.acked, counts.duplicates) == (1, 1, 1)
    assert counts.retried >= 1
    assert len({(message.headers or {})[MESSAGE_ID_HEADER] for message in broker.seen}) == 1


def test_an_overloaded_broker_is_asked_again(server: embedded.EmbeddedServer) -> None:
    """A passing error is retried, and the caller does not see it."""
    busy = json.dumps({"error": {"code": 503, "type": "OverloadedError", "description": "full"}})

    def answer(index: int, message: Msg) -> bytes:
        return busy.encode() if index == 0 else _ok(index, message)

    with (
        Responder(server.address, answer),
        NatsPublisher(server.address, stream=ORDERS, ack_timeout_s=0.1) as out,
    ):
        out.publish(_messages(3))
        assert out.finish().acked == 3


def test_a_refusal_is_raised_with_its_class_and_facts(server: embedded.EmbeddedServer) -> None:
    """What can never succeed ends the publishing, typed."""
    refusal = {
        "code": 400,
        "type": "RecordTooLargeError",
        "description": "too large",
        "facts": {"limit_bytes": 10},
    }
    reply = json.dumps({"error": refusal}).encode()
    with (
        Responder(server.address, lambda *_: reply),
        NatsPublisher(server.address, stream=ORDERS) as out,
    ):
        out.publish(_messages(1))
        with pytest.raises(RecordTooLargeError) as raised:
            out.finish()
    assert raised.value.limit_bytes == 10


def test_nobody_listens(server: embedded.EmbeddedServer) -> None:
    """The NATS server itself says so; the message names the subject."""
    with NatsPublisher(server.address, stream=ORDERS, patience_s=0) as out:
        out.publish(_messages(1))
        with pytest.raises(UnavailableError, match=r"orders\.a"):
            out.finish()


def test_silence_ends_in_an_unknown_outcome(server: embedded.EmbeddedServer) -> None:
    """After the deadline the error says that the record may or may not be stored."""
    with (
        Responder(server.address, lambda *_: None),
        NatsPublisher(server.address, stream=ORDERS, ack_timeout_s=0.1, give_up_s=1) as out,
    ):
        out.publish(_messages(1))
        with pytest.raises(CommitTimeoutError, match="not known"):
            out.finish()


def test_a_full_disk_is_said_plainly(server: embedded.EmbeddedServer) -> None:
    """It is tried again, because a full disk may heal; in the end the error is the refusal."""
    error = {"code": 500, "type": "DiskFullError", "description": "the broker's disk is full: x"}
    full = json.dumps({"error": error}).encode()
    with (
        Responder(server.address, lambda *_: full),
        NatsPublisher(server.address, stream=ORDERS, ack_timeout_s=3600, give_up_s=1) as out,
    ):
        out.publish(_messages(1))
        with pytest.raises(DiskFullError, match="the broker's disk is full"):
            out.finish()


def test_garbage_as_an_answer_is_refused(server: embedded.EmbeddedServer) -> None:
    """An answer in another format does not come from a broker."""
    with (
        Responder(server.address, lambda *_: b"\x00\xff"),
        NatsPublisher(server.address, stream=ORDERS) as out,
    ):
        out.publish(_messages(1))
        with pytest.raises(InvalidRequestError, match="not a PubAck"):
            out.finish()


def test_no_server() -> None:
    """A NATS server that is not there is named."""
    with (
        pytest.raises(UnavailableError, match="no NATS server"),
        NatsPublisher(f"nats://127.0.0.1:{embedded.free_port()}", stream=ORDERS),
    ):
        pass


def test_a_restarted_nats_server_loses_nothing(tmp_path: Path) -> None:
    """Messages sent while it was away are sent again until they are answered."""
    port = embedded.free_port()
    first = embedded.start_nats(tmp_path, port=port)
    with (
        Responder(first.address, _ok) as broker,
        NatsPublisher(first.address, stream=ORDERS, ack_timeout_s=0.5) as out,
    ):
        out.publish(_messages(10))
        out.finish()
        first.stop()
        with embedded.start_nats(tmp_path, port=port):
            out.publish(_messages(10))
            assert out.finish().acked == 20
    assert len({(message.headers or {})[MESSAGE_ID_HEADER] for message in broker.seen}) == 20


def test_who_does_not_lead_is_asked_again_soon(server: embedded.EmbeddedServer) -> None:
    """It is asked again before the timeout of a lost answer, with the same message id."""
    error = {"code": 503, "type": "NotLeaderError", "description": "another broker does"}
    refusal = json.dumps({"error": error}).encode()

    def answer(index: int, message: Msg) -> bytes:
        return refusal if index < 2 else _ok(index, message)

    with (
        Responder(server.address, answer) as broker,
        NatsPublisher(server.address, stream=ORDERS, ack_timeout_s=3600) as out,
    ):
        out.publish(_messages(1))
        assert out.finish().acked == 1
    assert len({(message.headers or {})[MESSAGE_ID_HEADER] for message in broker.seen}) == 1


def test_a_listener_that_comes_back_gets_what_nobody_heard(
    server: embedded.EmbeddedServer,
) -> None:
    """While a partition has no leader the NATS server answers for it, and that is no failure."""
    with NatsPublisher(server.address, stream=ORDERS, ack_timeout_s=3600, patience_s=60) as out:
        out.publish(_messages(1))
        with Responder(server.address, _ok):
            assert out.finish().acked == 1
