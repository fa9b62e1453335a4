"""CRC-32C in hardware. Only this file knows which library computes the checksum."""

from __future__ import annotations

from typing import Any

import crc32c as _library


def crc32c(data: Any, crc: int = 0) -> int:
    """Return the CRC-32C (Castagnoli) of a bytes-like object, continuing from ``crc``."""
    return int(_library.crc32c(data, crc))
