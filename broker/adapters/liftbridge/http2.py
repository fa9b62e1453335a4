"""gRPC over one HTTP/2 connection, from the server's side, without I/O.

Bytes of the socket go in with :meth:`GrpcConnection.receive`, events come out; answers go in with
:meth:`~GrpcConnection.accept`, :meth:`~GrpcConnection.send` and :meth:`~GrpcConnection.finish`, and
:meth:`~GrpcConnection.take_output` has the bytes for the socket. The frames are the library h2's;
this is the only file that imports it.

What a peer can make this object hold is bounded: header blocks, calls, the bytes of one message,
the bytes that were received and not yet used (HTTP/2's flow control), and calls that it resets. The
beginnings of messages are bounded over all connections, too, and have a deadline (unfinished.py).
The file is not split: nothing else may know the library's events and windows.
Bytes to send wait here until the peer's window allows them; :meth:`~GrpcConnection.waiting_bytes`
tells the caller when to stop producing more.

Source: RFC 9113; "gRPC over HTTP2" of the gRPC project.
"""

from __future__ import annotations

import re
import struct
from collections import deque
from collections.abc import Iterable, Sequence
from contextlib import suppress
from dataclasses import dataclass, field
from functools import partial
from typing import Any, Final
from urllib.parse import quote

from h2 import config, connection, errors, events, exceptions, settings
from hyperframe.frame import Frame

from broker.adapters.liftbridge.data_frames import DataFrameJoiner, cut
from broker.adapters.liftbridge.statuses import Code, Status
from broker.adapters.liftbridge.unfinished import STEP_BYTES, MessageProgress, UnfinishedBytes
from broker.errors import bounded_text

# h2 makes this text for each frame that it reads, with all data as hexadecimal digits, for a log
# that nobody has asked for: 15 µs for a small frame, 50 µs for one of 16 KiB.
Frame.__repr__ = object.__repr__  # type: ignore[method-assign]

_SENT_BYTES_MAX: Final = 1024 * 1024  # of one frame of h2, before it is cut for the peer
TOO_MUCH: Final = Status(Code.RESOURCE_EXHAUSTED, "too many large messages at once: try again")
_SAFE_IN_TEXT: Final = " !\"#$&'()*+,-./:;<=>?@[\\]^_`{|}~"  # not percent-encoded
_PREFIX: Final = struct.Struct(">BI")  # of each message: its compression, and its length
PREFIX_BYTES: Final = _PREFIX.size
Messages = bytes | memoryview
"""Messages of one call, each with its prefix, joined."""
_CONTENT_TYPE: Final = re.compile(rb"application/grpc($|[+;])")  # not grpc-web
_TIMEOUT: Final = re.compile(rb"([0-9]{1,8})([HMSmun])")
_TIMEOUT_MS: Final = {
    b"H": 3_600_000.0,
    b"M": 60_000.0,
    b"S": 1_000.0,
    b"m": 1.0,
    b"u": 0.001,
    b"n": 0.000_001,
}


@dataclass(frozen=True, slots=True, kw_only=True)
class Http2Limits:
    """The limits of one connection."""

    calls_max: int = 1000  # at one time
    header_bytes_max: int = 16 * 1024  # of one call, uncompressed
    message_bytes_max: int = 64 * 1024 * 1024 + 64 * 1024  # a record of the largest legal size
    partial_bytes_max: int = 72 * 1024 * 1024  # unfinished messages, of all calls together
    window_bytes: int = 4 * 1024 * 1024  # received of one call and not yet used
    resets_max: int = 500  # calls that the peer may reset beyond those that it let end


@dataclass(frozen=True, slots=True)
class CallOpened:
    """A call came in."""

    call: int
    path: str  # /package.Service/Method
    timeout_ms: float | None  # until its deadline; None: it has none
    authorization: str | None = None  # of the call's metadata


@dataclass(frozen=True, slots=True)
class MessagesArrived:
    """Whole messages of a call that came together, in order, each without its prefix."""

    call: int
    payloads: Sequence[bytes]
    windows_bytes: Sequence[int]  # of each, to give back with `GrpcConnection.used` once handled


@dataclass(frozen=True, slots=True)
class HalfClosed:
    """The caller sends no more messages in this call."""

    call: int


@dataclass(frozen=True, slots=True)
class CallEnded:
    """The caller gave a call up, or broke its rules; nothing can be sent in it any more."""

    call: int


@dataclass(frozen=True, slots=True)
class Drained:
    """The peer's window took everything that waited in a call."""

    call: int


@dataclass(frozen=True, slots=True)
class ConnectionEnded:
    """The connection has to be closed once the output is written."""

    reason: str  # "" if the peer ended it in order


Event = CallOpened | MessagesArrived | HalfClosed | CallEnded | Drained | ConnectionEnded


