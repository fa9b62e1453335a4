"""Joins HTTP/2's DATA frames before the library h2 reads them.

A client of PublishAsync sends a frame for each message, and h2 takes about 15 µs for a frame. Where
a frame of plain data ends means nothing in HTTP/2: neighbours of one call may be one frame. So a
read of the socket with a hundred small messages becomes one frame, and h2 still checks every byte.

Source: RFC 9113, sections 3.4, 4.1 and 6.1.
"""

from __future__ import annotations

import struct
from typing import Final

_PREFACE_BYTES: Final = 24  # that a client sends before its first frame
_HEAD: Final = struct.Struct(">BHBBI")  # of a frame: length (3 bytes), type, flags, stream
_HEAD_BYTES: Final = _HEAD.size
_LOW_BITS: Final = 16  # of the length, in the second number of a head


class DataFrameJoiner:
    """The frames of one connection, in order. It keeps less than one legal frame."""

    def __init__(self, frame_bytes_max: int) -> None:
        """``frame_bytes_max`` is the longest legal frame; no joined frame is longer."""
        self._frame_bytes_max = frame_bytes_max
        self._preface_left = _PREFACE_BYTES
        self._held = b""  # the beginning of a frame
        self._is_broken = False

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
            high, low = divmod(self.length, 1 << _LOW_BITS)
            self._parts.append(_HEAD.pack(high, low, 0, 0, self.stream))
            self._parts += self.bodies
            self.bodies.clear()
            self.length = 0
