"""The whole metadata state as bounded bytes, and its hash.

    | magic "HWMS" | format u16 | 0 u16 | index u64 | state hash 32 B | length u64 | head crc u32 |
    | JSON ... |

Little-endian; the CRC-32C covers the head before it. The hash is BLAKE2b of the canonical JSON. It
has two uses: it checks the JSON, and two nodes that applied the same log can compare 32 bytes. A
node with another hash at the same index has diverged and must stop.
"""

from __future__ import annotations

import hashlib
import struct
from typing import Final

from broker.codec.checksum import crc32c
from broker.core.metadata.size import SNAPSHOT_BYTES_MAX
from broker.core.metadata.state import FEATURE_LEVEL_MAX, MetadataState
from broker.errors import FeatureLevelError, InvalidRequestError, MetadataCorruptError

MAGIC: Final = b"HWMS"
FORMAT: Final = 1
_HEAD: Final = struct.Struct("<4sHHQ32sQ")
_CRC: Final = struct.Struct("<I")
_BODY_AT: Final = _HEAD.size + _CRC.size


def state_hash(state: MetadataState) -> bytes:
    """Return 32 bytes that are equal on every node that applied the same log."""
    return _hash(state.to_json().encode())


def encode_snapshot(state: MetadataState, index: int) -> bytes:
    """Return the state at log entry ``index`` as bytes.

    Raises:
        InvalidRequestError: the state is larger than a node accepts when it reads a snapshot.
    """
    body = state.to_json().encode()
    if len(body) > SNAPSHOT_BYTES_MAX:
        raise InvalidRequestError(
            f"a metadata state of {len(body)} bytes exceeds the limit of {SNAPSHOT_BYTES_MAX}"
        )
    head = _HEAD.pack(MAGIC, FORMAT, 0, index, _hash(body), len(body))
    return head + _CRC.pack(crc32c(head)) + body


def decode_snapshot(data: bytes) -> tuple[MetadataState, int]:
    """Return the state and its index.

    Raises:
        MetadataCorruptError: the bytes are not a whole, undamaged snapshot.
        FeatureLevelError: the state needs a newer build.
    """
    if not _BODY_AT <= len(data) <= _BODY_AT + SNAPSHOT_BYTES_MAX:
        raise MetadataCorruptError(f"a metadata snapshot cannot have {len(data)} bytes")
    magic, version, reserved, index, digest, length = _HEAD.unpack_from(data)
    body = data[_BODY_AT:]
    if _CRC.unpack_from(data, _HEAD.size)[0] != crc32c(data[: _HEAD.size]):
        raise MetadataCorruptError("the head of the metadata snapshot fails its checksum")
    if magic != MAGIC or version != FORMAT or reserved:
        raise MetadataCorruptError(f"not a metadata snapshot of format {FORMAT}")
    if length != len(body) or _hash(body) != digest:
        raise MetadataCorruptError("the metadata snapshot fails its checksum")
    state = MetadataState.from_json(body.decode(errors="replace"))
    require_supported(state)
    return state, index


def require_supported(state: MetadataState) -> None:
    """Refuse a state whose feature level this build does not understand.

    Raises:
        FeatureLevelError: the feature level is above ``FEATURE_LEVEL_MAX``.
    """
    if state.feature_level > FEATURE_LEVEL_MAX:
        raise FeatureLevelError(
            f"the cluster is at feature level {state.feature_level}; this build understands levels "
            f"up to {FEATURE_LEVEL_MAX}: install the release that the other brokers run",
            level=state.feature_level,
            features_max=FEATURE_LEVEL_MAX,
        )


def _hash(body: bytes) -> bytes:
    return hashlib.blake2b(body, digest_size=32).digest()
