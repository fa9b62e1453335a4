"""Frames between two brokers: several lanes (priority classes) of messages over one connection.

     0               4                8         9      10     12
    | payload bytes | message bytes | version | lane | zero | payload ...      little-endian

A message is cut into frames of at most 256 KiB, so that a message of a more urgent lane never waits
for long. The frames of a lane stay in order: a frame continues the unfinished message of its lane,
or begins a new message of ``message bytes``. Both lengths are checked against bounds before they
are used. Memory grows with the bytes that arrived, not with the length that a frame announces.
Bytes that are not such a frame raise EnvelopeError.
"""

from __future__ import annotations

import struct
from collections.abc import Iterator
from dataclasses import dataclass
from enum import IntEnum
from typing import Final

from broker.codec.record_batch import BODY_BYTES_MAX
from broker.errors import EnvelopeError

VERSION: Final = 1
_HEADER: Final = struct.Struct("<IIBBH")
_LENGTH: Final = struct.Struct("<I")
FRAME_HEADER_SIZE: Final = 12
assert _HEADER.size == FRAME_HEADER_SIZE
PAYLOAD_BYTES_MAX: Final = 256 * 1024
_STAGING_BYTES: Final = 64 * 1024
_STAGED_BYTES_MAX: Final = 16 * 1024  # a larger payload is read directly into its message
_FIRST_BYTES_MAX: Final = 1024 * 1024  # the most memory that is allocated before bytes arrive


class LaneKind(IntEnum):
    """The lane of a message; a lane with a lower number is sent first."""

    RAFT = 0
    CONTROL = 1
    REPLICA = 2
    WRITES = 3  # handed to leaders; only to builds that know it: FEATURE_LEVEL_LIFTBRIDGE


LANE_BYTES_MAX: Final = {
    LaneKind.RAFT: 1024 * 1024,
    LaneKind.CONTROL: 64 * 1024,
    LaneKind.REPLICA: BODY_BYTES_MAX + 1024 * 1024,  # one answer holds even the largest batch
    LaneKind.WRITES: BODY_BYTES_MAX + 1024 * 1024,
}


def encode_frame_header(lane: LaneKind, payload_bytes: int, message_bytes: int) -> bytes:
    """Return the header of a frame."""
    return _HEADER.pack(payload_bytes, message_bytes, VERSION, lane, 0)


@dataclass(slots=True)
class _Unfinished:
    """A message of which ``got`` bytes have arrived."""

    size: int
    buffer: bytearray
    got: int = 0

    def room(self, size: int) -> memoryview:
        """Return space for the next ``size`` bytes; a buffer that must grow at least doubles."""
        if self.got + size > len(self.buffer):
            larger = bytearray(min(self.size, max(2 * len(self.buffer), self.got + size)))
            larger[: self.got] = memoryview(self.buffer)[: self.got]
            self.buffer = larger
        return memoryview(self.buffer)[self.got : self.got + size]


class FrameAssembler:
    """Turns the bytes of one connection into messages.

    The caller reads from the socket into :attr:`target`, then passes the number of bytes to
    :meth:`received`. Small frames are collected in a staging buffer, many per read. A large payload
    is read directly into its message.
    """

    def __init__(self) -> None:
        """Expect the first byte of a frame."""
        self._staging = memoryview(bytearray(_STAGING_BYTES))
        self._staged = 0
        self._direct: memoryview | None = None  # the rest of a large payload
        self._direct_lane = LaneKind.RAFT
        self._unfinished: dict[LaneKind, _Unfinished] = {}

    @property
    def target(self) -> memoryview:
        """The buffer for the next bytes; never empty."""
        return self._staging[self._staged :] if self._direct is None else self._direct

    @property
    def is_within_frame(self) -> bool:
        """Tell whether a frame has begun and is not complete."""
        return self._direct is not None or self._staged > 0

    def received(self, size: int) -> Iterator[tuple[LaneKind, memoryview]]:
        """Take ``size`` bytes that were read into the target; yield the messages they complete.

        Raises:
            EnvelopeError: the bytes are not a frame; the connection cannot be read any further.
        """
        if self._direct is not None:
            self._direct = self._direct[size:]
            if not len(self._direct):
                self._direct = None
                yield from self._finish(self._direct_lane)
            return
        self._staged += size
        at = 0
        while (left := self._staged - at) >= _LENGTH.size:
            frame = self._header(at, left)
            if frame is None:
                break
            lane, payload_bytes, message_bytes = frame
            begin = at + FRAME_HEADER_SIZE
            arrived = min(payload_bytes, self._staged - begin)
            if arrived < payload_bytes <= _STAGED_BYTES_MAX:
                break
            if payload_bytes == message_bytes and arrived == payload_bytes:
                at = begin + arrived
                yield lane, memoryview(bytes(self._staging[begin:at]))
                continue
            room = self._begun(lane, message_bytes).room(payload_bytes)
            room[:arrived] = self._staging[begin : begin + arrived]
            at = begin + arrived
            self._unfinished[lane].got += payload_bytes
            if arrived < payload_bytes:
                self._direct, self._direct_lane = room[arrived:], lane
                break
            yield from self._finish(lane)
        rest = bytes(self._staging[at : self._staged])
        self._staging[: len(rest)] = rest
        self._staged = len(rest)

    def _header(self, at: int, left: int) -> tuple[LaneKind, int, int] | None:
        """Check the part of a frame's header that has arrived; None while more of it is missing."""
        (payload_bytes,) = _LENGTH.unpack_from(self._staging, at)
        if not 0 < payload_bytes <= PAYLOAD_BYTES_MAX:
            raise EnvelopeError(f"a frame of {payload_bytes} bytes is out of bounds")
        if left < FRAME_HEADER_SIZE:
            return None
        _, message_bytes, version, lane_number, zero = _HEADER.unpack_from(self._staging, at)
        if version != VERSION or zero or lane_number not in LANE_BYTES_MAX:
            raise EnvelopeError(
                f"not a frame of version {VERSION} and a known lane: version {version}, lane "
                f"{lane_number}"
            )
        lane = LaneKind(lane_number)
        unfinished = self._unfinished.get(lane)
        missing = message_bytes
        if unfinished is not None:
            missing = unfinished.size - unfinished.got
            if message_bytes != unfinished.size:
                raise EnvelopeError(
                    "a frame begins a message before its lane's last message is complete"
                )
        if message_bytes > LANE_BYTES_MAX[lane] or payload_bytes > missing:
            raise EnvelopeError(f"a message of {message_bytes} bytes is out of bounds")
        return lane, payload_bytes, message_bytes

    def _begun(self, lane: LaneKind, size: int) -> _Unfinished:
        found = self._unfinished.get(lane)
        if found is None:
            found = _Unfinished(size, bytearray(min(size, _FIRST_BYTES_MAX)))
            self._unfinished[lane] = found
        return found

    def _finish(self, lane: LaneKind) -> Iterator[tuple[LaneKind, memoryview]]:
        """Yield the lane's message if its last frame has ended."""
        unfinished = self._unfinished[lane]
        if unfinished.got == unfinished.size:
            del self._unfinished[lane]
            yield lane, memoryview(unfinished.buffer).toreadonly()
