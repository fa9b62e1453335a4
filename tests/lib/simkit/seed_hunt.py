"""Looking through seeds: for the one in which a promise breaks, and for what never happens."""

from __future__ import annotations

import os
import re
from collections.abc import Callable, Collection, Iterable, Mapping


def hunting_order(known: int, count: int) -> list[int]:
    """Return ``count`` seeds, from the one on that is known to show it; then those before it.

    HEADWATER_WHOLE_HUNT asks for all of them in order (`make mutants`).
    """
    first = 0 if os.environ.get("HEADWATER_WHOLE_HUNT") else known
    return [*range(first, count), *range(first)]


def broken_seed(run: Callable[[int], object], seeds: Iterable[int], reason: str = "") -> int | None:
    """Return the first seed in whose life a promise is broken; None: in none of them.

    What is said of it has to match ``reason``, a regular expression; else it counts for nothing.
    """
    for seed in seeds:
        try:
            run(seed)
        except AssertionError as error:
            if re.search(reason, str(error)):
                return seed
    return None


def is_caught(
    mutant: str,
    scripts: Mapping[str, Callable[[], None]],
    run: Callable[[int], object],
    seeds: Iterable[int],
    reason: str = "",
) -> bool:
    """Tell whether a mistake is noticed: in its script, or if it has none in a seed."""
    if mutant in scripts:
        return broken_seed(lambda _: scripts[mutant](), range(1)) is not None
    return broken_seed(run, seeds, reason) is not None


def never_seen(
    wanted: Collection[str], run: Callable[[int], Mapping[str, int]], seeds: Iterable[int]
) -> list[str]:
    """Return what happens in none of the seeds; stops when everything has.

    A life counts what it sees; what it counted zero times did not happen.
    """
    missing = set(wanted)
    for seed in seeds:
        missing.difference_update(what for what, count in run(seed).items() if count)
        if not missing:
            break
    return sorted(missing)
