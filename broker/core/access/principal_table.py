"""Finds what belongs to a principal by patterns: a name, or the beginning of names. Pure."""

from __future__ import annotations

from collections.abc import Mapping
from functools import lru_cache
from typing import Final, Generic, TypeVar

from broker.model.quota import DEFAULT

_REMEMBERED_MAX: Final = 65_536

T = TypeVar("T")


class PrincipalTable(Generic[T]):
    """What a principal's own name has, else what the longest beginning of the name has."""

    def __init__(self, rows: Mapping[str, T]) -> None:
        """``rows`` are by pattern; the pattern ``*`` is the beginning of all names."""
        self._exact = {one: row for one, row in rows.items() if not one.endswith(DEFAULT)}
        self._beginnings = {one[:-1]: row for one, row in rows.items() if one.endswith(DEFAULT)}
        self._lengths = sorted(set(map(len, self._beginnings)), reverse=True)
        self._remembered = lru_cache(_REMEMBERED_MAX)(self._find)

    def of(self, principal: str) -> T | None:
        """Return what applies to a principal; None: nothing does."""
        return self._remembered(principal)

    def _find(self, principal: str) -> T | None:
        found = self._exact.get(principal)
        if found is not None:
            return found
        beginnings = (principal[:length] for length in self._lengths)
        return next((self._beginnings[one] for one in beginnings if one in self._beginnings), None)
