"""Keys that come from a data key: one for each purpose, and those of files, wrapped by one."""

from __future__ import annotations

from typing import Final, Literal

from cryptography.hazmat.primitives import keywrap
from cryptography.hazmat.primitives.hashes import SHA256
from cryptography.hazmat.primitives.kdf.hkdf import HKDFExpand

Purpose = Literal["batches", "table files", "table digests", "wrapping"]
_SIZE: Final = 32


def derived(key: bytes, purpose: Purpose) -> bytes:
    """Return the key for one purpose: HKDF-Expand (RFC 5869) with SHA-256. ``key`` is random."""
    return HKDFExpand(SHA256(), _SIZE, f"headwater {purpose} 1".encode()).derive(key)


def wrap_file_key(key: bytes, file_key: bytes) -> bytes:
    """Return the random key of a file or column, wrapped: AES key wrap, RFC 3394."""
    return keywrap.aes_key_wrap(key, file_key)


def unwrap_file_key(key: bytes, wrapped: bytes) -> bytes | None:
    """Return a key that was wrapped; None if another key wrapped it, or it was changed."""
    try:
        return keywrap.aes_key_unwrap(key, wrapped)
    except (keywrap.InvalidUnwrap, ValueError):
        return None
