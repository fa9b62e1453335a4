"""Publishes through NATS with an acknowledgement for every record: the client's only NATS file.

A plain NATS publish has no acknowledgement. A stream with ``puback`` answers each message once the
record is on disk. This publisher keeps a window of unacknowledged messages, so that it need not
wait for each answer, and sends a message again if its answer does not come in time. Every message
has its own ``Nats-Msg-Id``, so the broker stores a repeated message only once. While a partition
has no leader, no broker listens to its subject, or a broker answers that it does not lead: the
publisher sends such a message again soon, up to a time limit. The order within a partition holds
unless a message had to be sent again.

The event loop runs in a thread of its own, so that callers are ordinary blocking code.
"""

from __future__ import annotations

import asyncio
import math
import secrets
import threading
import time
from collections.abc import Coroutine, Sequence
from contextlib import suppress
from dataclasses import dataclass
from types import TracebackType
from typing import Any, Final, Self, TypeVar

import nats
from nats.aio.client import Client as NatsConnection
from nats.aio.msg import Msg

from broker.errors import (
    CommitTimeoutError,
    DiskFullError,
    HeadwaterError,
    InvalidRequestError,
    RecordTooLargeError,
    UnavailableError,
)
from broker.model.stream import Stream
from headwater.nats_answers import AnswersOf, Foreign
from headwater.nats_login import NatsLogin, without_login

MESSAGE_ID_HEADER: Final = "Nats-Msg-Id"
_CONNECT_TIMEOUT_S: Final = 5
_ABANDON_S: Final = 1.0
_SWEEP_S: Final = 0.25
_BACKOFF_S_MAX: Final = 1.0
_MARGIN_S: Final = 10.0  # for the way to the broker, before the end of the dedup window
_PENDING_BYTES_MAX: Final = 64 * 1024 * 1024
_T = TypeVar("_T")


@dataclass(frozen=True, slots=True)
class NatsMessage:
    """One message to publish. Header values are text without line breaks."""

    subject: str
    value: bytes
    headers: dict[str, str] | None = None


@dataclass(frozen=True, slots=True)
class PublishCounts:
    """Counts of a publisher's messages.

    Acknowledged records are on the broker's disk, except for ``named_duplicates``. Of those the
    broker has a record with the same message id. It is another one, so they are not stored. What
    the publisher sent again is none of them: the record is probably that of its first attempt.
    """

    sent: int
    acked: int
    duplicates: int  # of the acknowledged: a record with the message id was stored already
    retried: int
    named_duplicates: int  # of the duplicates: the caller gave the message id; not sent again


@dataclass(slots=True)
class _Unanswered:
    message: NatsMessage
    partition: int
    headers: dict[str, str]
    first_sent_s: float
    last_sent_s: float
    unsure_since_s: float  # the first sending that may have been stored; inf: nobody heard any
    backoff_s: float = 0.0
    refusal: HeadwaterError | None = None  # the answer to the last attempt; None: no answer yet


