"""Limits of payloads and schemas, and the reasons for which records are rejected.

Any client with the right to publish can send any payload. Every limit is checked before the bytes
are parsed. A record beyond a limit is rejected with its reason; the other records are not affected.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Final

from broker.errors import InvalidRequestError

DETAIL_CHARACTERS_MAX: Final = 300

# Why a record was rejected: the values of the column ``reason`` in a table of rejected records.
MALFORMED: Final = "malformed"  # the bytes are not of the format
NOT_UTF8: Final = "not_utf8"
WRONG_TYPE: Final = "wrong_type"  # well formed, but a value does not fit its column
TOO_LARGE: Final = "too_large"
TOO_DEEP: Final = "too_deep"
OTHER_SCHEMA: Final = "other_schema"  # the frame has the number of another schema
REASONS: Final = (MALFORMED, NOT_UTF8, WRONG_TYPE, TOO_LARGE, TOO_DEEP, OTHER_SCHEMA)

_TOPS: Final = {"record_bytes_max": 1 << 30, "depth_max": 500, "columns_max": 10_000}


@dataclass(frozen=True, slots=True)
class DecodeBounds:
    """Limits of one table's decoding; pinned with the table, since they decide what is rejected."""

    record_bytes_max: int = 16 * 1024 * 1024  # twice the largest NATS message that a broker takes
    depth_max: int = 64
    columns_max: int = 1000  # leaves of the schema, nested ones counted

    @classmethod
    def widest(cls) -> DecodeBounds:
        """Return the widest bounds that can be given."""
        return cls(**_TOPS)

    def __post_init__(self) -> None:
        for name, top in _TOPS.items():
            value = getattr(self, name)
            if not 1 <= value <= top:
                raise InvalidRequestError(f"{name} must be 1 to {top}, not {value}")


@dataclass(frozen=True, slots=True)
class Reason:
    """Why one record was rejected."""

    code: str
    detail: str

    @classmethod
    def of(cls, code: str, detail: object) -> Reason:
        """Return a reason with the detail on one line and cut to the limit."""
        text = " ".join(str(detail).split())
        return cls(code, text[:DETAIL_CHARACTERS_MAX])
