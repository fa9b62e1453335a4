"""Seeds of a cluster whose tables expire while everything fails around them.

HEADWATER_SIM_SEED replays one seed, HEADWATER_SIM_SEEDS sets how many are run (`make sim`).
"""

from __future__ import annotations

from collections import Counter

import pytest

from simkit.house.house import opened
from simkit.mistakes.expiring import FIRST_SEEDS, MUTANTS
from simkit.seed_hunt import Hunt, hunted_here, seed_count, seeds_of

SEEDS = seed_count(8, one_in=16)
GROUPS = 2  # so that workers share them
HUNT = Hunt("simkit/mistakes/expiring.py: FIRST_SEEDS", FIRST_SEEDS, seeds_max=100)
QUICK = ("expired_range_is_shipped_again",)


def _life(seed: int) -> Counter[str]:
    """Run one life; return what became of the retention."""
    with opened(seed, with_lake=True, expiring=True) as house:
        try:
            house.run()
        except Exception as error:
            raise AssertionError(f"seed {seed}: {type(error).__name__}: {error}") from error
        assert house.expiring is not None
        return house.expiring.counts


@pytest.mark.seeds
@pytest.mark.timeout(3600)  # as many seeds as somebody asks for
@pytest.mark.parametrize("group", range(GROUPS))
def test_tables_that_expire_keep_every_promise(group: int) -> None:
    """What was acknowledged is in the table, or expired: noted, in order, under no lease."""
    seeds = seeds_of(group, GROUPS, SEEDS)
    counts = sum((_life(seed) for seed in seeds), Counter[str]())
    if len(seeds) >= 4:
        assert counts.keys() >= {"altered", "expired"}, counts


@pytest.mark.timeout(1800)
@pytest.mark.parametrize("mutant", hunted_here(MUTANTS, QUICK))
def test_each_mutant_of_retention_is_caught(mutant: str) -> None:
    """Retention with one known mistake breaks a promise in some seed."""
    with MUTANTS[mutant]():
        assert HUNT.catches(mutant, _life)