class NatsPublisher:
    """A blocking publisher with a window of unacknowledged messages. One caller thread.

    With ``acks=False`` messages are only handed to the NATS server; ``acked`` stays 0.

    Args:
        url: The address of the NATS server.
        stream: The stream that is to store the messages. Other streams may record the same
            subjects and answer, too; their answers do not count.
        window: How many messages may be unacknowledged at a time.
        ack_timeout_s: A message without an acknowledgement is sent again after this.
        give_up_s: If a message has no acknowledgement after this, :meth:`publish` and
            :meth:`finish` raise. They raise sooner if the stream's dedup window is about to end:
            sent again after it, the message could be stored twice. With a window of 0 the broker
            knows no ids, and a message that is sent again may be stored twice.
        patience_s: Before the first acknowledgement, how long the subject may have no subscriber.
            It must be longer than an election, and short, to report a wrong subject soon.
        login: User, credentials and certificates for the NATS server.
    """

    def __init__(
        self,
        url: str,
        *,
        stream: Stream,
        window: int = 8192,
        ack_timeout_s: float = 5.0,
        give_up_s: float = 60.0,
        patience_s: float = 3.0,
        acks: bool = True,
        login: NatsLogin | None = None,
    ) -> None:
        assert window > 0, "an empty window sends nothing"
        self._url = url
        self._login = login or NatsLogin()
        self._answers = AnswersOf(stream)
        self._foreign = ""  # names the sender of a foreign answer, for errors
        self._window = window
        self._ack_timeout_s = ack_timeout_s
        self._give_up_s = give_up_s
        window_s = stream.config.dedup_window_ms / 1000 or math.inf
        self._known_s = window_s - min(_MARGIN_S, window_s / 2)
        self._patience_s = patience_s
        self._acks = acks
        self._run_id = secrets.token_hex(8)
        self._inbox = f"_INBOX.{secrets.token_hex(11)}."
        self._unanswered: dict[str, _Unanswered] = {}  # oldest sending first
        self._again: dict[str, float] = {}  # message refused for now -> when to send it again
        self._sent = self._acked = self._duplicates = self._retried = 0
        self._named_duplicates = 0
        self._failure: HeadwaterError | None = None
        self._loop = asyncio.new_event_loop()
        self._thread = threading.Thread(target=self._run_loop, name="nats-publisher", daemon=True)
        self._connection: NatsConnection | None = None
        self._room = asyncio.Event()
        self._sweeper: asyncio.Task[None] | None = None

    @property
    def counts(self) -> PublishCounts:
        """Return the counts; any thread."""
        return PublishCounts(
            sent=self._sent,
            acked=self._acked,
            duplicates=self._duplicates,
            retried=self._retried,
            named_duplicates=self._named_duplicates,
        )

    def __enter__(self) -> Self:
        """Connect; blocks.

        Raises:
            UnavailableError: no NATS server answers at the address.
        """
        self._thread.start()
        try:
            self._call(self._connect())
        except BaseException:
            self._stop_loop()
            raise
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        self._call(self._close())
        self._stop_loop()

    def publish(self, messages: Sequence[NatsMessage]) -> None:
        """Send messages in order; blocks while the window is full.

        Raises:
            InvalidRequestError: the stream does not record a message's subject.
            RecordTooLargeError: a message exceeds what the NATS server takes, headers included.
            UnavailableError: nobody records the subject, or the NATS server is away too long.
            CommitTimeoutError: a message was not acknowledged in time; its outcome is unknown.
            DiskFullError: the broker's disk is full, and stayed so for ``give_up_s``.
            HeadwaterError: the error that the broker answered.
        """
        self._call(self._publish(messages))

    def finish(self) -> PublishCounts:
        """Block until all messages are acknowledged (sent, without acks); raises like publish."""
        self._call(self._finish())
        return self.counts

    # -- below: only on the thread of the event loop

    async def _connect(self) -> None:
        connection = NatsConnection()
        try:
            await connection.connect(
                self._url,
                name="headwater-publisher",
                connect_timeout=_CONNECT_TIMEOUT_S,
                max_reconnect_attempts=-1,  # also applies to the first connection: see error_cb
                reconnect_time_wait=1,
                pending_size=_PENDING_BYTES_MAX,
                error_cb=self._on_error,
                **self._login.arguments(),
            )
        except (nats.errors.Error, OSError, TimeoutError) as cause:
            await _abandon(connection)
            raise UnavailableError(
                f"no NATS server answers at {without_login(self._url)}: {cause}"
            ) from cause
        self._connection = connection
        if self._acks:
            await self._connection.subscribe(f"{self._inbox}*", cb=self._on_answer)
            self._sweeper = asyncio.create_task(self._sweep())

    async def _on_error(self, error: Exception) -> None:
        """End the first connection at once; a reconnection is retried until ``give_up_s``."""
        if self._connection is None:
            raise error

    async def _publish(self, messages: Sequence[NatsMessage]) -> None:
        for message in messages:
            while len(self._unanswered) >= self._window:
                await self._wait_for_room()
            self._raise_failure()
            partition = self._answers.partition_of(message.subject)
            token = str(self._sent)
            self._sent += 1
            if not self._acks:
                await self._send(message, message.headers, "")
                continue
            headers = dict(message.headers or {})
            headers.setdefault(MESSAGE_ID_HEADER, self._own_id(token))
            now_s = time.monotonic()
            self._unanswered[token] = _Unanswered(message, partition, headers, now_s, now_s, now_s)
            try:
                await self._send(message, headers, self._inbox + token)
            except InvalidRequestError:  # it was not sent, so there is nothing to send again
                del self._unanswered[token]
                raise

    async def _finish(self) -> None:
        assert self._connection is not None, "used outside its with block"
        try:
            await self._connection.flush(timeout=int(self._give_up_s))
        except (nats.errors.Error, OSError, TimeoutError) as cause:
            raise UnavailableError(
                f"lost NATS server {without_login(self._url)}: {cause}"
            ) from cause
        while self._unanswered:
            await self._wait_for_room()
        self._raise_failure()

    async def _send(
        self,
        message: NatsMessage,
        headers: dict[str, str] | None,
        to: str,
        *,
        limit_s: float = math.inf,
    ) -> None:
        assert self._connection is not None, "used outside its with block"
        deadline_s = time.monotonic() + min(self._give_up_s, limit_s)
        while True:
            self._check_size(message, headers)
            try:
                await self._connection.publish(
                    message.subject, message.value, reply=to, headers=headers
                )
            except nats.errors.OutboundBufferLimitError as cause:  # the client is reconnecting
                if time.monotonic() > deadline_s:
                    raise UnavailableError(
                        f"lost NATS server {without_login(self._url)}"
                    ) from cause
                await asyncio.sleep(_SWEEP_S)
            except (nats.errors.BadSubjectError, nats.errors.BadHeaderError) as cause:
                raise InvalidRequestError(f"NATS cannot send to {message.subject!r}") from cause
            except (nats.errors.Error, OSError) as cause:
                raise UnavailableError(
                    f"lost NATS server {without_login(self._url)}: {cause}"
                ) from cause
            else:
                return

    def _check_size(self, message: NatsMessage, headers: dict[str, str] | None) -> None:
        """Refuse a message for which the present server would close the connection."""
        assert self._connection is not None, "used outside its with block"
        size, limit = len(message.value) + _headers_bytes(headers), self._connection.max_payload
        if size > limit:
            raise RecordTooLargeError(
                f"a message on {message.subject!r} has {size} bytes with its headers, and the NATS "
                f"server {without_login(self._url)} takes {limit}: publish by Flight, or raise the "
                "server's max_payload",
                size_bytes=size,
                limit_bytes=limit,
            )

    async def _on_answer(self, answer: Msg) -> None:
        token = answer.subject[len(self._inbox) :]
        waiting = self._unanswered.get(token)
        if waiting is None:
            return  # a second answer, to a message that was sent twice
        if answer.headers is not None and answer.headers.get("Status") == "503":
            self._on_no_listener(token, waiting)
            return
        outcome = self._answers.parse(waiting.partition, answer.data)
        if isinstance(outcome, Foreign):
            self._foreign = f"; an answer of {outcome.sender} does not count"
            return
        if isinstance(outcome, HeadwaterError):
            if outcome.retriable:
                waiting.refusal = outcome
                self._send_again_soon(token, waiting)
                return
            self._failure = outcome
        else:
            self._acked += 1
            self._duplicates += outcome
            is_named = waiting.headers[MESSAGE_ID_HEADER] != self._own_id(token)
            may_be_own = waiting.unsure_since_s < waiting.last_sent_s  # of an earlier sending
            self._named_duplicates += outcome and is_named and not may_be_own
            del self._unanswered[token]
            self._again.pop(token, None)
        self._room.set()

    def _own_id(self, token: str) -> str:
        return f"{self._run_id}-{token}"

    def _send_again_soon(self, token: str, waiting: _Unanswered) -> None:
        """Let the sweeper send the message again, with a growing delay."""
        waiting.backoff_s = min(max(_SWEEP_S, 2 * waiting.backoff_s), _BACKOFF_S_MAX)
        self._again.setdefault(token, time.monotonic() + waiting.backoff_s)

    def _on_no_listener(self, token: str, waiting: _Unanswered) -> None:
        """Send the message again; fail if no message was ever acknowledged and time is up.

        A partition without a leader gets one soon. Without any acknowledgement so far, the subject
        or the server is probably wrong.
        """
        if waiting.unsure_since_s == waiting.last_sent_s:
            waiting.unsure_since_s = math.inf
        self._send_again_soon(token, waiting)
        waited_s = time.monotonic() - waiting.first_sent_s
        if self._acked == 0 and waited_s >= self._patience_s:
            self._failure = UnavailableError(
                f"subject {waiting.message.subject!r} has no subscriber: no stream records it, or "
                "the broker is connected to another NATS server",
                subject=waiting.message.subject,
            )
            self._room.set()

    async def _sweep(self) -> None:
        """Send overdue messages again, oldest first; fail if one is older than ``give_up_s``."""
        while True:
            await asyncio.sleep(_SWEEP_S)
            try:
                await self._resend_overdue()
            except HeadwaterError as error:
                self._failure = error
            if self._failure is not None:
                self._room.set()

    async def _resend_overdue(self) -> None:
        now_s = time.monotonic()
        overdue = {token for token, due_s in self._again.items() if due_s <= now_s}
        for token, waiting in self._unanswered.items():
            if now_s - waiting.last_sent_s < self._ack_timeout_s:
                break
            overdue.add(token)
        for token in sorted(overdue, key=int):  # in the order of the first sending
            self._again.pop(token, None)
            if token not in self._unanswered:  # answered while an earlier message was sent
                continue
            waiting = self._unanswered.pop(token)
            limit_s = min(self._give_up_s, waiting.unsure_since_s + self._known_s - now_s)
            is_late = now_s - waiting.unsure_since_s > self._known_s
            if is_late or now_s - waiting.first_sent_s > self._give_up_s:
                if isinstance(waiting.refusal, DiskFullError):
                    raise waiting.refusal
                raise CommitTimeoutError(
                    f"no acknowledgement for a record on {waiting.message.subject!r} within "
                    f"{min(self._give_up_s, self._known_s):.1f} s by stream "
                    f"{self._answers.stream.name!r}; whether it is stored is not known"
                    f"{self._foreign}"
                )
            waiting.last_sent_s, waiting.refusal = now_s, None
            waiting.unsure_since_s = min(waiting.unsure_since_s, now_s)
            self._unanswered[token] = waiting
            self._retried += 1
            to = self._inbox + token
            await self._send(waiting.message, waiting.headers, to, limit_s=limit_s)

    async def _wait_for_room(self) -> None:
        self._raise_failure()
        self._room.clear()
        await self._room.wait()
        self._raise_failure()

    def _raise_failure(self) -> None:
        if self._failure is not None:
            raise self._failure

    async def _close(self) -> None:
        if self._sweeper is not None:
            self._sweeper.cancel()
        if self._connection is not None:
            await self._connection.close()

    # -- between the threads

    def _run_loop(self) -> None:
        asyncio.set_event_loop(self._loop)
        self._loop.run_forever()
        left = asyncio.all_tasks(self._loop)
        for task in left:
            task.cancel()
        self._loop.run_until_complete(asyncio.gather(*left, return_exceptions=True))
        self._loop.close()

    def _stop_loop(self) -> None:
        self._loop.call_soon_threadsafe(self._loop.stop)
        self._thread.join()

    def _call(self, work: Coroutine[Any, Any, _T]) -> _T:
        future = asyncio.run_coroutine_threadsafe(work, self._loop)
        try:
            return future.result()
        except BaseException:  # also Ctrl-C during the wait: stop the work on the other thread
            future.cancel()
            raise


