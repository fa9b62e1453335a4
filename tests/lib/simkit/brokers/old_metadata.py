"""The metadata folder of release 0.1's single broker, written byte by byte."""

from __future__ import annotations

import struct
from collections.abc import Sequence
from typing import Final

from broker.codec.checksum import crc32c
from broker.core.metadata.state import MetadataState

_HEAD: Final = struct.Struct("<IIQ")
_CRC: Final = struct.Struct("<I")
_INDEX: Final = struct.Struct("<Q")


def journal_entry(index: int, command: bytes) -> bytes:
    """Return a command as it stood in the journal."""
    head = _HEAD.pack(len(command), crc32c(command), index)
    return head + _CRC.pack(crc32c(head)) + command


def journal_of(commands: Sequence[bytes], *, first: int = 1) -> bytes:
    """Return a whole journal."""
    return b"".join(journal_entry(first + at, one) for at, one in enumerate(commands))


def snapshot_of(state: MetadataState, index: int) -> bytes:
    """Return a snapshot of a state."""
    body = _INDEX.pack(index) + state.to_json().encode()
    return _CRC.pack(crc32c(body)) + body
