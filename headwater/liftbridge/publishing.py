"""Messages on their way: one PublishAsync call per server, and who waits for which answer."""

from __future__ import annotations

import asyncio
from contextlib import suppress
from typing import Any

from broker.errors import AccessError, CommitTimeoutError, HeadwaterError, UnavailableError
from broker.wire.liftbridge import api_pb2 as api
from headwater.liftbridge.grpc_calls import CallRefused, answers, write
from headwater.liftbridge.requests import ack_of, refusal_of
from headwater.liftbridge.values import PublishAck


class AckCall:
    """A PublishAsync call of one server. Owner: one event loop."""

    def __init__(self, stub: Any) -> None:
        """Open the call; a server that is not there is found out by the first message."""
        self._call = stub.PublishAsync()
        self._turn = asyncio.Lock()  # a call takes one message at a time; waiters keep their order
        self._waiting: dict[str, asyncio.Future[PublishAck]] = {}
        self._reader = asyncio.ensure_future(self._read())

    @property
    def usable(self) -> bool:
        """Whether the call still runs."""
        return not self._reader.done()

    async def send(
        self, request: api.PublishRequest, *, silent: bool
    ) -> asyncio.Future[PublishAck] | None:
        """Send a message; return what waits for its acknowledgement, or None if none will come.

        Raises:
            UnavailableError: the call is over; the message was not sent.
        """
        found: asyncio.Future[PublishAck] | None = None
        async with self._turn:
            if self.usable and not silent:
                found = asyncio.get_running_loop().create_future()
                self._waiting[request.correlationId] = found
            if not self.usable or not await write(self._call, request):
                self._waiting.pop(request.correlationId, None)
                raise UnavailableError("the call to the server has ended: the message was not sent")
        return found

    def forget(self, correlation_id: str) -> None:
        """Wait no longer for an acknowledgement."""
        self._waiting.pop(correlation_id, None)

    async def _read(self) -> None:
        why, refused = "the call ended", None
        try:
            async for told in answers(self._call):
                self._answered(told)
        except CallRefused as end:
            why = str(end)
            refused = end.error() if isinstance(end.error(), AccessError) else None
        finally:
            lost = refused or CommitTimeoutError(
                f"the message may be stored or not: its server was lost ({why})"
            )
            waiting, self._waiting = self._waiting, {}
            for future in waiting.values():
                if not future.done():
                    future.set_exception(lost)
                    future.exception()  # a caller that has gone is not told; asyncio must not warn

    def _answered(self, told: api.PublishResponse) -> None:
        # Servers of before 2022 name the message in the acknowledgement only.
        future = self._waiting.pop(told.correlationId or told.ack.correlationId, None)
        if future is None or future.done():
            return
        if told.HasField("asyncError"):
            error: HeadwaterError = refusal_of(told.asyncError)
            future.set_exception(error)
        else:
            future.set_result(ack_of(told.ack))

    async def close(self) -> None:
        """End the call."""
        self._call.cancel()
        with suppress(asyncio.CancelledError):
            await self._reader
