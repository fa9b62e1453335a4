"""Joins HTTP/2's DATA frames before the library h2 reads them, and cuts them after it wrote them.

h2 takes about as long for a frame of ten bytes as for a long one. A client of PublishAsync sends a
frame for each message. Where a frame of plain data ends means nothing in HTTP/2: neighbours of one
call may be one frame. So a read of the socket with a hundred small messages becomes one frame, and
h2 still checks every byte. Most clients take frames of 16 KiB. So h2 writes one long frame for a
subscriber, and here it becomes frames that the client takes.

Source: RFC 9113, sections 3.4, 4.1, 4.3, 6.1 and 6.7.
"""

from __future__ import annotations

import struct
from typing import Final

_PREFACE_BYTES: Final = 24  # that a client sends before its first frame
_HEAD: Final = struct.Struct(">BHBBI")  # of a frame: length (3 bytes), type, flags, stream
_HEAD_BYTES: Final = _HEAD.size
_LOW_BITS: Final = 16  # of the length, in the second number of a head
_HEADERS: Final = (0x1, 0x9)  # HEADERS and CONTINUATION
_END_HEADERS: Final = 0x4
_PING_HEAD: Final = _HEAD.pack(0, 8, 0x6, 0, 0)
_PONG_HEAD: Final = _HEAD.pack(0, 8, 0x6, 0x1, 0)  # a PING that answers one
_PING_BYTES: Final = _HEAD_BYTES + 8


class DataFrameJoiner:
    """The frames of one connection, in order. It keeps less than one legal frame."""

    def __init__(self, frame_bytes_max: int) -> None:
        """``frame_bytes_max`` is the longest legal frame; no joined frame is longer."""
        self._frame_bytes_max = frame_bytes_max
        self._preface_left = _PREFACE_BYTES
        self._held = b""  # the beginning of a frame
        self._in_headers = False  # a header block goes on in the next frame
        self._is_broken = False

    def pong(self, data: bytes) -> bytes | None:
        """Return the answer to a PING that came alone, with nothing unfinished before it.

        None: h2 has to read the data. Go's clients send a PING with nearly every answer that they
        get, to measure the connection, and h2 takes 100 µs to answer it.
        """
        if len(data) != _PING_BYTES or not data.startswith(_PING_HEAD):
            return None
        if self._preface_left or self._held or self._in_headers or self._is_broken:
            return None
        return _PONG_HEAD + data[_HEAD_BYTES:]

    def join(self, data: bytes) -> bytes:
        """Return what h2 has to read now: whole frames, with neighbours of plain data joined.

        A frame that is too long is not waited for: from there on all bytes are returned as they
        came, and h2 refuses them.
        """
        if self._is_broken:
            return data
        preface = data[: self._preface_left]
        self._preface_left -= len(preface)
        held = self._held + data[len(preface) :]
        parts: list[bytes] = [preface]
        plain = _PlainData(parts)
        add, longest, unpack = plain.bodies.append, self._frame_bytes_max, _HEAD.unpack_from
        at, size = 0, len(held)
        while size - at >= _HEAD_BYTES:
            high, low, kind, flags, stream = unpack(held, at)
            length = high << _LOW_BITS | low
            if length > longest:
                self._is_broken = True
                break
            end = at + _HEAD_BYTES + length
            if end > size:
                break
            if kind or flags or not length:  # padded, the last frame of its call, or no data
                plain.end()
                parts.append(held[at:end])
                if kind in _HEADERS:
                    self._in_headers = not flags & _END_HEADERS
            else:
                if stream != plain.stream or plain.length + length > longest:
                    plain.end()
                    plain.stream = stream
                add(held[at + _HEAD_BYTES : end])
                plain.length += length
            at = end
        plain.end()
        self._held = held[at:]
        if self._is_broken:
            parts.append(self._held)
            self._held = b""
        return b"".join(parts)


def cut(frames: bytes, frame_bytes_max: int) -> bytes:
    """Return whole frames, of which longer ones of plain data are cut into legal ones."""
    size = len(frames)
    if size <= _HEAD_BYTES + frame_bytes_max:
        return frames
    whole, parts, at = memoryview(frames), list[bytes | memoryview](), 0
    while at < size:
        high, low, kind, flags, stream = _HEAD.unpack_from(frames, at)
        start = at + _HEAD_BYTES
        end = start + (high << _LOW_BITS | low)
        if kind or flags or end - start <= frame_bytes_max:
            parts.append(whole[at:end])
        else:
            for begin in range(start, end, frame_bytes_max):
                piece = whole[begin : min(end, begin + frame_bytes_max)]
                parts += (_data_head(len(piece), stream), piece)
        at = end
    return b"".join(parts)


def _data_head(length: int, stream: int) -> bytes:
    high, low = divmod(length, 1 << _LOW_BITS)
    return _HEAD.pack(high, low, 0, 0, stream)


class _PlainData:
    """Neighbouring frames of one call's data, which become one frame of ``parts``."""

    def __init__(self, parts: list[bytes]) -> None:
        self._parts = parts
        self.bodies: list[bytes] = []
        self.stream = 0
        self.length = 0

    def end(self) -> None:
        """Put the joined frame behind the other parts."""
        if self.bodies:
            self._parts.append(_data_head(self.length, self.stream))
            self._parts += self.bodies
            self.bodies.clear()
            self.length = 0
