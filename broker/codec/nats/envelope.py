"""Liftbridge's envelope: the fixed header before every structured payload on NATS.

    0        4     5     6       7      8         12
    | magic  | ver | len | flags | type | crc32c? | payload ...      big-endian

``len`` is 8, or 12 when flag bit 0 says that a CRC-32C of the payload follows. On a stream's
subject, bytes that do not parse as an envelope are no error: they are a plain message and are
stored as they are. The payloads are protobuf, encoded in broker/adapters/nats/
liftbridge_messages.py. This module has only their values, in our units (half-open offsets,
microseconds).
"""

from __future__ import annotations

import struct
from dataclasses import dataclass
from enum import Enum, IntEnum
from typing import Final

from broker.codec.checksum import crc32c
from broker.errors import EnvelopeError
from broker.model.offsets import Offset
from broker.model.records import AckPolicy, Headers

MAGIC: Final = b"\xb9\x0e\x43\xb4"
VERSION: Final = 0
_HEADER: Final = struct.Struct(">4sBBBB")
_CRC: Final = struct.Struct(">I")
HEADER_SIZE: Final = 8
HEADER_SIZE_WITH_CRC: Final = 12
assert _HEADER.size == HEADER_SIZE
assert _HEADER.size + _CRC.size == HEADER_SIZE_WITH_CRC
_HAS_CRC: Final = 1  # the other flag bits are reserved; we ignore them, as Liftbridge does


class EnvelopeKind(IntEnum):
    """The type of the payload. Clients exchange the first two types, replicas the others."""

    PUBLISH = 0
    ACK = 1
    REPLICATION_REQUEST = 2
    REPLICATION_RESPONSE = 3
    EPOCH_OFFSET_REQUEST = 6
    EPOCH_OFFSET_RESPONSE = 7
    PARTITION_NOTIFICATION = 14


class AckError(Enum):
    """Why a record was not stored, in the error codes that Liftbridge's clients know."""

    OK = "ok"
    UNKNOWN = "unknown"
    INCORRECT_OFFSET = "incorrect_offset"
    TOO_LARGE = "too_large"
    ENCRYPTION = "encryption"


@dataclass(frozen=True, slots=True, kw_only=True)
class Publish:
    """The content of a publisher's envelope. An empty key counts as no key, as in protobuf."""

    key: bytes | None
    value: bytes
    expected_offset: Offset
    headers: Headers = ()
    ack_inbox: str = ""
    correlation_id: str = ""
    ack_policy: AckPolicy = AckPolicy.LEADER


@dataclass(frozen=True, slots=True, kw_only=True)
class Ack:
    """The answer to one published record. A time is microseconds UTC, or 0 if it did not happen."""

    stream: str
    partition_subject: str
    message_subject: str
    offset: Offset
    ack_inbox: str
    correlation_id: str
    ack_policy: AckPolicy
    received_us: int
    committed_us: int
    error: AckError = AckError.OK


def encode(kind: int, payload: bytes, *, checksum: bool = False, extension: bytes = b"") -> bytes:
    """Wrap a payload. Servers send no checksum; they verify the checksum that a client sends.

    An ``extension`` makes the header longer; a reader that does not know it skips it.
    """
    if extension:
        size = HEADER_SIZE + len(extension)
        return b"".join((_HEADER.pack(MAGIC, VERSION, size, 0, kind), extension, payload))
    if checksum:
        head = _HEADER.pack(MAGIC, VERSION, HEADER_SIZE_WITH_CRC, _HAS_CRC, kind)
        return head + _CRC.pack(crc32c(payload)) + payload
    return _HEADER.pack(MAGIC, VERSION, HEADER_SIZE, 0, kind) + payload


def decode(frame: bytes, kind: int) -> bytes:
    """Unwrap a payload of this kind. Raises EnvelopeError for every other input, nothing else."""
    return frame[_header_size(frame, kind) :]


def decode_extended(frame: bytes, kind: int) -> tuple[memoryview, memoryview]:
    """Return the header's extension, which may be empty, and the payload, as views.

    Raises:
        EnvelopeError: as :func:`decode`.
    """
    size = _header_size(frame, kind)
    view = memoryview(frame)
    return view[HEADER_SIZE:size], view[size:]


def _header_size(frame: bytes, kind: int) -> int:
    """Check an envelope's header and checksum; return the size of the header."""
    if len(frame) < HEADER_SIZE or not frame.startswith(MAGIC):
        raise EnvelopeError(f"not an envelope: {frame[:HEADER_SIZE].hex()}")
    _, version, header_size, flags, found = _HEADER.unpack_from(frame)
    if version != VERSION:
        raise EnvelopeError(f"envelope version {version} is not known; this build reads {VERSION}")
    # The length is one byte, up to 255. Liftbridge does not check it and may read past the end.
    if not HEADER_SIZE <= header_size <= len(frame):
        raise EnvelopeError(f"an envelope of {len(frame)} bytes has no header of {header_size}")
    if found != kind:
        raise EnvelopeError(f"the envelope has type {found}, expected type {kind}")
    if flags & _HAS_CRC:
        if header_size != HEADER_SIZE_WITH_CRC:
            raise EnvelopeError(f"a checksum needs a header of 12 bytes, not {header_size}")
        checksum = crc32c(memoryview(frame)[header_size:])
        if checksum != _CRC.unpack_from(frame, HEADER_SIZE)[0]:
            raise EnvelopeError("envelope checksum mismatch")
    return int(header_size)
