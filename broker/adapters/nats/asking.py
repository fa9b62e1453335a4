"""Publishes on NATS subjects for clients of other protocols, and receives the acknowledgements.

It has a connection of its own: the connection of the ingest is not read while its receiver waits,
and an answer must not be delayed by that. Every request has an inbox, and the first message there
is the answer. The number of inboxes with a waiting request is bounded. A request is forgotten when
its caller ends the wait.
"""

from __future__ import annotations

import asyncio
import contextlib
import itertools
from collections.abc import Callable, Coroutine, Mapping
from typing import Final

from broker.adapters.nats.transport import NatsTransport, own_inbox
from broker.codec.nats.stream import MessageBatch
from broker.config import NatsConfig
from broker.errors import (
    HeadwaterError,
    InvalidRequestError,
    InvalidStreamError,
    OverloadedError,
    RecordTooLargeError,
    UnavailableError,
)
from broker.model.subjects import is_literal
from broker.ports.subjects import Answered

_WAITING_MAX: Final = 10_000
_OWN_SID: Final = (1 << 20) + 1
_FIRST_SID: Final = _OWN_SID + 1


class NatsAsking:
    """Implements ``SubjectPublisher``. Owner: one event loop; its port's methods on any thread."""

    def __init__(
        self, config: NatsConfig, *, client_name: str, on_crash: Callable[[BaseException], None]
    ) -> None:
        """Prepare; :meth:`start` connects. ``on_crash`` is called for bugs only."""
        self._inbox = own_inbox()
        self._transport = NatsTransport(
            config, client_name=client_name, sink=self, on_crash=on_crash
        )
        self._loop: asyncio.AbstractEventLoop | None = None
        self._numbers = itertools.count(_FIRST_SID)
        self._waiting: dict[bytes, dict[int, Answered]] = {}  # by inbox, by number
        self._tasks: set[asyncio.Task[None]] = set()

    async def start(self) -> None:
        """Connect, now or as soon as there is a server."""
        self._loop = asyncio.get_running_loop()
        await self._transport.start(must_connect=False)
        self._spawn(self._subscribe_own_inbox())

    async def close(self) -> None:
        """Close the connection; no waiting request is answered any more."""
        for task in list(self._tasks):
            task.cancel()
        await self._transport.close()
        self._waiting.clear()

    # ------------------------------------------------------------------ any thread

    def publish(self, subject: str, data: bytes) -> None:
        """See ``SubjectPublisher.publish``."""
        self._check(subject, data)
        if not self._transport.connected:
            raise UnavailableError(str(self._transport.complaint))
        self._soon(lambda: self._send(subject, data))

    def ask(
        self, subject: str, data: Callable[[str], bytes], answered: Answered, inbox: str = ""
    ) -> Callable[[], None]:
        """See ``SubjectPublisher.ask``."""
        if inbox and not is_literal(inbox):
            raise InvalidRequestError(
                f"inbox {inbox!r} is not a subject that an answer can be sent to: it must be words "
                "with dots between them, without a blank or a wildcard"
            )
        number = next(self._numbers)
        address = inbox or f"{self._inbox}.{number}"
        made = data(address)
        self._check(subject, made)
        key = address.encode()
        self._soon(lambda: self._ask(number, key, subject, made, answered))
        return lambda: self._soon(lambda: self._forget(number, key))

    def _check(self, subject: str, data: bytes) -> None:
        if not is_literal(subject):
            raise InvalidRequestError(
                f"{subject!r} is not a subject that can be published to: it must be words with "
                "dots between them, without a blank or a wildcard"
            )
        limit = self._transport.max_payload_bytes
        if limit and len(data) > limit:
            raise RecordTooLargeError(
                f"a message of {len(data)} bytes exceeds the {limit} bytes that NATS takes",
                size_bytes=len(data),
                limit_bytes=limit,
            )

    def _soon(self, work: Callable[[], object]) -> None:
        if self._loop is None:
            raise UnavailableError("the connection to NATS has not started")
        try:
            self._loop.call_soon_threadsafe(work)
        except RuntimeError as ended:
            raise UnavailableError("the connection to NATS is closed") from ended

    # ------------------------------------------------------------------ the event loop

    def _ask(
        self, number: int, inbox: bytes, subject: str, data: bytes, answered: Answered
    ) -> None:
        if len(self._waiting) >= _WAITING_MAX:
            answered(
                OverloadedError(
                    f"{_WAITING_MAX} messages wait for an acknowledgement already: try again later"
                )
            )
            return
        self._waiting.setdefault(inbox, {})[number] = answered
        if inbox.startswith(self._inbox.encode()):
            if not self._send(subject, data):
                self._forget(number, inbox)
                answered(UnavailableError(str(self._transport.complaint)))
        else:
            self._spawn(self._ask_at(number, inbox, subject, data))

    async def _ask_at(self, number: int, inbox: bytes, subject: str, data: bytes) -> None:
        """Subscribe to the caller's own inbox, then publish the request."""
        try:
            await self._transport.subscribe({number: inbox.decode()}, None)
        except HeadwaterError as error:
            answered = self._waiting.get(inbox, {}).get(number)
            self._forget(number, inbox)
            if answered is not None:
                answered(error)
            return
        self._send(subject, data)

    async def _subscribe_own_inbox(self) -> None:
        # Without a connection, the next connection subscribes. If the server does not allow this
        # inbox, requests get no answer and wait until their deadlines.
        with contextlib.suppress(UnavailableError, InvalidStreamError):
            await self._transport.subscribe({_OWN_SID: f"{self._inbox}.*"}, None)

    def _send(self, subject: str, data: bytes) -> bool:
        head = f"PUB {subject} {len(data)}\r\n".encode()
        return self._transport.send(head + data + b"\r\n", 1)

    def _forget(self, number: int, inbox: bytes) -> None:
        waiting = self._waiting.get(inbox)
        if waiting is None or waiting.pop(number, None) is None:
            return
        if not waiting:
            del self._waiting[inbox]
        if not inbox.startswith(self._inbox.encode()):
            self._spawn(self._transport.unsubscribe([number]))

    def _spawn(self, work: Coroutine[object, object, None]) -> None:
        task = asyncio.get_running_loop().create_task(work)
        self._tasks.add(task)
        task.add_done_callback(self._tasks.discard)

    # ------------------------------------------------------------------ MessageSink

    def received(self, batches: list[MessageBatch]) -> asyncio.Future[None] | None:
        """Pass each answer to the requests that wait on its inbox."""
        for batch in batches:
            starts = [*(row for row, _ in batch.runs[1:]), len(batch.payloads)]
            for (first, inbox), end in zip(batch.runs, starts, strict=True):
                for payload in batch.payloads[first:end]:
                    for number, answered in list(self._waiting.get(inbox, {}).items()):
                        self._forget(number, inbox)
                        answered(payload)
        return None

    def connection_lost(self, *, slow_consumer: bool) -> None:
        """See ``MessageSink``. An answer may be lost; the request has a deadline."""

    # ------------------------------------------------------------------ metrics

    @property
    def server_errors(self) -> Mapping[str, int]:
        """The errors that the server told, by kind. Any thread."""
        return self._transport.counters.server_errors
