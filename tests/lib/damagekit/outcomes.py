"""What a look at a damaged broker gave, in few words; and the worst of many. Pure."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import asdict, dataclass
from enum import IntEnum
from typing import Any


class Outcome(IntEnum):
    """How one look, or a whole case, ended; the higher, the worse."""

    EXACT = 0  # every acknowledged record, bit for bit
    NAMED = 1  # a typed error said that something is wrong
    UNTYPED = 2  # an error that is not one of ours
    CRASH = 3  # the broker ended by a bug
    HANG = 4  # no end within the time that a case has
    SILENT = 5  # other records, or an offset twice, and nobody said so

    @property
    def is_good(self) -> bool:
        """Tell whether the product may answer so."""
        return self <= Outcome.NAMED


@dataclass(frozen=True, slots=True, kw_only=True)
class Look:
    """One request to the broker, and its result."""

    phase: str
    reader: str
    stream: str
    outcome: Outcome
    error: str = ""  # class of the error
    detail: str = ""

    def to_dict(self) -> dict[str, Any]:
        """Return JSON-ready values."""
        return {**asdict(self), "outcome": self.outcome.name.lower()}

    @classmethod
    def from_dict(cls, values: dict[str, Any]) -> Look:
        """Rebuild what :meth:`to_dict` gave."""
        return cls(**{**values, "outcome": Outcome[values["outcome"].upper()]})

    def __str__(self) -> str:
        where = f"{self.phase}: {self.reader} {self.stream}".strip()
        return f"{self.outcome.name.lower()}: {where}: {self.error} {self.detail}".strip()


def worst(looks: Iterable[Look]) -> Outcome:
    """Return the worst outcome of a case."""
    return max((look.outcome for look in looks), default=Outcome.EXACT)
