"""Seeds of a cluster whose tables lose superseded records while everything fails around them.

HEADWATER_SIM_SEED replays one seed, HEADWATER_SIM_SEEDS sets how many are run (`make sim`).
"""

from __future__ import annotations

from collections import Counter

import pytest

from simkit.house.house import opened
from simkit.mistakes.compacting import FIRST_SEEDS, MUTANTS
from simkit.seed_hunt import Hunt, hunted_here, seed_count, seeds_of

SEEDS = seed_count(2, one_in=16)
GROUPS = 1
HUNT = Hunt("simkit/mistakes/compacting.py: FIRST_SEEDS", FIRST_SEEDS, seeds_max=100)
QUICK = ("a_newest_record_goes",)


def _life(seed: int) -> Counter[str]:
    """Run one life; return what became of the compactions."""
    with opened(seed, with_lake=True, compacting=True) as house:
        try:
            house.run()
        except Exception as error:
            raise AssertionError(f"seed {seed}: {type(error).__name__}: {error}") from error
        assert house.compacting is not None
        return house.compacting.counts


@pytest.mark.seeds
@pytest.mark.timeout(3600)  # as many seeds as somebody asks for
@pytest.mark.parametrize("group", range(GROUPS))
def test_compacted_tables_keep_every_promise(group: int) -> None:
    """What was acknowledged is in the table, unless a later record of its key is; all are told."""
    seeds = seeds_of(group, GROUPS, SEEDS)
    counts = sum((_life(seed) for seed in seeds), Counter[str]())
    if len(seeds) >= 2:
        assert counts.keys() >= {"altered", "compacted", "gone"}, counts


@pytest.mark.timeout(1800)
@pytest.mark.parametrize("mutant", hunted_here(MUTANTS, QUICK))
def test_each_mutant_of_key_compaction_is_caught(mutant: str) -> None:
    """Key compaction with one known mistake breaks a promise in some seed."""
    with MUTANTS[mutant]():
        assert HUNT.catches(mutant, _life)
