"""Publishing by Headwater's client: which error tells that a message is not stored."""

from __future__ import annotations

import asyncio
from collections import deque
from typing import Any, cast

import pytest

from broker.errors import (
    CommitTimeoutError,
    ConditionFailedError,
    EncryptionKeyError,
    HeadwaterError,
    InvalidRequestError,
)
from broker.wire.liftbridge import api_pb2 as api
from headwater.liftbridge import AsyncLiftbridge

LOST = "the server is lost before it answers"
CODES = api.PublishAsyncError


class Server:
    """A server that answers each message with the next code of a script, then with the last."""

    def __init__(self, *script: Any) -> None:
        self.script = script
        self.taken_count = 0

    def at(self, address: str) -> Server:
        """See ``ServerConnections``."""
        return self

    async def close(self) -> None:
        """See ``ServerConnections``."""

    async def FetchMetadata(self, request: Any, *, timeout: float) -> Any:  # noqa: N802, ASYNC109
        """Know nothing: every address may lead."""
        return api.FetchMetadataResponse()

    def PublishAsync(self) -> Call:  # noqa: N802
        """Begin a call."""
        return Call(self)

    def next_answer(self) -> Any:
        """Take a message."""
        answer = self.script[min(self.taken_count, len(self.script) - 1)]
        self.taken_count += 1
        return answer


class Call:
    """One call of PublishAsync."""

    def __init__(self, server: Server) -> None:
        self._server = server
        self._answers: deque[api.PublishResponse] = deque()
        self._news = asyncio.Event()
        self._over = False

    async def write(self, request: api.PublishRequest) -> None:
        """Take a message."""
        answer = self._server.next_answer()
        if answer is LOST:
            self._over = True
        else:
            told = CODES(code=answer, message="as the script says")
            self._answers.append(
                api.PublishResponse(correlationId=request.correlationId, asyncError=told)
            )
        self._news.set()

    def cancel(self) -> None:
        """End the call."""
        self._over = True
        self._news.set()

    def __aiter__(self) -> Call:
        return self

    async def __anext__(self) -> api.PublishResponse:
        while not self._answers:
            if self._over:
                raise StopAsyncIteration
            await self._news.wait()
            self._news.clear()
        return self._answers.popleft()


def publish(server: Server, *, resend: bool, timeout_s: float = 30.0) -> HeadwaterError:
    """Publish a message under a condition; return the error."""

    async def main() -> HeadwaterError:
        async with AsyncLiftbridge("a:1", resend=resend, timeout_s=timeout_s) as client:
            client._servers = cast("Any", server)
            with pytest.raises(HeadwaterError) as failed:
                await client.publish("s", b"x", expected_offset=5)
            return failed.value

    return asyncio.run(main())


@pytest.mark.parametrize(
    "code",
    [
        CODES.INCORRECT_OFFSET,
        CODES.READONLY,
        CODES.PERMISSION_DENIED,
        CODES.NOT_FOUND,
        CODES.ENCRYPTION_FAILED,
    ],
)
def test_a_refusal_of_the_second_attempt_says_nothing_of_the_first(code: Any) -> None:
    """The first may be stored; with a condition it is then the reason of the refusal."""
    server = Server(LOST, code)
    error = publish(server, resend=True)
    assert (type(error), server.taken_count) == (CommitTimeoutError, 2)
    assert "as the script says" in error.message
    assert error.facts["cause"]


@pytest.mark.parametrize(
    ("code", "kind"),
    [
        (CODES.INCORRECT_OFFSET, ConditionFailedError),
        (CODES.BAD_REQUEST, InvalidRequestError),
    ],
)
def test_a_message_that_every_attempt_refused_is_not_stored(
    code: Any, kind: type[HeadwaterError]
) -> None:
    """No attempt was without an answer."""
    error = publish(Server(CODES.INTERNAL, code), resend=True)
    assert type(error) is kind


def test_a_key_that_is_not_there_is_not_asked_for_again() -> None:
    """Somebody must provide the key first."""
    server = Server(CODES.ENCRYPTION_FAILED)
    error = publish(server, resend=False)
    assert (type(error), server.taken_count) == (EncryptionKeyError, 1)
