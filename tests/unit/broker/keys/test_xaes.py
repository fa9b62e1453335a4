"""XAES-256-GCM: the vectors of its specification, and nonces that do not repeat."""

from __future__ import annotations

import hashlib
import os
from collections.abc import Callable
from typing import get_args

import pytest

from broker.keys import xaes
from broker.keys.derive import Purpose, derived
from broker.keys.xaes import NONCE_BYTES, Xaes256Gcm

NONCE = b"ABCDEFGHIJKLMNOPQRSTUVWX"


def drawn(nonce: bytes) -> Callable[[int], bytes]:
    """Return a source of randomness that gives this nonce in two parts."""
    parts = iter((nonce[:12], nonce[12:]))
    return lambda _: next(parts)


@pytest.mark.parametrize(
    ("key", "associated", "expected"),
    [
        (b"\x01" * 32, b"", "ce546ef63c9cc60765923609b33a9a1974e96e52daf2fcf7075e2271"),
        (
            b"\x03" * 32,
            b"c2sp.org/XAES-256-GCM",
            "986ec1832593df5443a179437fd083bf3fdb41abd740a21f71eb769d",
        ),
    ],
)
def test_the_specifications_vectors(key: bytes, associated: bytes, expected: str) -> None:
    """The bytes are those of c2sp.org/XAES-256-GCM, both ways."""
    sealed = Xaes256Gcm(key, random=drawn(NONCE)).encrypt(b"XAES-256-GCM", associated)
    assert sealed == NONCE + bytes.fromhex(expected)
    assert Xaes256Gcm(key).decrypt(sealed, associated) == b"XAES-256-GCM"


def test_the_specifications_accumulated_vector() -> None:
    """10,000 messages of random sizes have the digest that the specification names."""
    source, whole = _shake(b""), hashlib.shake_128()
    for _ in range(10_000):
        key, nonce = source(32), source(24)
        plain = source(source(1)[0])
        associated = source(source(1)[0])
        whole.update(Xaes256Gcm(key, random=drawn(nonce)).encrypt(plain, associated)[24:])
    assert whole.hexdigest(32) == "e6b9edf2df6cec60c8cbd864e2211b597fb69a529160cd040d56c0c210081939"


def _shake(seed: bytes) -> Callable[[int], bytes]:
    data, at = hashlib.shake_128(seed).digest(8_000_000), 0

    def take(size: int) -> bytes:
        nonlocal at
        at += size
        return data[at - size : at]

    return take


def test_every_changed_byte_is_refused() -> None:
    """Nonce, ciphertext, tag, what goes with it, and the key: none may differ."""
    cipher = Xaes256Gcm(bytes(32))
    sealed = cipher.encrypt(b"plain", b"with")
    for at in range(len(sealed)):
        changed = bytearray(sealed)
        changed[at] ^= 1
        with pytest.raises(ValueError, match="not authentic"):
            cipher.decrypt(changed, b"with")
    for other, associated in ((cipher, b"else"), (Xaes256Gcm(b"\x01" * 32), b"with")):
        with pytest.raises(ValueError, match="not authentic"):
            other.decrypt(sealed, associated)
    for short in (b"", sealed[: NONCE_BYTES - 1]):
        with pytest.raises(ValueError, match="too short"):
            cipher.decrypt(short, b"with")


def test_nonces_differ_within_an_object_and_between_objects(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """A restart, another leader or a restored disk is a new object: it draws another salt."""
    monkeypatch.setattr(xaes, "_MESSAGES_MAX", 100)
    nonces = set()
    for _ in range(10):
        cipher = Xaes256Gcm(bytes(32))
        nonces |= {cipher.encrypt(b"", b"")[:NONCE_BYTES] for _ in range(250)}
    assert len(nonces) == 2500
    assert len({one[:12] for one in nonces}) == 30  # 250 messages need three salts
    assert len({one[12:] for one in nonces}) == 2500


def test_a_cloned_machine_does_not_repeat_a_nonce() -> None:
    """Two copies of one object's memory have the salt in common, and draw the rest anew."""
    cipher = Xaes256Gcm(bytes(32), random=os.urandom)
    cipher.encrypt(b"", b"")
    twin = Xaes256Gcm(bytes(32), random=os.urandom)
    twin._salt, twin._left = cipher._salt, cipher._left
    first, second = (one.encrypt(b"", b"")[:NONCE_BYTES] for one in (cipher, twin))
    assert first[:12] == second[:12]
    assert first[12:] != second[12:]


def test_many_salts_are_read_with_few_ciphers_kept() -> None:
    """The memory of a reader is bounded, and old messages still open."""
    messages = [Xaes256Gcm(bytes(32)).encrypt(b"%d" % one, b"") for one in range(200)]
    reader = Xaes256Gcm(bytes(32))
    for number, sealed in [*enumerate(messages), *enumerate(messages)]:
        assert reader.decrypt(sealed, b"") == b"%d" % number
    assert len(reader._derived) == xaes._DERIVED_KEPT


def test_keys_for_different_purposes_differ() -> None:
    """Frozen: a derived key never changes, else stored records could not be read."""
    made = {derived(bytes(32), one) for one in _purposes()}
    assert len(made) == len(_purposes()) == 4
    assert (
        derived(bytes(range(32)), "batches").hex()
        == "f4e94b2c32a61a9e5af7f064327b02118b15dfd4094ab1e72db239275fc21692"
    )


def _purposes() -> tuple[Purpose, ...]:
    return get_args(Purpose)


def test_a_key_of_another_size_is_refused_without_being_told() -> None:
    """The error has the size, not the bytes."""
    with pytest.raises(ValueError, match="a key has 32 bytes, not 7") as caught:
        Xaes256Gcm(b"secret!")
    assert "secret" not in str(caught.value)
