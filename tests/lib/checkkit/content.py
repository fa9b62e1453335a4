"""What a record is known by: 16 bytes over everything in it that must come back unchanged."""

from __future__ import annotations

import hashlib
from collections.abc import Sequence

Headers = Sequence[tuple[str, bytes | None]] | None


def fingerprint(*, key: bytes | None, value: bytes | None, headers: Headers, subject: str) -> bytes:
    """Return 16 bytes that differ when any byte differs, or null stands for empty."""
    digest = hashlib.blake2b(digest_size=16)
    _absorb(digest, key)
    _absorb(digest, value)
    _absorb(digest, subject.encode())
    digest.update(b"-" if headers is None else b"%d" % len(headers))
    for name, text in headers or ():
        _absorb(digest, name.encode())
        _absorb(digest, text)
    return digest.digest()


def _absorb(digest: hashlib.blake2b, part: bytes | None) -> None:
    digest.update(b"n" if part is None else b"b%d:" % len(part))
    digest.update(part or b"")
