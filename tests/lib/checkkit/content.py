"""What a record is known by: 16 bytes over everything that its publisher sent, but its time.

The time is apart: a record that is sent without one gets it from the broker, so that nobody can
know the fingerprint before. It is a column of its own in every reading.
"""

from __future__ import annotations

import hashlib
from collections.abc import Sequence

Headers = Sequence[tuple[str, bytes | None]] | None


def fingerprint(
    *,
    key: bytes | None,
    value: bytes | None,
    headers: Headers,
    subject: str,
    reply_subject: str | None = None,
    correlation_id: str | None = None,
) -> bytes:
    """Return 16 bytes that differ when any byte differs, or null stands for empty."""
    digest = hashlib.blake2b(digest_size=16)
    _absorb(digest, key)
    _absorb(digest, value)
    for text in (subject, reply_subject, correlation_id):
        _absorb(digest, None if text is None else text.encode())
    digest.update(b"-" if headers is None else b"%d" % len(headers))
    for name, entry in headers or ():
        _absorb(digest, name.encode())
        _absorb(digest, entry)
    return digest.digest()


def _absorb(digest: hashlib.blake2b, part: bytes | None) -> None:
    digest.update(b"n" if part is None else b"b%d:" % len(part))
    digest.update(part or b"")
