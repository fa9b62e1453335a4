"""Encrypted bodies: they open at their place in the log and nowhere else."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import pyarrow as pa
import pytest

from broker.codec.record_batch import (
    HEADER_SIZE,
    BatchHeader,
    PreparedBatch,
    check_body,
    decode_body,
    decode_header,
    encode_header,
    encode_stored,
    prepare,
)
from broker.codec.sealed_body import SEAL_BYTES, seal, seal_stored, unseal
from broker.errors import BatchCorruptError, EncryptionKeyError
from broker.keys.xaes import Xaes256Gcm
from broker.model.ids import PartitionId, PartitionNumber, ProducerId, StreamUuid
from broker.model.offsets import Offset

HERE = PartitionId(StreamUuid("00000000-0000-4000-8000-000000000001"), PartitionNumber(3))
CIPHER = Xaes256Gcm(bytes(32))


def batch(codec: str = "none") -> PreparedBatch:
    """Return three records of a producer."""
    rows = pa.RecordBatch.from_pydict({"value": pa.array([b"secret", b"x" * 99, None])})
    return prepare(rows, now_us=7, codec=codec, producer_id=ProducerId(9), base_sequence=4)


def stored(codec: str = "none") -> tuple[BatchHeader, bytes]:
    """Return it encrypted, as it is in the log at offset 40."""
    sealed = seal(batch(codec), CIPHER, 2, partition_id=HERE, base_offset=40, leader_epoch=5)
    header = encode_header(sealed, base_offset=40, leader_epoch=5, synced_end=31)
    return decode_header(header), bytes(sealed.body)


def opened(header: BatchHeader, body: Any, place: PartitionId = HERE) -> Any:
    """Open it with version 2 of the key."""
    return unseal(header, body, {2: CIPHER}.__getitem__, partition_id=place)


@pytest.mark.parametrize("codec", ["none", "lz4", "zstd"])
def test_a_batch_comes_back(codec: str) -> None:
    """With its checksum, its size and its rows; encrypted, it shows no value."""
    header, body = stored(codec)
    check_body(header, body)
    assert header.encrypted
    assert b"secret" not in body
    assert header.size == HEADER_SIZE + len(batch(codec).body) + SEAL_BYTES
    assert header.size % 8 == 0
    plain, plain_body = opened(header, body)
    assert plain_body == bytes(batch(codec).body)
    check_body(plain, plain_body)
    assert not plain.encrypted
    assert decode_body(plain, plain_body).column("value").to_pylist()[0] == b"secret"
    assert decode_header(encode_stored(header)) == header


def test_equal_batches_look_different() -> None:
    """Nobody sees that a value was repeated."""
    assert stored()[1] != stored()[1]


@pytest.mark.parametrize(
    "change",
    [
        {"base_offset": 41}, {"leader_epoch": 6}, {"first_timestamp_us": 8},
        {"max_timestamp_us": 8}, {"producer_id": 8}, {"base_sequence": 3}, {"records_count": 2},
        {"offset_span": 4}, {"columns": 1}, {"codec": "lz4"}, {"sparse": True},
    ],
)  # fmt: skip
def test_a_changed_header_does_not_open(change: dict[str, Any]) -> None:
    """A writer on the disk can make checksums right, but not the tag."""
    header, body = stored()
    with pytest.raises(BatchCorruptError, match="does not open") as caught:
        opened(replace(header, **change), body)
    assert caught.value.offset == change.get("base_offset", 40)


def test_a_batch_of_another_place_does_not_open() -> None:
    """Neither another partition's nor another stream's."""
    header, body = stored()
    for place in (
        replace(HERE, number=PartitionNumber(0)),
        replace(HERE, stream_uuid=StreamUuid("00000000-0000-4000-8000-000000000002")),
    ):
        with pytest.raises(BatchCorruptError, match="another place"):
            opened(header, body, place)


def test_what_the_leader_decides_later_is_free() -> None:
    """The synced end is written with the batch, when it is already encrypted."""
    header, body = stored()
    assert opened(replace(header, synced_end=Offset(99)), body)[1] == bytes(batch().body)


def test_every_changed_byte_is_found() -> None:
    """Of key version, nonce, ciphertext and tag."""
    header, body = stored()
    for at in range(len(body)):
        changed = bytearray(body)
        changed[at] ^= 1
        with pytest.raises((BatchCorruptError, KeyError)):  # KeyError: another version's key
            opened(header, changed)
    for short in (b"", body[: SEAL_BYTES - 1], bytes(SEAL_BYTES)):
        with pytest.raises(BatchCorruptError):
            opened(header, short)


def test_nobody_decodes_an_encrypted_body_by_mistake() -> None:
    """A reader without keys gets an error that says so, and no garbage."""
    header, body = stored()
    with pytest.raises(EncryptionKeyError, match="encrypted"):
        decode_body(header, body)


def test_a_batch_that_was_rewritten_is_encrypted_again() -> None:
    """A sparse batch keeps its header's facts, and opens by them."""
    plain, body = opened(*stored())
    sparse = replace(plain, sparse=True, offset_span=9)
    header, sealed = seal_stored(sparse, body, CIPHER, 2, partition_id=HERE)
    check_body(header, sealed)
    assert opened(header, sealed) == (sparse, body)
