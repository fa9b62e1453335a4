"""XAES-256-GCM: AES-256-GCM with nonces of 192 bits, drawn at random.

The first 12 bytes of a nonce, the salt, and the key give a derived key (CMAC, as NIST SP 800-108r1
counts); AES-256-GCM uses the derived key with the last 12 bytes. The specification is
c2sp.org/XAES-256-GCM; its test vectors are in tests/unit/broker/keys.

Why a nonce never repeats under one derived key: nothing is counted and nothing is read from a disk,
so neither a restart, another leader, a restored disk nor a cloned machine can bring a nonce back.
Each object draws its salt from the operating system, and a new one after 2^20 messages; the other
96 bits are drawn for each message. Two of 2^20 messages under one salt share them with probability
2^-57. Two objects share a salt with probability 2^-57 if there ever were 2^20 of them, and even
then their nonces differ.
"""

from __future__ import annotations

import os
import threading
from collections import OrderedDict
from collections.abc import Callable
from typing import Any, Final

from cryptography.exceptions import InvalidTag
from cryptography.hazmat.primitives.ciphers import Cipher, algorithms, modes
from cryptography.hazmat.primitives.ciphers.aead import AESGCM

KEY_BYTES: Final = 32
NONCE_BYTES: Final = 24
_SALT_BYTES: Final = 12
_MESSAGES_MAX: Final = 1 << 20  # under one salt
_DERIVED_KEPT: Final = 64


class Xaes256Gcm:
    """The cipher with one key. Any thread. The key is in no text of this object."""

    def __init__(self, key: bytes, *, random: Callable[[int], bytes] = os.urandom) -> None:
        """Take a key of 32 bytes."""
        if len(key) != KEY_BYTES:
            raise ValueError(f"a key has {KEY_BYTES} bytes, not {len(key)}")
        self._random = random
        self._lock = threading.Lock()  # of all below
        # Blocks are independent of each other in this mode, so one context encrypts them all.
        self._block = Cipher(algorithms.AES(key), modes.ECB()).encryptor()  # noqa: S305 - CMAC
        self._mask = _doubled(self._block.update(bytes(16)))
        self._derived: OrderedDict[bytes, AESGCM] = OrderedDict()
        self._salt = b""
        self._left = 0  # messages until the next salt

    def encrypt(self, data: Any, associated: bytes) -> bytes:
        """Return nonce, ciphertext and tag."""
        with self._lock:
            if not self._left:
                self._salt, self._left = self._random(_SALT_BYTES), _MESSAGES_MAX
            self._left -= 1
            salt, cipher = self._salt, self._cipher(self._salt)
        rest = self._random(NONCE_BYTES - _SALT_BYTES)
        return b"".join((salt, rest, cipher.encrypt(rest, memoryview(data).cast("B"), associated)))

    def decrypt(self, sealed: Any, associated: bytes) -> bytes:
        """Return what was encrypted; raises ValueError if a byte of either was changed."""
        view = memoryview(sealed).cast("B")
        salt, rest = bytes(view[:_SALT_BYTES]), bytes(view[_SALT_BYTES:NONCE_BYTES])
        if len(rest) < NONCE_BYTES - _SALT_BYTES:
            raise ValueError("too short to be encrypted")
        with self._lock:
            cipher = self._cipher(salt)
        try:
            return cipher.decrypt(rest, view[NONCE_BYTES:], associated)
        except InvalidTag:
            raise ValueError("not authentic") from None

    def _cipher(self, salt: bytes) -> AESGCM:
        found = self._derived.get(salt)
        if found is None:
            blocks = b"".join(bytes((0, count)) + b"X\0" + salt for count in (1, 2))
            masked = int.from_bytes(blocks) ^ int.from_bytes(self._mask * 2)
            found = AESGCM(self._block.update(masked.to_bytes(32)))
            self._derived[salt] = found
            if len(self._derived) > _DERIVED_KEPT:
                self._derived.popitem(last=False)
        else:
            self._derived.move_to_end(salt)
        return found


def _doubled(block: bytes) -> bytes:
    """Return the block times x in GF(2^128): the first subkey of CMAC."""
    shifted = int.from_bytes(block) << 1
    if shifted >> 128:
        shifted = (shifted ^ 0x87) & ((1 << 128) - 1)
    return shifted.to_bytes(16)
