"""Publishes on NATS subjects for clients of other protocols, and receives the acknowledgements.

It has a connection of its own: the connection of the ingest is not read while its receiver waits,
and an answer must not be delayed by that. Every request has an inbox of its own, whose name cannot
be guessed. The first message there is the answer. So no request takes the answer of another, and
one subscription serves all requests. The number of waiting requests is bounded. A request is
forgotten when its caller ends the wait. If its answers are copied, the copies go on after that.
"""

from __future__ import annotations

import asyncio
import contextlib
import secrets
import threading
from collections.abc import Callable
from typing import Final

from broker.adapters.nats.transport import NatsTransport, own_inbox
from broker.codec.nats.stream import MessageBatch
from broker.config import NatsConfig
from broker.errors import (
    InvalidRequestError,
    InvalidStreamError,
    OverloadedError,
    RecordTooLargeError,
    UnavailableError,
)
from broker.model.subjects import is_literal
from broker.ports.subjects import Answered, Copied

_WAITING_MAX: Final = 10_000
_COPIED_MAX: Final = 10_000  # the newest requests whose answers are copied
_SUBJECT_BYTES_MAX: Final = 1024  # servers close a connection whose line exceeds 4096 bytes
_OWN_SID: Final = (1 << 20) + 1


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
        self._waiting: dict[bytes, Answered] = {}  # by inbox
        self._copied: dict[bytes, Copied] = {}  # by inbox, oldest request first
        self._subscribing: asyncio.Task[None] | None = None

    async def start(self) -> None:
        """Connect, now or as soon as there is a server."""
        self._loop = asyncio.get_running_loop()
        await self._transport.start(must_connect=False)
        self._subscribing = self._loop.create_task(self._subscribe_own_inbox())

    async def close(self) -> None:
        """Close the connection; no waiting request is answered any more."""
        if self._subscribing is not None:
            self._subscribing.cancel()
        await self._transport.close()
        self._waiting.clear()
        self._copied.clear()

    # ------------------------------------------------------------------ any thread

    def publish(self, subject: str, data: bytes) -> None:
        """See ``SubjectPublisher.publish``."""
        self._check(subject, data)
        if not self._transport.connected:
            raise UnavailableError(str(self._transport.complaint))
        self._soon(lambda: self._send(subject, data))

    def ask(
        self,
        subject: str,
        data: Callable[[str], bytes],
        answered: Answered,
        copied: Copied | None = None,
    ) -> Callable[[], None]:
        """See ``SubjectPublisher.ask``."""
        address = f"{self._inbox}.{secrets.token_hex(12)}"
        made = data(address)
        self._check(subject, made)
        inbox, given_up = address.encode(), threading.Event()

        def send() -> None:
            if not given_up.is_set():
                self._ask(inbox, subject, made, answered, copied)

        self._soon(send)

        def give_up() -> None:
            given_up.set()  # now: the loop may be busy, and the request not yet published
            self._soon(lambda: self._waiting.pop(inbox, None))

        return give_up

    def _check(self, subject: str, data: bytes) -> None:
        if not is_literal(subject):
            raise InvalidRequestError(
                f"{subject!r} is not a subject that can be published to: it must be words with "
                "dots between them, without a blank or a wildcard"
            )
        if len(subject.encode()) > _SUBJECT_BYTES_MAX:
            raise InvalidRequestError(
                f"a subject that begins with {subject[:80]!r} is longer than the "
                f"{_SUBJECT_BYTES_MAX} bytes that can be published to: choose a shorter one"
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
        self, inbox: bytes, subject: str, data: bytes, answered: Answered, copied: Copied | None
    ) -> None:
        if len(self._waiting) >= _WAITING_MAX:
            answered(
                OverloadedError(
                    f"{_WAITING_MAX} messages wait for an acknowledgement already: try again later"
                )
            )
        elif not self._send(subject, data):
            answered(UnavailableError(str(self._transport.complaint)))
        else:
            self._waiting[inbox] = answered
            if copied is not None:
                self._copied[inbox] = copied
                if len(self._copied) > _COPIED_MAX:
                    del self._copied[next(iter(self._copied))]

    async def _subscribe_own_inbox(self) -> None:
        # Without a connection, the next connection subscribes. If the server does not allow this
        # inbox, requests get no answer and wait until their deadlines.
        with contextlib.suppress(UnavailableError, InvalidStreamError):
            await self._transport.subscribe({_OWN_SID: f"{self._inbox}.*"}, None)

    def _send(self, subject: str, data: bytes) -> bool:
        head = f"PUB {subject} {len(data)}\r\n".encode()
        return self._transport.send(head + data + b"\r\n", 1)

    # ------------------------------------------------------------------ MessageSink

    def received(self, batches: list[MessageBatch]) -> asyncio.Future[None] | None:
        """Pass each answer to the request that waits on its inbox."""
        for batch in batches:
            starts = [*(row for row, _ in batch.runs[1:]), len(batch.payloads)]
            for (first, inbox), end in zip(batch.runs, starts, strict=True):
                copied = self._copied.get(inbox)
                for payload in batch.payloads[first:end]:
                    answered = self._waiting.pop(inbox, None)
                    if answered is not None:
                        answered(payload)
                    if copied is not None:
                        copied(payload)
        return None

    def connection_lost(self, *, slow_consumer: bool) -> None:
        """See ``MessageSink``. An answer may be lost; the request has a deadline."""
