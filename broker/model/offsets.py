"""Offsets and ranges of offsets. Every range in this code base is half-open."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Final, NewType

Offset = NewType("Offset", int)  # 0-based index of a record in its partition, never reused

OFFSET_MAX: Final = 2**63 - 1
ANY_OFFSET: Final = -1  # of a Liftbridge message that may get whatever offset is next


@dataclass(frozen=True, slots=True, order=True)
class OffsetRange:
    """Half-open range of records ``[start, end)``; ``start == end`` means empty."""

    start: Offset
    end: Offset

    def __post_init__(self) -> None:
        assert 0 <= self.start <= self.end <= OFFSET_MAX, f"bad range [{self.start}, {self.end})"

    def __len__(self) -> int:
        return self.end - self.start

    def __contains__(self, offset: object) -> bool:
        return isinstance(offset, int) and self.start <= offset < self.end

    def __str__(self) -> str:
        return f"[{self.start}, {self.end})"
