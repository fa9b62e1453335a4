"""Looking through seeds: for the one in which a promise breaks, and for what never happens."""

from __future__ import annotations

import os
import re
from collections.abc import Callable, Collection, Iterable, Mapping


def whole_hunt() -> bool:
    """Tell whether hunts begin at the first seed, and judge the known ones (`make mutants`)."""
    return bool(os.environ.get("HEADWATER_WHOLE_HUNT"))


def hunting_order(known: int, count: int) -> list[int]:
    """Return ``count`` seeds, from the one on that is known to show it; then those before it.

    HEADWATER_WHOLE_HUNT asks for all of them in order (`make mutants`).
    """
    first = 0 if whole_hunt() else known
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


def hunted(run: Callable[[int], object], known: int, count: int) -> bool:
    """Tell whether one of ``count`` seeds breaks a promise, looking at the known one first.

    Raises:
        LookupError: in a whole hunt, the known seed breaks none any more; with one that does.
    """
    found = broken_seed(run, hunting_order(known, count))
    if whole_hunt() and found is not None and broken_seed(run, [known]) is None:
        raise LookupError(f"seed {known} shows it no longer; the first that does is {found}")
    return found is not None


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
    wanted: Collection[str],
    run: Callable[[int], Mapping[str, int]],
    seeds: Iterable[int],
    known: Collection[int] = (),
) -> list[str]:
    """Return what happens in none of the seeds; stops when everything has.

    A life counts what it sees; what it counted zero times did not happen. The ``known`` seeds, in
    which together everything is known to happen, are looked at first.

    Raises:
        LookupError: in a whole hunt, it does not all happen in the known seeds; with others.
    """
    missing, shown = set(wanted), list[int]()
    for seed in seeds if whole_hunt() else [*known, *seeds]:
        met = missing & {what for what, count in run(seed).items() if count}
        if met:
            shown.append(seed)
            missing -= met
        if not missing:
            break
    if whole_hunt() and known and not missing:
        left = missing.union(wanted)
        for seed in known:
            left.difference_update(what for what, count in run(seed).items() if count)
        if left:
            raise LookupError(f"not in the known seeds: {sorted(left)}; all of it is in {shown}")
    return sorted(missing)