def check_connection(url: str, login: NatsLogin) -> None:
    """Connect to a NATS server and disconnect; blocks.

    Raises:
        UnavailableError: no server answers, or it refuses the login.
        InvalidConfigError: a file of the login is not usable.
    """

    async def connect() -> None:
        connection = NatsConnection()

        async def fail(error: Exception) -> None:
            raise error

        try:
            await connection.connect(
                url, connect_timeout=_CONNECT_TIMEOUT_S, error_cb=fail, **login.arguments()
            )
        except (nats.errors.Error, OSError, TimeoutError) as cause:
            raise UnavailableError(
                f"no NATS server answers at {without_login(url)}: {cause}"
            ) from cause
        finally:
            await _abandon(connection)

    asyncio.run(connect())


def _headers_bytes(headers: dict[str, str] | None) -> int:
    """Return the size of the block that nats-py writes for headers; the server counts it."""
    if headers is None:
        return 0
    lines = [(name.strip(), value.strip()) for name, value in headers.items()]
    block = "".join(f"{name}: {value}\r\n" for name, value in lines if name)
    return len("NATS/1.0\r\n" + "\r\n") + len(block.encode())


async def _abandon(connection: NatsConnection) -> None:
    """Close a connection that carried nothing; an error of its socket says nothing more.

    The wait is bounded: after a refused certificate asyncio never tells that the socket is closed.
    """
    with suppress(OSError, nats.errors.Error):  # a server that refuses may reset the connection
        await asyncio.wait_for(connection.close(), _ABANDON_S)
