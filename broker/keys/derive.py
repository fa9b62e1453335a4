"""A key of its own for each purpose, derived from a data key, so that no key has two uses."""

from __future__ import annotations

from typing import Final, Literal

from cryptography.hazmat.primitives.hashes import SHA256
from cryptography.hazmat.primitives.kdf.hkdf import HKDFExpand

Purpose = Literal["batches", "table files", "table digests", "wrapping"]
_SIZE: Final = 32


def derived(key: bytes, purpose: Purpose) -> bytes:
    """Return the key for one purpose: HKDF-Expand (RFC 5869) with SHA-256. ``key`` is random."""
    return HKDFExpand(SHA256(), _SIZE, f"headwater {purpose} 1".encode()).derive(key)
