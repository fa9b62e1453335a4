"""Wraps data keys with keys of this process: the part that file and environment share."""

from __future__ import annotations

import base64
import binascii
import json
from collections.abc import Mapping
from typing import Final

from broker.errors import EncryptionKeyError
from broker.keys.derive import derived
from broker.keys.xaes import KEY_BYTES, Xaes256Gcm

_NAME_CHARS_MAX: Final = 128


def is_key_name(name: str) -> bool:
    """Tell whether a text names a key: printable ASCII without blanks, commas, colons, quotes."""
    return (
        0 < len(name) <= _NAME_CHARS_MAX
        and name.isascii()
        and name.isprintable()
        and not set(name) & set(" ,:\"'\\")
    )


def key_of_text(text: str, where: str) -> bytes:
    """Return the key of a base64 text. The text is in no error.

    Raises:
        EncryptionKeyError: it is not the base64 of 32 bytes.
    """
    try:
        key = base64.b64decode(text.strip(), validate=True)
    except (binascii.Error, ValueError):
        key = b""
    if len(key) != KEY_BYTES:
        raise EncryptionKeyError(
            f"{where} is not a key: it must be the base64 of {KEY_BYTES} random bytes; `headwater "
            "keyring new FILE` makes one"
        )
    return key


class WrappingKey:
    """A key that encrypts data keys. Its bytes are in no text of this object."""

    def __init__(self, key: bytes) -> None:
        """Take a key of 32 bytes."""
        self._cipher = Xaes256Gcm(derived(key, "wrapping"))

    def wrap(self, key: bytes, context: Mapping[str, str]) -> bytes:
        """Return the data key encrypted, bound to its context."""
        return self._cipher.encrypt(key, _told(context))

    def unwrap(self, wrapped: bytes, context: Mapping[str, str]) -> bytes | None:
        """Return the data key; None if this key did not wrap it for this context."""
        try:
            return self._cipher.decrypt(wrapped, _told(context))
        except ValueError:
            return None


def _told(context: Mapping[str, str]) -> bytes:
    return json.dumps(dict(context), sort_keys=True, separators=(",", ":")).encode()
