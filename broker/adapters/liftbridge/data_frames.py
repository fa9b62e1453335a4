"""Joins HTTP/2's DATA frames before the library h2 reads them.

A client of PublishAsync sends a frame for each message, and h2 takes about 15 µs for a frame. Where
a frame of plain data ends means nothing in HTTP/2: neighbours of one call may be one frame. So a
read of the socket with a hundred small messages becomes one frame, and h2 still checks every byte.

Source: RFC 9113, sections 3.4, 4.1 and 6.1.
"""

from __future__ import annotations

from typing import Final

_PREFACE_BYTES: Final = 24  # that a client sends before its first frame
_HEAD_BYTES: Final = 9  # of a frame: length (3), type (1), flags (1), stream (4)
_PLAIN_DATA: Final = b"\0\0"  # type DATA without flags: no padding, and not the call's last frame


class DataFrameJoiner:
    """The frames of one connection, in order. It keeps less than one legal frame."""

    def __init__(self, frame_bytes_max: int) -> None:
        """``frame_bytes_max`` is the longest legal frame; no joined frame is longer."""
        self._frame_bytes_max = frame_bytes_max
        self._preface_left = _PREFACE_BYTES
        self._held = bytearray()  # the beginning of a frame
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
        held = self._held
        held += data[len(preface) :]
        parts: list[bytes] = [preface]
        plain = _PlainData(parts)
        at, size = 0, len(held)
        while size - at >= _HEAD_BYTES:
            body = at + _HEAD_BYTES
            length = int.from_bytes(held[at : at + 3], "big")
            if length > self._frame_bytes_max:
                self._is_broken = True
                break
            end = body + length
            if end > size:
                break
            kind = bytes(held[at + 3 : body])
            if kind[:2] != _PLAIN_DATA or not length:
                plain.end()
                parts.append(bytes(held[at:end]))
            else:
                if kind != plain.kind or plain.length + length > self._frame_bytes_max:
                    plain.end()
                plain.add(kind, bytes(held[body:end]))
            at = end
        plain.end()
        del held[:at]
        if self._is_broken:
            parts.append(bytes(held))
            held.clear()
        return b"".join(parts)


class _PlainData:
    """Neighbouring frames of one call's data, which become one frame of ``parts``."""

    def __init__(self, parts: list[bytes]) -> None:
        self._parts = parts
        self._bodies: list[bytes] = []
        self.kind = b""
        self.length = 0

    def add(self, kind: bytes, body: bytes) -> None:
        self.kind = kind
        self._bodies.append(body)
        self.length += len(body)

    def end(self) -> None:
        if self._bodies:
            self._parts += (self.length.to_bytes(3, "big"), self.kind, *self._bodies)
            self._bodies, self.kind, self.length = [], b"", 0
