"""Liftbridge's envelope: the bytes of its protocol page, and hostile frames."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from broker.codec.nats import envelope
from broker.codec.nats.envelope import MAGIC, EnvelopeKind
from broker.errors import EnvelopeError


def test_bytes_are_those_of_the_protocol_page() -> None:
    """A frame is magic, version 0, header length 8, no flags, type, then the payload."""
    frame = envelope.encode(EnvelopeKind.ACK, b"hello")
    assert frame == bytes.fromhex("b90e43b4 00 08 00 01") + b"hello"


def test_the_checksum_is_castagnoli_big_endian() -> None:
    """With the CRC flag the header is 12 bytes and ends in the payload's CRC-32C."""
    frame = envelope.encode(EnvelopeKind.PUBLISH, b"123456789", checksum=True)
    assert frame == bytes.fromhex("b90e43b4 00 0c 01 00 e3069283") + b"123456789"


@given(st.binary(max_size=300), st.booleans(), st.sampled_from(EnvelopeKind))
def test_what_is_encoded_comes_back(payload: bytes, checksum: bool, kind: EnvelopeKind) -> None:
    """Decoding undoes encoding, with and without a checksum."""
    assert envelope.decode(envelope.encode(kind, payload, checksum=checksum), kind) == payload


@pytest.mark.parametrize(
    "frame",
    [
        b"",
        MAGIC,
        MAGIC + b"\x00\x08\x00",
        b"\xb9\x0e\x43\xb5\x00\x08\x00\x00x",
        MAGIC + b"\x01\x08\x00\x00x",  # a later version
        MAGIC + b"\x00\x08\x00\x01x",  # another type
        MAGIC + b"\x00\xff\x00\x00",  # Liftbridge's servers read past the end here
        MAGIC + b"\x00\x0c\x00\x00x",
        MAGIC + b"\x00\x07\x00\x00x",
        MAGIC + b"\x00\x00\x00\x00x",
        MAGIC + b"\x00\x08\x01\x00x",  # a checksum that has no room
        MAGIC + b"\x00\x0d\x01\x00\x00\x00\x00\x00xx",
        MAGIC + b"\x00\x0c\x01\x00\x00\x00\x00\x00x",  # a wrong checksum
    ],
    ids=lambda frame: frame.hex() or "empty",
)
def test_every_other_frame_is_one_typed_error(frame: bytes) -> None:
    """Short, foreign, newer, wrong and over-long headers raise EnvelopeError."""
    with pytest.raises(EnvelopeError):
        envelope.decode(frame, EnvelopeKind.PUBLISH)


@given(st.binary(max_size=64), st.binary(max_size=16))
def test_no_bytes_raise_anything_else(tail: bytes, payload: bytes) -> None:
    """Whatever follows the magic is decoded or is an EnvelopeError."""
    for frame in (MAGIC + tail, MAGIC + b"\x00" + tail, tail + payload):
        try:
            envelope.decode(frame, EnvelopeKind.PUBLISH)
        except EnvelopeError:
            continue


def test_a_longer_header_without_a_checksum_is_skipped() -> None:
    """A header that says 12 without the CRC flag only moves the payload, as in Liftbridge."""
    assert envelope.decode(MAGIC + b"\x00\x0c\x00\x00abcdefg", EnvelopeKind.PUBLISH) == b"efg"
