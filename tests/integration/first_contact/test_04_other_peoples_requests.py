"""Issue 11, item 4: a request to a service is answered by its service, not by a stream."""

from __future__ import annotations

import asyncio

import nats
import pytest
from nats.aio.msg import Msg

from simkit.brokers.ingest_rig import IngestRig
from simkit.servers.natsproc import NatsProcess, RawNats

pytestmark = pytest.mark.integration


def test_a_request_is_answered_by_its_service(rig: IngestRig, server: NatsProcess) -> None:
    """A stream on ``>`` records question and answer; a JetStream publisher gets its PubAck."""
    rig.add_stream("all", subject=">", puback=True, puback_headers_only=True)

    async def ask() -> tuple[list[bytes], int]:
        connection = await nats.connect(server.url)

        async def serve(question: Msg) -> None:
            await question.respond(b"noon")

        await connection.subscribe("what.time", cb=serve)
        try:
            told = [
                (await connection.request("what.time", b"now?", timeout=60)).data for _ in range(20)
            ]
            publisher = connection.jetstream(timeout=60)
            ack = await publisher.publish("orders.1", b"x", headers={"Nats-Msg-Id": "1"})
            return told, ack.seq
        finally:
            await connection.close()

    told, sequence = asyncio.run(ask())
    assert told == [b"noon"] * 20
    assert sequence == 41, "questions and answers are recorded"
    first = rig.rows("all")[0]
    assert (first["subject"], first["value"]) == ("what.time", b"now?")
    assert first["reply_subject"].startswith("_INBOX.")


def test_only_a_publisher_hears_a_refusal(rig: IngestRig, server: NatsProcess) -> None:
    """A message that is too long is refused; a client of a service gets no answer of ours."""
    rig.add_stream(
        "all", subject="svc.>", puback=True, puback_headers_only=True, record_bytes_max=1000
    )
    rig.add_stream("silent", subject="own.>", record_bytes_max=1000)
    with RawNats(server.port) as client:
        client.subscribe("in.>")
        client.publish("svc.a", b"x" * 1001, reply="in.request")
        client.publish("own.a", b"x" * 1001, reply="in.no_puback")
        client.publish("svc.a", b"x" * 1001, reply="in.publish", headers=[("Nats-Msg-Id", "1")])
        subject, told = client.next_message()
        assert subject == "in.publish"
        assert b"RecordTooLargeError" in told
        rig.wait(lambda: rig.stats("silent").refused_messages_total == 1, "the refusal")
        client.flush()
        assert client.messages == []
    assert rig.stats("all").refused_messages_total == 2
