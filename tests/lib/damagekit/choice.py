"""Which cases of the catalogue are run. Pure."""

from __future__ import annotations

import random
import re
from collections import defaultdict
from collections.abc import Sequence
from itertools import combinations

from damagekit.catalogue import NOTHING, TWINS, Case


def chosen(
    every: Sequence[Case],
    *,
    only: Sequence[str] = (),
    replay: str = "",
    cases: int = 0,
    seed: int = 1,
    slice_only: bool = False,
    cover_only: bool = False,
) -> list[Case]:
    """Return the cases that are wanted, in the order of the catalogue.

    Raises:
        ValueError: ``replay`` names no case.
    """
    if replay:
        found = [case for case in every if case.name == replay]
        if not found:
            raise ValueError(f"no case has the name {replay!r}; see --list")
        return found
    picked = [case for case in every if all(re.search(pattern, case.name) for pattern in only)]
    if slice_only:
        picked = sliced(picked, seed)
    if cover_only:
        picked = covering(picked, seed)
    if cases and cases < len(picked):
        places = sorted(random.Random(seed).sample(range(len(picked)), cases))
        picked = [picked[place] for place in places]
    return picked


def sliced(cases: Sequence[Case], seed: int) -> list[Case]:
    """Return one case for each kind of thing and of damage.

    States and retentions take turns; where a cut or a flip is, is drawn by the seed.
    """
    dice = random.Random(seed)
    groups: dict[tuple[str, str], list[Case]] = defaultdict(list)
    for case in cases:
        groups[case.entry.kind, case.damage.partition("-")[0]].append(case)
    states = sorted({(case.state, case.retention) for case in cases})
    dice.shuffle(states)
    found = []
    for number, group in enumerate(groups.values()):
        for turn in range(len(states)):
            wanted = states[(number + turn) % len(states)]
            able = [case for case in group if (case.state, case.retention) == wanted]
            if able:
                found.append(dice.choice(able))
                break
    return found


def covering(cases: Sequence[Case], seed: int) -> list[Case]:
    """Return few cases in which each kind of thing, each damage and each state is met.

    So is each pair of a kind of damage, a place (the broker's disk or the lake, a file or a
    folder), a state and a retention. Greedy: next comes the case with the most that is new, by the
    seed where several have as much.
    """
    dice = random.Random(seed)
    left = [(_met(case), case) for case in cases]
    dice.shuffle(left)
    missing = set().union(*(met for met, _ in left))
    found: set[int] = set()
    while missing:
        met, best = max(left, key=lambda one: len(one[0] & missing))
        missing -= met
        found.add(id(best))
        left = [one for one in left if one[0] & missing]
    return [case for case in cases if id(case) in found]


def _met(case: Case) -> frozenset[tuple[str, ...]]:
    """Return what a case adds to a cover; undamaged, every state is one of its own."""
    if case.damage == NOTHING:
        return frozenset({(NOTHING, case.state, case.retention)})
    if case.damage in TWINS:
        return frozenset({(case.damage,)})
    place = f"{case.entry.path.partition('/')[0]} {'folder' if case.entry.is_folder else 'file'}"
    choices = (case.damage.partition("-")[0], place, case.state, case.retention)
    return frozenset({(case.entry.kind,), (case.damage,), *combinations(choices, 2)})
