"""Looking through seeds: for the one in which a promise breaks, and for what never happens.

Lives are functions of bytes: whatever changes a message or a file moves what happens in a seed to
another one. So a hunt begins at the seed that is known to show what it looks for. A known seed that
shows it no longer is stale: the hunt goes on, and `tests/lib/stale_seeds.py` prints the seed that
does at the end of the run, ready to be put into the table.
"""

from __future__ import annotations

import os
import re
from collections.abc import Callable, Collection, Hashable, Iterable, Mapping
from dataclasses import dataclass, field
from typing import Final, TypeVar

Life = TypeVar("Life", bound=Hashable)
NOTHING: Final[Mapping[str, Callable[[], None]]] = {}


@dataclass(frozen=True, slots=True)
class Stale:
    """A line of a table of known seeds, as it should be."""

    table: str
    line: str
    why: str


_found: Final[list[Stale]] = []


def take_stale() -> list[Stale]:
    """Return what was found stale since the last call."""
    taken = _found[:]
    _found.clear()
    return taken


# ---------------------------------------------------------------------- what is asked for


def seeds_asked() -> int:
    """Return how many seeds somebody asks for by HEADWATER_SIM_SEEDS; 0: nobody does."""
    return int(os.environ.get("HEADWATER_SIM_SEEDS") or 0)


def seed_count(default: int, *, one_in: int = 1) -> int:
    """Return how many seeds a test runs: of those asked for one in so many, or its own number."""
    asked = seeds_asked()
    return max(1, asked // one_in) if asked else default


def seeds_of(group: int, groups: int, count: int) -> range:
    """Return the seeds of one of several tests that share ``count``.

    HEADWATER_SIM_SEED asks for one seed: the first group has it, the others have none.
    """
    only = os.environ.get("HEADWATER_SIM_SEED")
    if only:
        return range(int(only), int(only) + (group == 0))
    return range(group, count, groups)


def whole_hunt() -> bool:
    """Tell whether every mutant is hunted, not the quick ones only (`make mutants`)."""
    return bool(os.environ.get("HEADWATER_WHOLE_HUNT"))


# E.g. an attribute of the product that the simulator reads was renamed: every mutant would "die".
_BUGS_OF_A_KIT: Final = (AttributeError, ImportError, NameError, TypeError)


def hunted_here(mutants: Iterable[str], quick: Collection[str]) -> list[str]:
    """Return the mutants of this run: the quick ones, or all if more than `make test` is asked."""
    return [one for one in mutants if whole_hunt() or seeds_asked() or one in quick]


# ---------------------------------------------------------------------- mutants


def hunting_order(known: int, count: int) -> list[int]:
    """Return the seeds below ``count`` in the order of a hunt; the known seed is the first.

    In a whole hunt the others follow from 0 on, so that what is found is the first seed that shows
    it. Else those after the known one come first: a change that moves lives moves them a little.
    """
    others = [*range(count)] if whole_hunt() else [*range(known, count), *range(known)]
    return [known, *(one for one in others if one != known)]


def broken_seed(run: Callable[[int], object], seeds: Iterable[int], reason: str = "") -> int | None:
    """Return the first seed in whose life a promise is broken; None: in none of them.

    What is said of it has to match ``reason``, a regular expression; else it counts for nothing.
    A life that ends because the simulator itself is out of date shows nothing: its error is raised.
    """
    for seed in seeds:
        try:
            run(seed)
        except AssertionError as error:
            if isinstance(error.__cause__, _BUGS_OF_A_KIT):
                raise
            if re.search(reason, str(error)):
                return seed
    return None


@dataclass(frozen=True, slots=True)
class Hunt:
    """What is known of the mutants of one simulation.

    ``table`` says where ``known`` is written, the seeds at which hunts begin (0, if a mutant is not
    in it); empty, no stale seed is noted. A mutant with a script is not looked for in seeds. A
    broken promise counts if what is said of it matches the mutant's reason.
    """

    table: str
    known: Mapping[str, int]
    seeds_max: int
    scripts: Mapping[str, Callable[[], None]] = field(default_factory=lambda: NOTHING)
    reasons: Mapping[str, str] | None = None

    def catches(self, mutant: str, run: Callable[[int], object]) -> bool:
        """Tell whether a mistake is noticed: in its script, or if it has none in a seed."""
        if mutant in self.scripts:
            return broken_seed(lambda _: self.scripts[mutant](), range(1)) is not None
        known = self.known.get(mutant, 0)
        reason = "" if self.reasons is None else self.reasons[mutant]
        found = broken_seed(run, hunting_order(known, self.seeds_max), reason)
        if self.table and found not in (None, known):
            _found.append(Stale(self.table, f'"{mutant}": {found},', f"{known} shows it no longer"))
        return found is not None


# ---------------------------------------------------------------------- situations


def never_seen(
    wanted: Collection[str],
    run: Callable[[Life], Mapping[str, int]],
    lives: Iterable[Life],
    known: Collection[Life] = (),
    table: str = "",
) -> list[str]:
    """Return what happens in none of the lives; stops when everything has.

    A life counts what it sees; what it counted zero times did not happen. The ``known`` lives, in
    which together everything was met once, are looked at first. If they are stale, the lives that
    show everything are noted for the ``table`` in which the known ones are written.
    """
    missing, shown, looked_at = set(wanted), list[Life](), set[Life]()
    left: set[str] | None = None
    for is_known, life in [*((True, one) for one in known), *((False, one) for one in lives)]:
        if not is_known and left is None:
            left = set(missing)
        if not missing:
            break
        if life in looked_at:
            continue
        looked_at.add(life)
        met = missing & {what for what, count in run(life).items() if count}
        if met:
            shown.append(life)
            missing -= met
    if table and left and not missing:
        line = "".join(f"{one!r}, " for one in shown).rstrip()
        _found.append(Stale(table, line, f"not in the known ones: {', '.join(sorted(left))}"))
    return sorted(missing)
