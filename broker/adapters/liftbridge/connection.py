"""One client's connection: bytes of a socket to calls, and answers back. On the event loop.

The file is not split: it is the life of a call, from its opening to its end.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Iterable, Sequence
from contextlib import suppress
from dataclasses import dataclass
from typing import Final, NamedTuple, Protocol

import structlog
from google.protobuf.message import DecodeError

from broker.adapters.liftbridge import reflection
from broker.adapters.liftbridge.config import LiftbridgeServiceConfig
from broker.adapters.liftbridge.guard import Guard
from broker.adapters.liftbridge.http2 import (
    PREFIX_BYTES,
    TOO_MUCH,
    CallEnded,
    CallOpened,
    ConnectionEnded,
    Drained,
    Event,
    GrpcConnection,
    HalfClosed,
    Messages,
    MessagesArrived,
    prefixed,
)
from broker.adapters.liftbridge.publish_requests import Published, RequestReader, window_bytes_of
from broker.adapters.liftbridge.publishing import PublishCall
from broker.adapters.liftbridge.statuses import OK, Code, Status, StatusError, status_of
from broker.adapters.liftbridge.stream_calls import Listing, Unary, decode
from broker.adapters.liftbridge.subjects import check_inbox, publish_to_subject, send_to_inbox
from broker.adapters.liftbridge.subscribing import CallSink, Subscriber
from broker.adapters.liftbridge.targets import LookUps, PublishTargets
from broker.adapters.liftbridge.unfinished import LATE_S, UnfinishedBytes
from broker.errors import HeadwaterError
from broker.model.access import NOBODY, Caller
from broker.ports.subjects import SubjectPublisher
from broker.ports.system import Clock
from broker.wire.liftbridge import api_pb2 as api

_log = structlog.get_logger(__name__)

SERVICE: Final = "/proto.API/"
_PUBLISH: Final = SERVICE + "Publish"
_PUBLISH_ASYNC: Final = SERVICE + "PublishAsync"
_PUBLISHING: Final = (_PUBLISH, _PUBLISH_ASYNC)
_SUBSCRIBE: Final = SERVICE + "Subscribe"
_TO_SUBJECT: Final = SERVICE + "PublishToSubject"
_METADATA: Final = SERVICE + "FetchMetadata"
_DEADLINE: Final = Status(Code.DEADLINE_EXCEEDED, "the deadline of the call has passed")
_LATE: Final = Status(
    Code.DEADLINE_EXCEEDED, f"the message of the call did not go on within {LATE_S:g} seconds"
)
_CLOSING: Final = Status(Code.UNAVAILABLE, "the server is closing")
_UNKNOWN: Final = Status(
    Code.DEADLINE_EXCEEDED, "the server is closing: the message may be stored or not"
)

Subscribe = Callable[[api.SubscribeRequest, Subscriber], str | None]
"""Serves a subscription on its own thread; returns why it ended; None: in order."""


class Workers(Protocol):
    """The threads of the service."""

    def run(self, work: Callable[[], object], done: Callable[[object], None]) -> bool:
        """Run blocking work; ``done`` gets its result, or the exception, on the event loop.

        Returns False if too much is running: ``done`` will not be called.
        """

    def subscribe(self, work: Callable[[], object], done: Callable[[object], None]) -> bool:
        """Do the same for a subscription, which keeps its thread for as long as it lasts."""

    def call_soon(self, work: Callable[[], None]) -> None:
        """Run on the event loop. Any thread."""

    def call_last(self, work: Callable[[], None]) -> None:
        """Run behind the work that is due now. The event loop."""


@dataclass(slots=True)
class _Call:
    path: str
    caller: Caller = NOBODY
    message: bytes | None = None  # of a call with one message, until the call starts
    message_window_bytes: int = 0  # of it, to give back
    message_since_s: float | None = None  # since when the end of the call is awaited
    publish: PublishCall | None = None
    reflection: reflection.Reflection | None = None
    sink: CallSink | None = None
    give_up: Callable[[], None] | None = None  # ends the wait of the call for its answer
    started: bool = False
    half_closed: bool = False
    counted: bool = False  # as open, for the caller's quota
    timer: asyncio.TimerHandle | None = None

    @property
    def may_store(self) -> bool:
        """Whether its message may be stored; a status is the only answer of such a call."""
        publishes = self.path == _PUBLISH and self.publish is not None and self.publish.may_store
        return publishes or self.give_up is not None  # PublishToSubject: given to NATS


class Missed(NamedTuple):
    """How much an idle connection would be missed; the least is the first in order."""

    known: bool  # a known caller has proved to be there; where nobody is asked, it had a call
    since_ms: int  # when the last of these ended, else when the connection was made


class ClientConnection(asyncio.Protocol):
    """Serves the calls of one connection.

    The class is not split: asyncio's protocol and the calls share the connection's end.
    """

    def __init__(
        self,
        config: LiftbridgeServiceConfig,
        clock: Clock,
        workers: Workers,
        *,
        unary: dict[str, Unary],
        metadata: Listing,
        subscribe: Subscribe,
        targets: PublishTargets,
        subjects: SubjectPublisher | None,
        forget: Callable[[ClientConnection], None],
        guard: Guard,
        unfinished: UnfinishedBytes,
    ) -> None:
        """``forget`` is called once the connection has ended."""
        self._config = config
        self._clock = clock
        self._workers = workers
        self._unary = unary
        self._metadata = metadata
        self._subscribe = subscribe
        self._targets = targets
        self._subjects = subjects
        self._forget = forget
        self._guard = guard
        self._grpc = GrpcConnection(config.http2, unfinished)
        self._read = RequestReader().read
        self._calls: dict[int, _Call] = {}
        self._transport: asyncio.Transport | None = None
        self._paused = False
        self._is_known = False  # by its certificate, or it has had a call of a known caller
        self._is_aborted = False
        self._idle_since_ms = 0
        self._answers: dict[int, list[bytes]] = {}  # to send together, by call
        self._writes_soon = False

    # ------------------------------------------------------------------ asyncio.Protocol

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        """Send the server's preface."""
        assert isinstance(transport, asyncio.Transport), "not a stream"
        self._transport = transport
        self._idle_since_ms = self._clock.monotonic_ms()
        self._is_known = self._guard.connected(
            transport.get_extra_info("peercert"), transport.get_extra_info("peername")
        )
        transport.set_write_buffer_limits(high=self._config.answer_bytes_max)
        self._grpc.start()
        self._write()

    def data_received(self, data: bytes) -> None:
        """Handle received bytes; messages of one call that arrive together are stored together."""
        published: dict[int, list[Published]] = {}
        now_us = self._clock.now_us()
        for event in self._grpc.receive(data):
            if isinstance(event, MessagesArrived):
                self._messages(event, published, now_us)
            else:
                self._store(published)
                self._event(event)
        self._store(published)
        self._write()

    def connection_lost(self, exc: Exception | None) -> None:  # noqa: ARG002  (asyncio's signature)
        """End every call; their records, if any were published, are stored all the same."""
        for number in list(self._calls):
            self._drop(number)
        self._grpc.lost()
        self._transport = None
        self._forget(self)

    def pause_writing(self) -> None:
        """Let subscriptions wait: the peer does not read."""
        self._paused = True

    def resume_writing(self) -> None:
        """Let subscriptions go on."""
        self._paused = False
        for number, call in self._calls.items():
            if call.sink is not None:
                call.sink.taken(self._grpc.waiting_bytes(number))

    def close(self) -> None:
        """Take no more calls, end the running ones, and close."""
        self._end_calls()
        if self._transport is not None:
            self._transport.close()

    def _end_calls(self) -> None:
        for number, call in list(self._calls.items()):
            self._finish(number, _UNKNOWN if call.may_store else _CLOSING)
        self._grpc.close()
        self._write()

    def end_late(self, now_s: float) -> None:
        """End calls whose message has begun and does not go on. Called now and then."""
        if not self._grpc.keeps:
            return
        late = self._grpc.late(now_s)
        for number, call in self._calls.items():
            if call.message is None:
                continue
            if call.message_since_s is None:
                call.message_since_s = now_s
            elif now_s - call.message_since_s >= LATE_S:
                late.append(number)
        for number in late:
            self._finish(number, _LATE)
        if late:
            self._write()

    def abort(self) -> None:
        """Close at once; what the peer has not taken is lost."""
        self._is_aborted = True
        if self._transport is not None:
            self._transport.abort()

    @property
    def missed(self) -> Missed | None:
        """How much it would be missed; None: a known caller has a call open, or it has no place.

        A call is open until its last byte is sent. A connection that is closing still has a place.
        """
        transport = self._transport
        if transport is None or self._is_aborted:
            return None
        at_work = self._calls or self._grpc.has_calls or transport.get_write_buffer_size()
        return None if self._is_known and at_work else Missed(self._is_known, self._idle_since_ms)

    def give_way(self) -> None:
        """Close at once, for another client; the peer is told, and may connect again."""
        self._end_calls()
        self.abort()

    # ------------------------------------------------------------------ calls

    def _event(self, event: Event) -> None:
        match event:
            case CallOpened():
                self._open(event)
            case HalfClosed():
                self._half_closed(event.call)
            case CallEnded():
                self._drop(event.call)
            case Drained():
                call = self._calls.get(event.call)
                if call is not None and call.sink is not None and not self._paused:
                    call.sink.taken(0)
            case ConnectionEnded():
                if event.reason:
                    _log.info("liftbridge_connection_refused", reason=event.reason)
                self._write()
                if self._transport is not None:
                    self._transport.close()

    def _open(self, opened: CallOpened) -> None:
        call = self._calls[opened.call] = _Call(opened.path)
        known = (*_PUBLISHING, _SUBSCRIBE, _TO_SUBJECT, _METADATA, *reflection.PATHS)
        if opened.path not in self._unary and opened.path not in known:
            self._finish(opened.call, Status(Code.UNIMPLEMENTED, f"no method {opened.path}"))
            return
        try:
            call.caller = self._guard.caller(opened.path, opened.authorization)
            if opened.path in (_PUBLISH_ASYNC, _SUBSCRIBE, *reflection.PATHS):
                self._guard.enter(call.caller)
                call.counted = True
        except HeadwaterError as refused:
            self._finish(opened.call, status_of(refused))
            return
        self._is_known = self._is_known or self._guard.knows(call.caller)
        if opened.timeout_ms is not None:
            call.timer = asyncio.get_running_loop().call_later(
                opened.timeout_ms / 1000, self._deadline_passed, opened.call
            )
        if opened.path in reflection.PATHS:
            call.reflection = reflection.Reflection()
            self._grpc.accept(opened.call)
        if opened.path in _PUBLISHING:
            many = opened.path == _PUBLISH_ASYNC
            targets = self._guard.publisher(call.caller, opened.path, self._targets)
            call.publish = PublishCall(
                LookUps(targets, self._workers.run, self._workers.call_soon),
                self._clock,
                self._workers.call_soon,
                lambda published, answers, status: self._answer(
                    opened.call, published, answers, status, many=many
                ),
                self._guard.publish_pace(call.caller),
            )
            if many:
                self._grpc.accept(opened.call)

    def _messages(
        self, event: MessagesArrived, published: dict[int, list[Published]], now_us: int
    ) -> None:
        call = self._calls.get(event.call)
        if call is None:
            self._grpc.used(event.call, sum(event.windows_bytes))
            return
        try:
            if call.publish is not None:
                messages = self._read(event.payloads, event.windows_bytes, now_us)
                if call.path == _PUBLISH:
                    _check_publish(self._guard, call.caller, messages)
                published.setdefault(event.call, []).extend(messages)
                return
            if call.reflection is not None:
                self._grpc.send(event.call, call.reflection.answers(event.payloads))
                self._grpc.used(event.call, sum(event.windows_bytes))
                return
            if call.message is not None or len(event.payloads) > 1:
                raise StatusError(Code.INTERNAL, "the call takes one message and got a second")
            if call.path != _TO_SUBJECT:
                _check_size(event.payloads[0], self._config.request_bytes_max)
            if not self._grpc.keep(len(event.payloads[0])):
                self._finish(event.call, TOO_MUCH)
                self._grpc.used(event.call, sum(event.windows_bytes))
                return
        except (StatusError, HeadwaterError) as refused:
            self._finish(event.call, _status(refused))
            self._grpc.used(event.call, sum(event.windows_bytes))
            return
        call.message, call.message_window_bytes = event.payloads[0], event.windows_bytes[0]

    def _store(self, published: dict[int, list[Published]]) -> None:
        for number, messages in published.items():
            call = self._calls.get(number)
            if call is not None and call.publish is not None:
                call.publish.take(messages)
            else:  # the message behind them ended the call
                self._used(number, messages)
        published.clear()

    def _half_closed(self, number: int) -> None:
        call = self._calls.get(number)
        if call is None or call.started:
            return
        call.half_closed = True
        if call.reflection is not None:
            self._finish(number, OK)
            return
        if call.publish is not None and not call.publish.idle:
            return
        if call.path == _PUBLISH_ASYNC:
            self._finish(number, OK)
            return
        if call.message is None:  # a Publish that had one is answered, or not idle
            self._finish(number, Status(Code.INTERNAL, "the call has no message"))
            return
        call.started = True
        payload = call.message
        self._give_message_back(number, call)
        if call.path == _SUBSCRIBE:
            self._start_subscription(number, call, payload)
            return
        if call.path == _TO_SUBJECT:
            self._publish_to_subject(number, call, payload)
            return
        if call.path == _METADATA:
            work = self._guard.listing(call.caller, call.path, self._metadata)
        else:
            work = self._guard.unary(call.caller, call.path, self._unary[call.path])
        if not self._workers.run(lambda: work(payload), lambda result: self._reply(number, result)):
            self._finish(number, Status(Code.UNAVAILABLE, "too many calls wait: try again later"))

    def _publish_to_subject(self, number: int, call: _Call, payload: bytes) -> None:
        def replied(result: object) -> None:  # on any thread
            self._workers.call_soon(lambda: self._reply(number, result))

        waits = call.timer is not None
        try:
            self._guard.to_subject(call.caller, payload)
            call.give_up = publish_to_subject(self._subjects, payload, replied, waits=waits)
        except (StatusError, HeadwaterError) as refused:
            self._finish(number, _status(refused))

    def _reply(self, number: int, result: object) -> None:
        if isinstance(result, bytes):
            self._grpc.send(number, prefixed(result))
            self._finish(number, OK)
        else:
            self._finish(number, _status(result))
        self._write()

    def _answer(
        self,
        number: int,
        published: Sequence[Published],
        answers: Sequence[bytes],
        status: Status,
        *,
        many: bool,
    ) -> None:
        """Answer published messages. Of Publish there is one."""
        self._used(number, published)
        call = self._calls.get(number)
        if call is None:
            return
        if many:
            if answers:
                self._answers.setdefault(number, []).extend(answers)
            if call.half_closed and call.publish is not None and call.publish.idle:
                self._finish(number, OK)
        else:
            if status.code is Code.OK:
                if answers:
                    send_to_inbox(self._subjects, answers[0][PREFIX_BYTES:])
                self._grpc.send(number, answers[0] if answers else prefixed(b""))
            self._finish(number, status)
        if not self._writes_soon:
            self._writes_soon = True
            self._workers.call_last(self._write)

    # ------------------------------------------------------------------ subscriptions

    def _start_subscription(self, number: int, call: _Call, payload: bytes) -> None:
        try:
            request = decode(api.SubscribeRequest, payload)
        except StatusError as error:
            self._finish(number, error.status)
            return
        sink = call.sink = CallSink(
            self._config.answer_bytes_max,
            lambda messages: self._workers.call_soon(lambda: self._deliver(number, messages)),
        )
        self._grpc.accept(number)

        def ended(why: object) -> None:
            if why is None:
                self._finish(number, OK)
                self._write()
            else:
                end = StatusError(Code.RESOURCE_EXHAUSTED, why) if isinstance(why, str) else why
                self._reply(number, end)

        caller = call.caller

        def serve() -> str | None:  # on a thread of its own
            return self._subscribe(request, self._guard.subscriber(caller, request, sink))

        if not self._workers.subscribe(serve, ended):
            full = f"this broker has {self._config.subscriptions_max} subscriptions, its limit"
            self._finish(number, Status(Code.UNAVAILABLE, f"{full}: subscribe at another broker"))

    def _deliver(self, number: int, messages: Messages) -> None:
        call = self._calls.get(number)
        if call is None or call.sink is None:
            return
        self._grpc.send(number, messages)
        self._write()
        if not self._paused:
            call.sink.taken(self._grpc.waiting_bytes(number))

    # ------------------------------------------------------------------ ends

    def _deadline_passed(self, number: int) -> None:
        self._finish(number, _DEADLINE)
        self._write()

    def _finish(self, number: int, status: Status) -> None:
        self._drop(number)
        self._send_answers(number)
        self._grpc.finish(number, status)

    def _send_answers(self, number: int) -> None:
        answers = self._answers.pop(number, None)
        if answers:
            self._grpc.send(number, b"".join(answers))

    def _drop(self, number: int) -> None:
        call = self._calls.pop(number, None)
        if call is None:
            return
        if self._is_known:
            self._idle_since_ms = self._clock.monotonic_ms()
        if call.timer is not None:
            call.timer.cancel()
        if call.sink is not None:
            call.sink.stop()
        if call.counted:
            self._guard.exit(call.caller)
        self._give_message_back(number, call)
        if call.publish is not None:
            self._used(number, call.publish.end())
        if call.give_up is not None:
            with suppress(HeadwaterError):  # NATS's connection is closed: nothing waits there
                call.give_up()

    def _used(self, number: int, messages: Iterable[Published]) -> None:
        """Let the peer send as many bytes again as messages had that nothing here needs now."""
        self._grpc.used(number, window_bytes_of(messages))

    def _give_message_back(self, number: int, call: _Call) -> None:
        if call.message is None:
            return
        self._grpc.keep(-len(call.message))
        self._grpc.used(number, call.message_window_bytes)
        call.message, call.message_window_bytes = None, 0

    def _write(self) -> None:
        self._writes_soon = False
        for number in list(self._answers):
            self._send_answers(number)
        output = self._grpc.take_output()
        if output and self._transport is not None:
            self._transport.write(output)


def _check_size(request: bytes, bytes_max: int) -> None:
    """Refuse a request that is larger than its call ever needs: it holds no record."""
    if len(request) > bytes_max:
        raise StatusError(
            Code.RESOURCE_EXHAUSTED,
            f"a request of {len(request)} bytes exceeds {bytes_max} bytes, the limit of this call",
        )


def _check_publish(guard: Guard, caller: Caller, messages: Sequence[Published]) -> None:
    """Refuse what a message of Publish may not name; PublishAsync has other rules."""
    for one in messages:
        if not one.envelope.stream:
            raise StatusError(Code.INVALID_ARGUMENT, "No stream provided")
        inbox = one.envelope.ack_inbox
        if not inbox:
            continue
        check_inbox(inbox)
        guard.inbox(caller, inbox)


def _status(result: object) -> Status:
    """Return the status of a call that ended by an exception; a bug is logged without a status."""
    if isinstance(result, StatusError):
        return result.status
    if isinstance(result, HeadwaterError):
        return status_of(result)
    if isinstance(result, DecodeError):
        return Status(Code.INVALID_ARGUMENT, "the request is malformed")
    _log.error("liftbridge_call_crashed", exc_info=result)
    return Status(Code.INTERNAL, "internal error: see the broker's log")
