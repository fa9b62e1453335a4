"""Requests over NATS: each has an inbox of its own, and none outlives its caller."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable

import pytest

from broker.adapters.nats import asking as module
from broker.adapters.nats.asking import NatsAsking
from broker.config import NatsConfig
from broker.errors import HeadwaterError, InvalidRequestError, OverloadedError, UnavailableError
from simkit.servers.scripted_nats import ScriptedNats


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


class Answers:
    """The answers to requests whose data is the name of their inbox."""

    def __init__(self, asking: NatsAsking) -> None:
        self.found: list[bytes | HeadwaterError] = []
        self.copies: list[bytes] = []
        self._asking = asking

    def ask(self, subject: str = "s") -> Callable[[], None]:
        """Ask; return what ends the wait."""
        return self._asking.ask(subject, str.encode, self.found.append, self.copies.append)


def inboxes(server: ScriptedNats) -> list[str]:
    """Return the inboxes of the requests that the server has got, in order."""
    return [one.payload.decode() for one in server.published]


def test_one_subscription_serves_all_requests_and_no_inbox_tells_another() -> None:
    """Who has read one request could answer the next one if he could guess its inbox."""

    async def story(server: ScriptedNats, asking: NatsAsking) -> None:
        answers = Answers(asking)
        for _ in range(20):
            answers.ask()
        await server.until(lambda: len(server.published) == 20)
        tokens = [inbox.rpartition(".")[2] for inbox in inboxes(server)]
        assert len({token[:16] for token in tokens}) == 20
        assert min(map(len, tokens)) >= 20
        assert [one for one in server.commands if one.startswith(("SUB", "UNSUB"))] == [
            f"SUB {inboxes(server)[0].rpartition('.')[0]}.* {module._OWN_SID}"
        ]

    told(story)


def test_a_request_is_not_published_once_its_caller_has_given_up() -> None:
    """The caller was told that the time is over: it may have published the message again."""

    async def story(server: ScriptedNats, asking: NatsAsking) -> None:
        answers = Answers(asking)
        answers.ask("early")()  # the event loop has not run in between
        answers.ask("late")
        await server.until(lambda: bool(server.published))
        assert [one.subject for one in server.published] == ["late"]
        assert list(asking._waiting) == [inboxes(server)[0].encode()]

    told(story)


def test_a_request_that_was_given_up_gets_no_answer_and_keeps_no_place() -> None:
    """Its answer may come all the same, and reaches only what copies it."""

    async def story(server: ScriptedNats, asking: NatsAsking) -> None:
        answers = Answers(asking)
        give_up = answers.ask()
        await server.until(lambda: len(server.published) == 1)
        give_up()
        answers.ask()
        await server.until(lambda: len(server.published) == 2)
        for inbox in inboxes(server):
            server.say(inbox, inbox.encode())
        answers.ask()
        await server.until(lambda: len(server.published) == 3)
        server.say(inboxes(server)[2], b"last")
        answers.ask("end")
        await server.until(lambda: len(server.published) == 4)
        while len(answers.copies) < 3:  # noqa: ASYNC110 - there is no event to wait for
            await asyncio.sleep(0.01)
        assert answers.found == [inboxes(server)[1].encode(), b"last"]
        assert answers.copies == [*map(str.encode, inboxes(server)[:2]), b"last"]
        assert len(asking._waiting) == 1

    told(story)


def test_waiting_requests_and_remembered_copies_are_bounded(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """Nobody answers: one more request is refused, and the oldest request is copied no more."""
    monkeypatch.setattr(module, "_WAITING_MAX", 3)
    monkeypatch.setattr(module, "_COPIED_MAX", 2)

    async def story(server: ScriptedNats, asking: NatsAsking) -> None:
        answers = Answers(asking)
        for _ in range(4):
            answers.ask()
        await server.until(lambda: len(server.published) >= 3)
        (refused,) = answers.found
        assert isinstance(refused, OverloadedError)
        assert list(asking._copied) == [one.encode() for one in inboxes(server)[1:]]

    told(story)


@pytest.mark.parametrize("subject", ["x" * 1025, "ä" * 513], ids=["letters", "bytes"])
def test_a_subject_that_is_too_long_for_a_server_is_refused(subject: str) -> None:
    """The server would close the connection, and the answers to other requests would be lost."""

    async def story(server: ScriptedNats, asking: NatsAsking) -> None:
        answers = Answers(asking)
        for publish in (lambda: answers.ask(subject), lambda: asking.publish(subject, b"x")):
            with pytest.raises(InvalidRequestError, match="longer than the 1024 bytes"):
                publish()
        answers.ask("x" * 1024)
        await server.until(lambda: bool(server.published))
        assert server.published[0].subject == "x" * 1024

    told(story)


def test_a_request_without_a_connection_is_refused_and_keeps_no_place() -> None:
    """It was not published, so its caller may send it again."""

    async def story(server: ScriptedNats, asking: NatsAsking) -> None:
        answers = Answers(asking)
        server.hang_up()
        while asking._transport.connected:  # noqa: ASYNC110 - there is no event to wait for
            await asyncio.sleep(0)
        answers.ask()
        await asyncio.sleep(0)
        (refused,) = answers.found
        assert isinstance(refused, UnavailableError)
        assert not asking._waiting
        assert not asking._copied

    told(story)