@dataclass(slots=True)
class _Http2Stream:
    received: bytearray = field(default_factory=bytearray)  # the beginning of a message
    counted_bytes: int = 0  # of it, in the connection's share
    progress: MessageProgress | None = None  # of that message
    waiting: deque[memoryview] = field(default_factory=deque)
    waiting_bytes: int = 0
    accepted: bool = False
    half_closed: bool = False
    status: Status | None = None  # to send after the waiting bytes


class GrpcConnection:
    """One connection. Owner: the owner of its socket; no method blocks.

    The class is not split: each method moves a call's bytes, window or end in the same library.
    """

    def __init__(self, limits: Http2Limits, unfinished: UnfinishedBytes | None = None) -> None:
        """``unfinished`` counts for all connections; without it, for this one alone."""
        self._limits = limits
        self._share = (unfinished or UnfinishedBytes()).share(limits.partial_bytes_max)
        self._h2 = connection.H2Connection(
            config.H2Configuration(
                client_side=False,
                header_encoding=None,
                validate_outbound_headers=False,  # ours, all in this file
                normalize_outbound_headers=False,
            )
        )
        self._h2.decoder.max_header_list_size = limits.header_bytes_max
        self._h2.local_settings = settings.Settings(
            client=False,
            initial_values={
                settings.SettingCodes.MAX_CONCURRENT_STREAMS: limits.calls_max,
                settings.SettingCodes.MAX_HEADER_LIST_SIZE: limits.header_bytes_max,
                settings.SettingCodes.INITIAL_WINDOW_SIZE: limits.window_bytes,
                settings.SettingCodes.ENABLE_PUSH: 0,
            },
        )
        self._joiner = DataFrameJoiner(self._h2.max_inbound_frame_size)
        self._pongs = b""  # answers to PINGs, to send
        self._calls: dict[int, _Http2Stream] = {}
        self._resets = 0
        self._ended = False

    def start(self) -> None:
        """Put the server's preface into the output."""
        self._h2.initiate_connection()
        self._h2.increment_flow_control_window(self._limits.window_bytes)

    # ------------------------------------------------------------------ from the socket

    def receive(self, data: bytes) -> list[Event]:
        """Take bytes of the socket; return their events. Never raises, whatever the peer sent."""
        if self._ended:
            return []
        if (pong := self._joiner.pong(data)) is not None:
            self._pongs += pong
            return []
        try:
            frames = self._h2.receive_data(self._joiner.join(data))
        except exceptions.ProtocolError as broken:
            return [self._end(f"the peer broke HTTP/2: {broken}")]
        found: list[Event] = []
        for frame in frames:
            try:
                found += self._event(frame)
            except exceptions.ProtocolError as broken:
                found.append(self._end(f"the peer broke HTTP/2: {broken}"))
            if found and isinstance(found[-1], ConnectionEnded):
                break
        return found

    def _event(self, frame: object) -> Iterable[Event]:
        match frame:
            case events.RequestReceived():
                return self._opened(frame)
            case events.DataReceived():
                return self._data(frame)
            case events.StreamEnded():
                return self._half_closed(frame.stream_id or 0)
            case events.StreamReset():
                return self._reset(frame.stream_id or 0)
            case events.WindowUpdated():
                return self._window(frame.stream_id or 0)
            case events.RemoteSettingsChanged():
                return self._window(0)
            case events.ConnectionTerminated():
                return [self._end("")]
        return []

    def _opened(self, request: Any) -> Iterable[Event]:
        number = request.stream_id
        headers = dict(reversed(request.headers))  # of several of one name the first counts
        self._calls[number] = _Http2Stream()
        kind = headers.get(b"content-type", b"")
        if headers.get(b":method") != b"POST" or _CONTENT_TYPE.match(kind) is None:
            self._refuse_http(number, b"415")
            return []
        timeout, timeout_ms = headers.get(b"grpc-timeout"), None
        if timeout is not None:
            legal = _TIMEOUT.fullmatch(timeout)
            if legal is None:
                self.finish(number, Status(Code.INTERNAL, "grpc-timeout is malformed"))
                return []
            timeout_ms = int(legal[1]) * _TIMEOUT_MS[legal[2]]
        path, proof = headers[b":path"].decode("ascii", "replace"), headers.get(b"authorization")
        authorization = None if proof is None else proof.decode("ascii", "replace")
        return [CallOpened(number, path, timeout_ms, authorization)]

    def _data(self, frame: Any) -> Iterable[Event]:
        """Cut a frame's data into messages.

        The beginning of a message gives its part of the window back at once, because a message may
        be larger than the window. A whole message gives its last part back when it was handled.
        """
        number, unclaimed = frame.stream_id, frame.flow_controlled_length or 0
        call = self._calls.get(number)
        if call is None or call.status is not None:  # answered already: the rest is dropped
            self.used(number, unclaimed)
            return []
        before, at = len(call.received), 0
        if before:
            call.received += frame.data
        received = call.received if before else frame.data
        size = len(received)
        payloads: list[bytes] = []
        windows: list[int] = []
        while size - at >= PREFIX_BYTES:
            compression, length = _PREFIX.unpack_from(received, at)
            if compression or length > self._limits.message_bytes_max:
                self.finish(number, self._problem(compression, length))
                break
            start = at + PREFIX_BYTES
            end = start + length
            if size < end:
                break
            payloads.append(bytes(received[start:end]))
            windows.append(end - at)
            at = end
        if windows:
            windows[0] -= before  # which were given back when they came
        if before:
            del call.received[:at]
        elif call.status is None:
            call.received += received[at:]
        if before or call.received:
            self._goes_on(number, call, size - before, is_new=bool(windows))
        self.used(number, unclaimed - sum(windows))
        found: list[Event] = [MessagesArrived(number, payloads, windows)] if payloads else []
        return found if call.status is None else [*found, CallEnded(number)]

    def _goes_on(self, number: int, call: _Http2Stream, arrived: int, *, is_new: bool) -> None:
        """Note that a part of a message came; refuse the message if too much is kept."""
        self._count(call)
        if self._share.is_too_much:
            self.finish(number, TOO_MUCH)
        if is_new or not call.received:
            call.progress = None
        if call.received:
            call.progress = call.progress or MessageProgress()
            call.progress.arrived_bytes += arrived

    def _count(self, call: _Http2Stream) -> None:
        self._share.add(len(call.received) - call.counted_bytes)
        call.counted_bytes = len(call.received)

    def keep(self, size: int) -> bool:
        """Count a whole message that has to wait, or no more if ``size`` is negative.

        Returns False if that is too much: then the message was not counted.
        """
        self._share.add(size)
        if size > 0 and self._share.is_too_much:
            self._share.add(-size)
            return False
        return True

    @property
    def has_calls(self) -> bool:
        """Whether a call is open, or bytes of a call that has ended wait for the peer's window."""
        return bool(self._calls)

    @property
    def keeps(self) -> bool:
        """Whether messages wait, whole or not."""
        return self._share.size > 0

    def late(self, now_s: float) -> list[int]:
        """Return the calls whose message has begun and does not go on, though the peer may send."""
        return [
            number
            for number, call in self._calls.items()
            if call.progress is not None
            and call.received
            and call.progress.is_late(now_s, partial(self._is_held_back, number))
        ]

    def _is_held_back(self, number: int) -> bool:
        """Tell whether the peer has to wait, because messages that it sent are not handled yet."""
        try:
            return self._h2.remote_flow_control_window(number) < STEP_BYTES
        except exceptions.ProtocolError:  # the call ends just now
            return True

    def lost(self) -> None:
        """Note that the connection has ended: nothing is kept for it."""
        self._share.close()

    def _problem(self, compression: int, length: int) -> Status:
        if compression:
            return Status(
                Code.UNIMPLEMENTED, "the message is compressed: send it without compression"
            )
        return Status(
            Code.RESOURCE_EXHAUSTED,
            f"a message of {length} bytes exceeds {self._limits.message_bytes_max} bytes",
        )

    def _half_closed(self, number: int) -> Iterable[Event]:
        call = self._calls.get(number)
        if call is None:
            return []
        call.half_closed = True
        if call.received and call.status is None:
            self.finish(number, Status(Code.INTERNAL, "the call ended in the middle of a message"))
            return []
        self._forget_if_over(number, call)
        return [HalfClosed(number)] if call.status is None else []

    def _reset(self, number: int) -> Iterable[Event]:
        call = self._calls.pop(number, None)
        if call is not None:
            call.received.clear()
            self._count(call)
        self._resets += 1
        if self._resets > self._limits.resets_max:
            code = errors.ErrorCodes.ENHANCE_YOUR_CALM
            return [self._end("the peer resets too many calls", code)]
        return [CallEnded(number)] if call is not None else []

    def _window(self, number: int) -> Iterable[Event]:
        numbers = [number] if number else list(self._calls)
        return [Drained(one) for one in numbers if self._flush(one)]

    def _end(self, reason: str, code: Any = errors.ErrorCodes.PROTOCOL_ERROR) -> ConnectionEnded:
        if not self._ended:
            self._ended = True
            for call in self._calls.values():
                self._share.add(-call.counted_bytes)
            self._calls.clear()
            with suppress(exceptions.ProtocolError):  # h2 has ended it already
                self._h2.close_connection(code if reason else errors.ErrorCodes.NO_ERROR)
        return ConnectionEnded(reason)

    # ------------------------------------------------------------------ to the socket

    def take_output(self) -> bytes:
        """Return the bytes to write now."""
        output = cut(self._h2.data_to_send(), self._h2.remote_settings.max_frame_size)
        if self._pongs:
            output, self._pongs = output + self._pongs, b""
        return output

    def waiting_bytes(self, call: int) -> int:
        """Return how many bytes of a call wait for the peer's window."""
        found = self._calls.get(call)
        return found.waiting_bytes if found is not None else 0

    def is_open(self, call: int) -> bool:
        """Tell whether an answer in this call can still be sent."""
        found = self._calls.get(call)
        return found is not None and found.status is None

    def accept(self, call: int) -> None:
        """Send the headers of the answer."""
        found = self._calls.get(call)
        if found is not None and not found.accepted and found.status is None:
            found.accepted = True
            self._h2.send_headers(
                call, [(b":status", b"200"), (b"content-type", b"application/grpc")]
            )

    def send(self, call: int, messages: Messages) -> None:
        """Send messages; what the window refuses waits."""
        found = self._calls.get(call)
        if found is None or found.status is not None:
            return
        self.accept(call)
        if messages:
            found.waiting.append(memoryview(messages))
            found.waiting_bytes += len(messages)
            self._flush(call)

    def finish(self, call: int, status: Status) -> None:
        """End a call after its waiting bytes are sent; do nothing if it has ended already."""
        found = self._calls.get(call)
        if found is None or found.status is not None:
            return
        found.status = status
        found.received.clear()
        self._count(found)
        self._flush(call)

    def close(self) -> None:
        """Tell the peer that no new call is taken."""
        if not self._ended:
            self._ended = True
            self._h2.close_connection()

    def _flush(self, number: int) -> bool:
        """Send what the peer's window takes; tell whether something waited and nothing does now."""
        call = self._calls.get(number)
        if call is None:
            return False
        waited = bool(call.waiting)
        try:
            self._h2.max_outbound_frame_size = _SENT_BYTES_MAX  # of data: `take_output` cuts it
            while call.waiting:
                room = min(self._h2.local_flow_control_window(number), _SENT_BYTES_MAX)
                if room <= 0:
                    return False
                self._h2.send_data(number, _cut(call, room))
            if call.status is not None:
                self._send_status(number, call)
        except exceptions.StreamClosedError:
            self._calls.pop(number, None)
            return False
        finally:
            self._h2.max_outbound_frame_size = self._h2.remote_settings.max_frame_size
        return waited

    def _send_status(self, number: int, call: _Http2Stream) -> None:
        assert call.status is not None, "no status"
        trailers = [(b"grpc-status", str(int(call.status.code)).encode())]
        if call.status.message:  # bounded: hpack takes a time that grows with the text's square
            text = quote(bounded_text(call.status.message), safe=_SAFE_IN_TEXT)
            trailers.append((b"grpc-message", text.encode()))
        if not call.accepted:
            call.accepted = True
            trailers = [(b":status", b"200"), (b"content-type", b"application/grpc"), *trailers]
        self._h2.send_headers(number, trailers, end_stream=True)
        self._forget_if_over(number, call)

    def _forget_if_over(self, number: int, call: _Http2Stream) -> None:
        """Forget a call that is answered; tell a caller that still sends to stop."""
        if call.status is None or call.waiting:
            return
        self._calls.pop(number, None)
        self._resets = max(0, self._resets - 1)
        if not call.half_closed:
            self._stop_caller(number)

    def _refuse_http(self, number: int, status: bytes) -> None:
        self._h2.send_headers(number, [(b":status", status)], end_stream=True)
        self._calls.pop(number, None)
        self._stop_caller(number)

    def _stop_caller(self, number: int) -> None:
        """Tell the caller of an answered call to send no more."""
        with suppress(exceptions.StreamClosedError):  # its last frame is here, and not handled yet
            self._h2.reset_stream(number, errors.ErrorCodes.NO_ERROR)

    def used(self, number: int, size: int) -> None:
        """Let the peer send as many bytes again in a call as a handled message had."""
        if size <= 0 or self._ended:
            return
        with suppress(exceptions.StreamClosedError, exceptions.NoSuchStreamError):
            self._h2.acknowledge_received_data(size, number)


def prefixed(payload: bytes) -> bytes:
    """Return a message with its prefix: not compressed, and its length."""
    return b"\0" + len(payload).to_bytes(4, "big") + payload


def _cut(call: _Http2Stream, room: int) -> bytes:
    """Take up to ``room`` waiting bytes, joined: one frame for many small messages."""
    parts: list[memoryview] = []
    while call.waiting and room:
        first = call.waiting[0]
        if len(first) <= room:
            parts.append(call.waiting.popleft())
        else:
            parts.append(first[:room])
            call.waiting[0] = first[room:]
        room -= len(parts[-1])
    frame = b"".join(parts)
    call.waiting_bytes -= len(frame)
    return frame
