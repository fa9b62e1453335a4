"""Seeds of a cluster whose streams get partitions while everything fails around them.

HEADWATER_SIM_SEED replays one seed, HEADWATER_SIM_SEEDS sets how many are run (`make sim`).
"""

from __future__ import annotations

from collections import Counter

import pytest

from simkit.house.house import opened
from simkit.mistakes.growth import FIRST_SEEDS, MUTANTS, WITH_LAKE
from simkit.seed_hunt import Hunt, hunted_here, seed_count, seeds_of

SEEDS = seed_count(8, one_in=16)
GROUPS = 2  # so that workers share them
HUNT = Hunt("simkit/mistakes/growth.py: FIRST_SEEDS", FIRST_SEEDS, seeds_max=60)
QUICK = ("old_partitions_begin_anew",)


def _life(seed: int, *, with_lake: bool) -> Counter[str]:
    """Run one life, some of them over Raft or Flight; return what became of the growths."""
    raft = seed % 4 == 3 and not with_lake
    flight = seed % 4 == 1
    with opened(
        seed, with_lake=with_lake, growing=True, with_raft=raft, with_flight=flight
    ) as house:
        try:
            house.run()
        except Exception as error:
            raise AssertionError(f"seed {seed}: {type(error).__name__}: {error}") from error
        assert house.growth is not None
        return house.growth.counts


@pytest.mark.seeds
@pytest.mark.timeout(3600)  # as many seeds as somebody asks for
@pytest.mark.parametrize("with_lake", [False, True])
@pytest.mark.parametrize("group", range(GROUPS))
def test_streams_that_grow_keep_every_promise(group: int, with_lake: bool) -> None:
    """What was acknowledged is read once, in old and in new partitions."""
    seeds = seeds_of(group, GROUPS, SEEDS)
    counts = sum((_life(seed, with_lake=with_lake) for seed in seeds), Counter[str]())
    if len(seeds) >= 4:
        assert counts["adopted"], counts
    if len(seeds) >= 12:  # two lives in three hold records of keys that move
        assert counts["held"], counts


@pytest.mark.timeout(1800)
@pytest.mark.parametrize("mutant", hunted_here(MUTANTS, QUICK))
def test_each_mutant_of_growth_is_caught(mutant: str) -> None:
    """A growth with one known mistake breaks a promise in some seed."""
    with MUTANTS[mutant]():
        assert HUNT.catches(mutant, lambda seed: _life(seed, with_lake=mutant in WITH_LAKE))
