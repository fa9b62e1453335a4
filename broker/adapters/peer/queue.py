"""The messages to send to one broker: a bounded queue per lane, the most urgent lane first.

This queue has no lock, no clock and no socket: its owner has them. A message is a list of buffers
that do not change any more. Large buffers are sent without a copy.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any, Final

from broker.codec.peer.frames import (
    LANE_BYTES_MAX,
    PAYLOAD_BYTES_MAX,
    LaneKind,
    encode_frame_header,
)

QUEUE_BYTES_MAX: Final = {
    LaneKind.RAFT: 8 * 1024 * 1024,
    LaneKind.CONTROL: 1024 * 1024,
    LaneKind.REPLICA: 64 * 1024 * 1024,
    LaneKind.WRITES: 32 * 1024 * 1024,
}
_MESSAGE_OVERHEAD: Final = 128  # the bytes that each message counts in addition to its own
_WRITE_BYTES: Final = 16 * 1024  # a TLS record: small frames are joined up to this size
_COPIED_BYTES_MAX: Final = 4 * 1024  # a larger buffer is written alone, without a copy


@dataclass(slots=True)
class _Message:
    lane: LaneKind
    buffers: Sequence[Any]
    size: int
    since_s: float
    sent: int = 0
    buffer_index: int = 0
    buffer_at: int = 0

    @property
    def weight(self) -> int:
        return self.size + _MESSAGE_OVERHEAD

    def frame(self) -> list[Any]:
        """Return the next frame: its header, and pieces of the message's buffers."""
        left = min(self.size - self.sent, PAYLOAD_BYTES_MAX)
        self.sent += left
        pieces: list[Any] = [encode_frame_header(self.lane, left, self.size)]
        while left:
            buffer = self.buffers[self.buffer_index]
            size = min(left, len(buffer) - self.buffer_at)
            if size:
                whole = size == len(buffer)
                pieces.append(
                    buffer if whole else memoryview(buffer)[self.buffer_at : self.buffer_at + size]
                )
            left -= size
            self.buffer_at += size
            if self.buffer_at == len(buffer):
                self.buffer_index, self.buffer_at = self.buffer_index + 1, 0
        return pieces


class SendQueue:
    """Takes messages, returns the pieces to write."""

    def __init__(self) -> None:
        """Begin empty."""
        self._lanes: dict[LaneKind, deque[_Message]] = {lane: deque() for lane in LaneKind}
        self._bytes = dict.fromkeys(LaneKind, 0)

    def __bool__(self) -> bool:
        """Tell whether a message waits."""
        return any(self._lanes.values())

    @property
    def waiting_bytes(self) -> int:
        """Bytes of waiting messages, of all lanes."""
        return sum(self._bytes.values())

    def put(self, lane: LaneKind, buffers: Sequence[Any], now_s: float) -> bool:
        """Take a message; return False if the lane is full. An empty lane takes any message."""
        size = sum(map(len, buffers))
        assert 0 < size <= LANE_BYTES_MAX[lane], f"a message of {size} bytes"
        message = _Message(lane, buffers, size, now_s)
        waiting = self._bytes[lane]
        if waiting and waiting + message.weight > QUEUE_BYTES_MAX[lane]:
            return False
        self._bytes[lane] = waiting + message.weight
        self._lanes[lane].append(message)
        return True

    def pieces(self) -> deque[Any]:
        """Take the next frames, as buffers for one write each; empty if no message waits.

        Small frames are joined. The caller must write these buffers whole before any other.
        """
        found: deque[Any] = deque()
        small = bytearray()
        while len(small) < _WRITE_BYTES and (message := self._next()) is not None:
            frame = message.frame()
            if message.sent == message.size:
                self._lanes[message.lane].popleft()
                self._bytes[message.lane] -= message.weight
            for piece in frame:
                if len(piece) <= _COPIED_BYTES_MAX:
                    small += piece
                    continue
                if small:
                    found.append(small)
                    small = bytearray()
                found.append(piece)
            if found:
                break
        if small:
            found.append(small)
        return found

    def connection_lost(self) -> None:
        """Drop partly sent messages: a new connection begins with a whole message."""
        for lane, waiting in self._lanes.items():
            if waiting and waiting[0].sent:
                self._bytes[lane] -= waiting.popleft().weight

    def drop_older(self, than_s: float) -> int:
        """Drop the messages that were put before ``than_s``; return how many were dropped."""
        count = 0
        for lane, waiting in self._lanes.items():
            while waiting and waiting[0].since_s < than_s and not waiting[0].sent:
                self._bytes[lane] -= waiting.popleft().weight
                count += 1
        return count

    def _next(self) -> _Message | None:
        return next((waiting[0] for waiting in self._lanes.values() if waiting), None)
