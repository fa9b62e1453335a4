"""The body of an encrypted batch: encrypted as a whole, and bound to its place in the log.

    0             4        8          32
    | key version | 0 u32  | nonce 24 | ciphertext of the Arrow message ... | tag 16 |

Little-endian. The cipher is XAES-256-GCM. The size stays a multiple of 8. The body's CRC in the
header is of these bytes, so scans, followers and promises need no key. The header is not encrypted.
Its values that identify the batch are authenticated with the body, and so are the stream and the
partition. So a body that was moved to another place, or whose header was changed, does not open.
Frozen by tests/golden.
"""

from __future__ import annotations

import struct
from collections.abc import Callable
from dataclasses import replace
from typing import Any, Final, Protocol

from broker.codec.checksum import crc32c
from broker.codec.record_batch import BatchHeader, PreparedBatch
from broker.errors import BatchCorruptError
from broker.model.ids import PartitionId

NONCE_BYTES: Final = 24
TAG_BYTES: Final = 16
_PREFIX: Final = struct.Struct("<II")
SEAL_BYTES: Final = _PREFIX.size + NONCE_BYTES + TAG_BYTES  # a sealed body is longer by this
assert SEAL_BYTES % 8 == 0  # batches begin at multiples of 8
_DOMAIN: Final = b"headwater.batch.1\n"
_FACTS: Final = struct.Struct("<IIqqqqqqIII8s?")


class Aead(Protocol):
    """An authenticated cipher with one key, which draws its own nonces. Any thread."""

    def encrypt(self, data: Any, associated: bytes) -> bytes:
        """Return nonce, ciphertext and tag."""

    def decrypt(self, sealed: Any, associated: bytes) -> bytes:
        """Return what was encrypted; raises ValueError if a byte of either was changed."""


def seal(
    batch: PreparedBatch,
    aead: Aead,
    key_version: int,
    *,
    partition_id: PartitionId,
    base_offset: int,
    leader_epoch: int,
) -> PreparedBatch:
    """Return the batch encrypted for its place in the log."""
    assert not batch.encrypted, "a batch is encrypted once"
    facts = _FACTS.pack(
        partition_id.number, key_version, base_offset, leader_epoch,
        batch.first_timestamp_us, batch.max_timestamp_us, batch.producer_id, batch.base_sequence,
        batch.records_count, batch.records_count, batch.columns, batch.codec.encode(), False,
    )  # fmt: skip
    return replace(
        batch, encrypted=True, **_sealed(batch.body, aead, key_version, partition_id, facts)
    )


def seal_stored(
    header: BatchHeader, body: Any, aead: Aead, key_version: int, *, partition_id: PartitionId
) -> tuple[BatchHeader, bytes]:
    """Return a batch of the log encrypted, for a writer that has rewritten its records."""
    assert not header.encrypted, "a batch is encrypted once"
    facts = _facts(header, key_version, partition_id)
    changed = _sealed(body, aead, key_version, partition_id, facts)
    size = len(changed["body"])
    sealed = replace(header, encrypted=True, body_size=size, body_crc=changed["body_crc"])
    return sealed, changed["body"]


def key_version_of(header: BatchHeader, body: Any) -> int:
    """Return the version of the data key of an encrypted batch; raises BatchCorruptError."""
    if not header.encrypted or len(body) < SEAL_BYTES:
        raise _not_authentic(header, "is too short to be encrypted")
    version, reserved = _PREFIX.unpack_from(body)
    if reserved or not version:
        raise _not_authentic(header, "does not name the key of its body")
    return int(version)


def unseal(
    header: BatchHeader,
    body: Any,
    aead_of: Callable[[int], Aead],
    *,
    partition_id: PartitionId,
) -> tuple[BatchHeader, bytes]:
    """Return an encrypted batch as it was before it was encrypted.

    ``aead_of`` returns the cipher of a version of the stream's data key; its errors are passed on.

    Raises:
        BatchCorruptError: header or body were changed, or belong to another place.
    """
    version = key_version_of(header, body)
    associated = _associated(partition_id, _facts(header, version, partition_id))
    aead = aead_of(version)
    try:
        plain = aead.decrypt(memoryview(body)[_PREFIX.size :], associated)
    except ValueError as cause:
        raise _not_authentic(
            header,
            f"does not open with version {version} of the stream's data key: its bytes were "
            "changed, or they were moved from another place",
        ) from cause
    opened = replace(header, encrypted=False, body_size=len(plain), body_crc=crc32c(plain))
    return opened, plain


def _sealed(
    body: Any, aead: Aead, key_version: int, partition_id: PartitionId, facts: bytes
) -> dict[str, Any]:
    sealed = aead.encrypt(body, _associated(partition_id, facts))
    whole = _PREFIX.pack(key_version, 0) + sealed
    return {"body": whole, "body_crc": crc32c(whole)}


def _facts(header: BatchHeader, key_version: int, partition_id: PartitionId) -> bytes:
    return _FACTS.pack(
        partition_id.number, key_version, header.base_offset, header.leader_epoch,
        header.first_timestamp_us, header.max_timestamp_us, header.producer_id,
        header.base_sequence, header.records_count, header.offset_span, header.columns,
        header.codec.encode(), header.sparse,
    )  # fmt: skip


def _associated(partition_id: PartitionId, facts: bytes) -> bytes:
    return _DOMAIN + partition_id.stream_uuid.encode() + facts


def _not_authentic(header: BatchHeader, what: str) -> BatchCorruptError:
    return BatchCorruptError(
        f"the batch at offset {header.base_offset} {what}", offset=header.base_offset
    )
