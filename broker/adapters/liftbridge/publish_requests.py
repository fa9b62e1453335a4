"""Reads PublishRequest messages, many of which differ only in their value and correlation id.

Protobuf made an object for each message, and each field of it was read by a call: a third of a
publisher's time. A publisher's messages have the same fields, so a message whose bytes are those of
an earlier one, except within the value and the correlation id, is cut where the earlier one was.
All other messages are read by protobuf.

Why a cut is safe: the length of the message and every byte outside of the two fields are equal, so
protobuf reads the same tags and lengths at the same places. Source: protobuf's encoding.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from operator import attrgetter
from typing import Final, NamedTuple

from google.protobuf.message import DecodeError

from broker.errors import InvalidRequestError
from broker.model.records import AckPolicy
from broker.wire.liftbridge import api_pb2 as api
from broker.wire.liftbridge import message_pb2 as wire

POLICIES: Final = {
    wire.LEADER: AckPolicy.LEADER,
    wire.ALL: AckPolicy.ALL,
    wire.NONE: AckPolicy.NONE,
}
_LEARNT_MAX: Final = 256  # messages of a connection that later ones are compared with
_LEARNT_BYTES_MAX: Final = 512  # of each, beside the two fields: what a connection keeps is bounded
_WINDOW_BYTES: Final = attrgetter("window_bytes")
_VALUE: Final = 2
_CORRELATION_ID: Final = 7
_BYTES: Final = 2  # protobuf's wire type of a field with a length
_VARINT: Final = 0


@dataclass(frozen=True, slots=True)
class Envelope:
    """What a PublishRequest says beside its value and its correlation id."""

    stream: str
    partition: int
    key: bytes = b""
    headers: Mapping[str, bytes] = field(default_factory=dict)
    ack_inbox: str = ""
    ack_policy: wire.AckPolicy = wire.LEADER
    expected_offset: int = 0

    @property
    def target(self) -> tuple[str, int]:
        """Stream and partition."""
        return self.stream, self.partition

    @property
    def size_bytes(self) -> int:
        """Bytes of the key and the headers, as they count in a record's size."""
        return len(self.key) + sum(
            len(name.encode()) + len(value) for name, value in self.headers.items()
        )


@dataclass(slots=True)
class Published:
    """One message that waits for its outcome."""

    envelope: Envelope
    value: bytes
    correlation_id: str
    request_bytes: int  # at least the bytes of its record
    window_bytes: int
    received_us: int
    waits_until_ms: int | None = None  # for a leader, by the monotonic clock; None: does not wait


def window_bytes_of(messages: Iterable[Published]) -> int:
    """Return what messages give back to their connection's window."""
    return sum(map(_WINDOW_BYTES, messages))


class _Cut(NamedTuple):
    """Where the two fields lie in a message, as half-open ranges."""

    value_start: int
    value_end: int
    id_start: int
    id_end: int


class RequestReader:
    """Reads the messages of one connection. Not thread-safe."""

    def __init__(self) -> None:
        self._learnt: dict[int, tuple[_Cut, dict[bytes, Envelope]]] = {}  # by a message's length
        self._left = _LEARNT_MAX

    def read(
        self, payloads: Sequence[bytes], windows_bytes: Sequence[int], received_us: int
    ) -> list[Published]:
        """Read messages that came together; ``windows_bytes`` is what each gives back.

        Raises:
            InvalidRequestError: bytes are not a PublishRequest.
        """
        found: list[Published] = []
        for payload, window_bytes in zip(payloads, windows_bytes, strict=True):
            size = len(payload)
            learnt = self._learnt.get(size)
            if learnt is not None:
                (start, end, id_start, id_end), known = learnt
                envelope = known.get(payload[:start] + payload[end:id_start] + payload[id_end:])
                if envelope is not None:
                    value, ident = payload[start:end], _text(payload[id_start:id_end])
                    found.append(Published(envelope, value, ident, size, window_bytes, received_us))
                    continue
            request = _parse(payload)
            envelope = _envelope_of(request)
            if self._left:
                self._learn(payload, envelope)
            value, ident = request.value, request.correlationId
            found.append(Published(envelope, value, ident, size, window_bytes, received_us))
        return found

    def _learn(self, payload: bytes, envelope: Envelope) -> None:
        self._left -= 1
        cut = _cut_of(payload)
        if cut is None:
            return
        rest = payload[: cut.value_start] + payload[cut.value_end : cut.id_start]
        rest += payload[cut.id_end :]
        known = self._learnt.setdefault(len(payload), (cut, {}))
        if known[0] == cut and len(rest) <= _LEARNT_BYTES_MAX:
            known[1][rest] = envelope


def _parse(payload: bytes) -> api.PublishRequest:
    try:
        return api.PublishRequest.FromString(payload)
    except DecodeError as cause:
        raise InvalidRequestError(f"the request is not a PublishRequest: {cause}") from cause


def _text(data: bytes) -> str:
    try:
        return data.decode()
    except UnicodeDecodeError as cause:
        raise InvalidRequestError(
            f"the request is not a PublishRequest: its correlation id is not UTF-8: {cause}"
        ) from cause


def _envelope_of(request: api.PublishRequest) -> Envelope:
    return Envelope(
        stream=request.stream,
        partition=request.partition,
        key=request.key,
        headers=dict(request.headers),
        ack_inbox=request.ackInbox,
        ack_policy=request.ackPolicy,
        expected_offset=request.expectedOffset,
    )


def _cut_of(payload: bytes) -> _Cut | None:
    """Return where a legal message has the two fields, in this order and once each, else None.

    A message may have no correlation id.
    """
    spans: dict[int, tuple[int, int]] = {}
    at = 0
    while at < len(payload):
        tag, at = _varint_at(payload, at)
        number, kind = tag >> 3, tag & 7
        size, end = 0, at
        if kind == _BYTES:
            size, at = _varint_at(payload, at)
            end = at + size
        elif kind == _VARINT:
            _, end = _varint_at(payload, at)
        else:
            return None
        if number in (_VALUE, _CORRELATION_ID):
            if kind != _BYTES or number in spans:
                return None
            spans[number] = (at, end)
        at = end
    spans.setdefault(_CORRELATION_ID, (at, at))
    if list(spans) != [_VALUE, _CORRELATION_ID]:
        return None
    return _Cut(*spans[_VALUE], *spans[_CORRELATION_ID])


def _varint_at(payload: bytes, at: int) -> tuple[int, int]:
    """Return a varint of a legal message, and where it ends."""
    number = shift = 0
    while payload[at] & 0x80:
        number |= (payload[at] & 0x7F) << shift
        at, shift = at + 1, shift + 7
    return number | payload[at] << shift, at + 1
