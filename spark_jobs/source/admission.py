"""How much of a backlog a batch takes: ``maxOffsetsPerTrigger``, shared among partitions. Pure."""

from __future__ import annotations

from collections.abc import Mapping
from typing import TypeVar

_Key = TypeVar("_Key", bound=tuple[str, int])


def admit(backlog: Mapping[_Key, int], limit: int, *, turn: int = 0) -> dict[_Key, int]:
    """Return how many records of each backlog to take: all of them, or ``limit`` in sum.

    Shares are in proportion to the backlogs, but nobody who waits is left out: each gets one
    record before shares are made, and where the limit is below the number of partitions, ``turn``
    says whose turn it is. The same arguments give the same answer.
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
    # What rounding down left over: a record each, for the largest backlogs first. There are
    # fewer of them than partitions, and a partition that got its whole backlog has no remainder.
    left = limit - sum(taken.values())
    for key in sorted(waiting, key=lambda key: -backlog[key]):
        if left and taken[key] < backlog[key]:
            taken[key] += 1
            left -= 1
    return taken
