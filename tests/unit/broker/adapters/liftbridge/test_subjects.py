"""PublishToSubject over a NATS connection: each call gets the answer to its own message."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable

import pytest

from broker.adapters.liftbridge.statuses import Code, StatusError
from broker.adapters.liftbridge.subjects import publish_to_subject
from broker.adapters.nats.asking import NatsAsking
from broker.codec.nats import envelope
from broker.codec.nats.envelope import EnvelopeKind
from broker.config import NatsConfig
from broker.wire.liftbridge import api_pb2 as api
from broker.wire.liftbridge import message_pb2 as wire
from simkit.servers.scripted_nats import Noted, ScriptedNats


def told(story: Callable[[ScriptedNats, NatsAsking], Awaitable[None]]) -> None:
    """Run a story with a server and a connection that has subscribed to its inbox."""

    async def main() -> None:
        async with ScriptedNats() as server:
            crashes: list[BaseException] = []
            config = NatsConfig(url=server.url)
            asking = NatsAsking(config, client_name="test", on_crash=crashes.append)
            await asking.start()
            await server.until(lambda: bool(server.subscriptions))
            await story(server, asking)
            await asking.close()
            assert crashes == []

    asyncio.run(asyncio.wait_for(main(), 20))


class Calls:
    """Calls of PublishToSubject at one connection to NATS, and their answers in order."""

    def __init__(self, asking: NatsAsking) -> None:
        self.answers: list[tuple[str, object]] = []
        self._asking = asking

    def publish(self, name: str, inbox: str = "", *, subject: str = "s") -> Callable[[], None]:
        """Call with a name as the correlation id; return what ends the wait."""
        request = api.PublishToSubjectRequest(subject=subject, ackInbox=inbox, correlationId=name)
        payload = request.SerializeToString()

        def replied(answer: object) -> None:
            if isinstance(answer, bytes):
                answer = api.PublishToSubjectResponse.FromString(answer).ack
            self.answers.append((name, answer))

        return publish_to_subject(self._asking, payload, replied, waits=True)


def message_in(noted: Noted) -> wire.Message:
    """Return the message that was published for a call."""
    return wire.Message.FromString(envelope.decode(noted.payload, EnvelopeKind.PUBLISH))


def ack_in(noted: Noted) -> wire.Ack:
    """Return the acknowledgement that was published."""
    return wire.Ack.FromString(envelope.decode(noted.payload, EnvelopeKind.ACK))


def acknowledge(server: ScriptedNats, noted: Noted, *, stream: str = "orders") -> None:
    """Acknowledge a message on the inbox that it names, as a broker does that has stored it."""
    message = message_in(noted)
    ack = wire.Ack(
        stream=stream, ackInbox=message.ackInbox, correlationId=message.correlationId, offset=7
    )
    server.say(message.ackInbox, envelope.encode(EnvelopeKind.ACK, ack.SerializeToString()))


def test_two_calls_that_name_one_inbox_get_their_own_acknowledgements() -> None:
    """The second message may be lost: the first one's acknowledgement says nothing of it."""

    async def story(server: ScriptedNats, asking: NatsAsking) -> None:
        calls = Calls(asking)
        calls.publish("first", "my.inbox")
        calls.publish("second", "my.inbox")
        await server.until(lambda: len(server.published) == 2)
        first, second = sorted(server.published, key=lambda one: message_in(one).correlationId)
        assert message_in(first).ackInbox != message_in(second).ackInbox
        acknowledge(server, second)
        await server.until(lambda: len(server.published) == 3)
        assert [name for name, _ in calls.answers] == ["second"]
        acknowledge(server, first)
        await server.until(lambda: len(server.published) == 4)
        for name, ack in calls.answers:
            assert isinstance(ack, wire.Ack)
            assert (ack.correlationId, ack.ackInbox, ack.offset) == (name, "my.inbox", 7)
        assert [name for name, _ in calls.answers] == ["second", "first"]
        copies = [ack_in(one) for one in server.published[2:]]
        assert [one.correlationId for one in copies] == ["second", "first"]
        assert {one.ackInbox for one in copies} == {"my.inbox"}
        assert {one.subject for one in server.published[2:]} == {"my.inbox"}

    told(story)


def test_the_named_inbox_gets_each_stream_s_acknowledgement_and_the_late_ones() -> None:
    """Each stream on the subject answers, and who has given the call up may still wait there."""

    async def story(server: ScriptedNats, asking: NatsAsking) -> None:
        calls = Calls(asking)
        give_up = calls.publish("call", "my.inbox")
        await server.until(lambda: len(server.published) == 1)
        acknowledge(server, server.published[0], stream="one")
        acknowledge(server, server.published[0], stream="two")
        await server.until(lambda: len(server.published) == 3)
        give_up()
        acknowledge(server, server.published[0], stream="three")
        server.say(message_in(server.published[0]).ackInbox, b"no acknowledgement")
        acknowledge(server, server.published[0], stream="four")
        await server.until(lambda: len(server.published) == 5)
        streams = ["one", "two", "three", "four"]
        assert [ack_in(one).stream for one in server.published[1:]] == streams
        assert [name for name, _ in calls.answers] == ["call"]

    told(story)


def test_a_call_without_an_inbox_gets_the_first_acknowledgement_and_nothing_is_copied() -> None:
    """There is nobody to copy the acknowledgement to."""

    async def story(server: ScriptedNats, asking: NatsAsking) -> None:
        calls = Calls(asking)
        calls.publish("call")
        await server.until(lambda: len(server.published) == 1)
        acknowledge(server, server.published[0])
        acknowledge(server, server.published[0])
        calls.publish("mark")
        await server.until(lambda: len(server.published) == 2)
        acknowledge(server, server.published[1])
        calls.publish("end")
        await server.until(lambda: len(server.published) == 3)
        assert [message_in(one).correlationId for one in server.published] == [
            "call",
            "mark",
            "end",
        ]

    told(story)


@pytest.mark.parametrize(
    "inbox", ["two words", "a..b", "a.>", "x" * 1025], ids=["blank", "empty", "wildcard", "long"]
)
def test_an_inbox_that_cannot_be_published_to_is_refused_before_the_message_leaves(
    inbox: str,
) -> None:
    """Its acknowledgement could not be copied; a long name would be kept for long, too."""

    async def story(server: ScriptedNats, asking: NatsAsking) -> None:
        calls = Calls(asking)
        with pytest.raises(StatusError) as refused:
            calls.publish("call", inbox)
        assert refused.value.status.code is Code.INVALID_ARGUMENT
        calls.publish("end")
        await server.until(lambda: bool(server.published))
        assert message_in(server.published[0]).correlationId == "end"

    told(story)
