"""Seeds of a cluster whose publishers fall silent, so that followers' fetches stand.

HEADWATER_SIM_SEED replays one seed, HEADWATER_SIM_SEEDS sets how many are run (`make sim`).
"""

from __future__ import annotations

from collections import Counter

import pytest

from simkit.house.house import opened
from simkit.mistakes.standing import FIRST_SEEDS, MUTANTS
from simkit.seed_hunt import Hunt, hunted_here, seed_count, seeds_of

SEEDS = seed_count(2, one_in=16)
GROUPS = 1
HUNT = Hunt("simkit/mistakes/standing.py: FIRST_SEEDS", FIRST_SEEDS, seeds_max=100)
QUICK = ("silent_leaders_are_believed",)


def _life(seed: int) -> Counter[str]:
    """Run one life; return what was seen of standing fetches."""
    with opened(seed, standing=True) as house:
        try:
            house.run()
        except Exception as error:
            raise AssertionError(f"seed {seed}: {type(error).__name__}: {error}") from error
        assert house.standing is not None
        return house.standing.counts


@pytest.mark.seeds
@pytest.mark.timeout(3600)  # as many seeds as somebody asks for
@pytest.mark.parametrize("group", range(GROUPS))
def test_fetches_stand_and_every_promise_holds(group: int) -> None:
    """No fetch stands for long that the other side does not have; records wake what stands."""
    seeds = seeds_of(group, GROUPS, SEEDS)
    counts = sum((_life(seed) for seed in seeds), Counter[str]())
    if len(seeds) >= 2:
        assert counts.keys() >= {"own", "follower's", "own doubted"}, counts


@pytest.mark.timeout(1800)
@pytest.mark.parametrize("mutant", hunted_here(MUTANTS, QUICK))
def test_each_mutant_of_standing_fetches_is_caught(mutant: str) -> None:
    """A standing fetch or a roll call with one known mistake breaks a promise in some seed."""
    with MUTANTS[mutant]():
        assert HUNT.catches(mutant, _life)
