"""The publisher through NATS sends nothing that the server refuses or the broker does not know."""

from __future__ import annotations

import asyncio
from types import SimpleNamespace
from typing import Any

import pytest

from broker.codec.nats.puback import PubAckEncoder
from broker.errors import CommitTimeoutError, RecordTooLargeError
from broker.model.epochs import LeaderEpoch
from broker.model.ids import StreamUuid
from broker.model.offsets import Offset
from broker.model.stream import Stream, StreamConfig
from headwater import nats_publisher
from headwater.nats_publisher import NatsMessage, NatsPublisher, _Unanswered
from simkit.servers.scripted_nats import ScriptedNats

NOW_S = 1_000.0


class Sent:
    """Stands in for a connection to NATS."""

    max_payload = 1024

    def __init__(self) -> None:
        self.count = 0

    async def publish(self, subject: str, value: bytes, **given: Any) -> None:
        """Count."""
        self.count += 1


def stream_on_s(dedup_window_ms: int = 120_000) -> Stream:
    """Return a stream that answers what is published on subject s."""
    config = StreamConfig(subject="s", puback=True, dedup_window_ms=dedup_window_ms)
    uuid = StreamUuid("00000000-0000-4000-8000-000000000001")
    return Stream(name="s", uuid=uuid, config=config, created_us=1, table_name="s")


@pytest.mark.parametrize(
    ("window_ms", "age_s", "no_listener", "is_sent"),
    [
        (1_000, 5.1, False, False),
        (20_000, 9.9, False, True),
        (20_000, 10.1, False, False),
        (120_000, 59.0, False, True),
        (120_000, 61.0, False, False),
        (0, 59.0, False, True),
        (1_000, 5.1, True, True),
    ],
)
def test_nothing_is_sent_again_near_the_end_of_the_dedup_window(
    window_ms: int,
    age_s: float,
    *,
    no_listener: bool,
    is_sent: bool,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """It could be stored twice. What nobody has heard is not stored; with 0 ids are off."""
    monkeypatch.setattr(nats_publisher, "time", SimpleNamespace(monotonic=lambda: NOW_S))
    publisher = NatsPublisher("nats://127.0.0.1:1", stream=stream_on_s(window_ms))
    connection: Any = Sent()
    publisher._connection = connection
    sent_s = NOW_S - age_s
    waiting = _Unanswered(NatsMessage("s", b"v"), 0, {}, sent_s, sent_s, sent_s)
    publisher._unanswered["0"] = waiting
    if no_listener:
        publisher._acked = 1
        publisher._on_no_listener("0", waiting)
    try:
        if is_sent:
            asyncio.run(publisher._resend_overdue())
        else:
            with pytest.raises(CommitTimeoutError, match="whether it is stored is not known"):
                asyncio.run(publisher._resend_overdue())
    finally:
        publisher._loop.close()
    assert connection.count == is_sent


@pytest.mark.parametrize("acks", [True, False], ids=["acks", "no acks"])
@pytest.mark.parametrize(
    "headers",
    [None, {}, {"Headwater-Key": "clé"}, {" a ": "  blanks  ", "b": "", " ": "no name"}],
    ids=["none", "empty", "text", "blanks"],
)
def test_a_message_that_the_server_would_refuse_with_its_headers_is_not_sent(
    headers: dict[str, str] | None, *, acks: bool
) -> None:
    """The server closes the connection for it, and the messages before it lose their answers."""

    async def main() -> None:
        async with ScriptedNats(max_payload_bytes=1000) as server:
            await asyncio.to_thread(publish, server)
            assert [one.total_bytes for one in server.published[1:]] == [1000]

    def publish(server: ScriptedNats) -> None:
        with NatsPublisher(server.url, stream=stream_on_s(), acks=acks) as out:

            def send(size: int) -> None:
                out.publish([NatsMessage("s", bytes(size), headers)])
                out._call(out._connection.flush())  # type: ignore[union-attr]

            send(0)
            room = 1000 - server.published[0].total_bytes
            send(room)
            with pytest.raises(RecordTooLargeError, match="with its headers") as refused:
                send(room + 1)
            assert refused.value.facts == {"size_bytes": 1001, "limit_bytes": 1000}
            assert len(out._unanswered) == 2 * acks, "a refused message is not sent again"

    asyncio.run(asyncio.wait_for(main(), 20))


@pytest.mark.parametrize(
    ("sendings", "named"), [(1, 1), (2, 0)], ids=["sent once", "sent again by the publisher"]
)
def test_only_what_was_sent_once_is_a_duplicate_of_another_record(
    sendings: int, named: int
) -> None:
    """The publisher's own repeat is a duplicate of its first attempt, which is stored."""

    async def main() -> None:
        async with ScriptedNats() as server:
            timeout_s = 60.0 if sendings == 1 else 0.01

            def publish() -> None:
                with NatsPublisher(
                    server.url, stream=stream_on_s(), ack_timeout_s=timeout_s
                ) as out:
                    out.publish([NatsMessage("s", b"v", {"Nats-Msg-Id": "mine"})])
                    asyncio.run_coroutine_threadsafe(answer(out), loop).result(timeout=15)
                    out.finish()
                    counts = out.counts
                    assert (counts.acked, counts.duplicates, counts.named_duplicates) == (
                        1,
                        1,
                        named,
                    )

            async def answer(out: NatsPublisher) -> None:
                await server.until(lambda: len(server.published) >= sendings)
                server.say(
                    server.published[0].reply,
                    PubAckEncoder(stream_on_s(), 0).encode(
                        Offset(0), LeaderEpoch(1), duplicate=True
                    ),
                )

            loop = asyncio.get_running_loop()
            await asyncio.to_thread(publish)

    asyncio.run(asyncio.wait_for(main(), 20))
