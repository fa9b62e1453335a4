"""Divides ``maxOffsetsPerTrigger``, the limit of a batch, among the partitions. Pure."""

from __future__ import annotations

from collections.abc import Mapping
from typing import TypeVar

_Key = TypeVar("_Key", bound=tuple[str, int])


def admit(backlog: Mapping[_Key, int], limit: int, *, turn: int = 0) -> dict[_Key, int]:
    """Return how many records to take from each backlog: all, or ``limit`` together.

    Shares are proportional to the backlogs, but every partition with a backlog gets at least one
    record first. If the limit is below the number of these partitions, ``turn`` chooses which of
    them get one. The same arguments always give the same result.
    """
    assert limit > 0, f"a limit of {limit} would never end"
    waiting = sorted(key for key, size in backlog.items() if size > 0)
    total = sum(backlog[key] for key in waiting)
    taken = dict.fromkeys(backlog, 0)
    if total <= limit:
        return {key: max(0, size) for key, size in backlog.items()}
    if limit <= len(waiting):
        first = turn * limit % len(waiting)
        return taken | dict.fromkeys((waiting[first:] + waiting[:first])[:limit], 1)
    spare, rest = limit - len(waiting), total - len(waiting)
    for key in waiting:
        taken[key] = 1 + (backlog[key] - 1) * spare // rest
    # The records left over by rounding down: one each, to the largest backlogs first. They are
    # fewer than the partitions, and a partition that got its whole backlog has no remainder.
    left = limit - sum(taken.values())
    for key in sorted(waiting, key=lambda key: -backlog[key]):
        if left and taken[key] < backlog[key]:
            taken[key] += 1
            left -= 1
    return taken
