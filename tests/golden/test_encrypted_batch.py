"""Frozen: an encrypted batch, and the key derived from its data key. It must open for ever."""

from __future__ import annotations

from typing import Final

from broker.codec.record_batch import HEADER_SIZE, PreparedBatch, decode_header, encode_header
from broker.codec.sealed_body import seal, unseal
from broker.keys.derive import derived
from broker.keys.wrapping import WrappingKey
from broker.keys.xaes import Xaes256Gcm
from broker.model.ids import PartitionId, PartitionNumber, ProducerId, StreamUuid

PARTITION: Final = PartitionId(
    StreamUuid("6f1d1c7e-93a4-4c62-8a52-0c2f4a1b7d10"), PartitionNumber(3)
)
KEY: Final = bytes(range(32))
PLAIN: Final = b"an Arrow message"
BATCH: Final = PreparedBatch(
    body=PLAIN,
    body_crc=0,
    records_count=2,
    first_timestamp_us=1_700_000_000_000_000,
    max_timestamp_us=1_700_000_000_000_001,
    columns=0b10,
    codec="zstd",
    producer_id=ProducerId(7),
    base_sequence=3,
)
FROZEN: Final = bytes.fromhex(
    "4857524201580a0029000000000000000400000000000000280000000000000000401e18240a06000140"
    "1e18240a0600070000000000000003000000000000000200000002000000400000007e0c26ce02000000"
    "373fc5e50200000000000000000102030405060708090a0b000102030405060708090a0be880958da82d"
    "08a37fbc49a8a46fd97b7ab5919a3ab9fa7dee32a9cf0e129dfd"
)
WRAPPED: Final = bytes.fromhex(
    "a1323061722b31a7e3633e372b9c76c314afb3deab0044933bf3fb5f0e77acc4bff76b4d720d50472af5"
    "77c895877ce1645151b7a1f104ad51f2effac6af4e1f5fc855be3c3c13b4"
)
CONTEXT: Final = {"headwater:version": "1", "headwater:stream": PARTITION.stream_uuid}


def counted(size: int) -> bytes:
    """Return bytes that count, in place of random ones."""
    return bytes(range(size))


def written() -> bytes:
    """Return the batch as it is written at offset 41 in epoch 4."""
    cipher = Xaes256Gcm(derived(KEY, "batches"), random=counted)
    sealed = seal(BATCH, cipher, 2, partition_id=PARTITION, base_offset=41, leader_epoch=4)
    return encode_header(sealed, base_offset=41, leader_epoch=4, synced_end=40) + bytes(sealed.body)


def test_an_encrypted_batch_has_these_bytes() -> None:
    """Header, key version, nonce, ciphertext and tag."""
    assert written().hex() == FROZEN.hex()


def test_the_frozen_batch_opens() -> None:
    """With the stream's data key of version 2."""
    header, body = decode_header(FROZEN), FROZEN[HEADER_SIZE:]
    cipher = Xaes256Gcm(derived(KEY, "batches"))
    opened, plain = unseal(header, body, {2: cipher}.__getitem__, partition_id=PARTITION)
    assert plain == PLAIN
    assert opened.codec == "zstd"


def test_the_frozen_wrapped_key_opens() -> None:
    """By the wrapping key that keyring and environment share."""
    assert WrappingKey(bytes(32)).unwrap(WRAPPED, CONTEXT) == KEY
