"""Seeds of a cluster whose streams are paused and read-only while everything fails around them.

HEADWATER_SIM_SEED replays one seed, HEADWATER_SIM_SEEDS sets how many are run (`make sim`).
"""

from __future__ import annotations

from collections import Counter

import pytest

from simkit.house.house import opened
from simkit.mistakes.pausing import FIRST_SEEDS, MUTANTS
from simkit.seed_hunt import Hunt, hunted_here, seed_count, seeds_of

SEEDS = seed_count(2, one_in=16)
GROUPS = 1
HUNT = Hunt("simkit/mistakes/pausing.py: FIRST_SEEDS", FIRST_SEEDS, seeds_max=100)
QUICK = ("stopped_partition_takes_records",)


def _life(seed: int) -> Counter[str]:
    """Run one life; return what became of the pauses."""
    with opened(seed, pausing=True) as house:
        try:
            house.run()
        except Exception as error:
            raise AssertionError(f"seed {seed}: {type(error).__name__}: {error}") from error
        assert house.pausing is not None
        return house.pausing.counts


@pytest.mark.seeds
@pytest.mark.timeout(3600)  # as many seeds as somebody asks for
@pytest.mark.parametrize("group", range(GROUPS))
def test_paused_streams_keep_every_promise(group: int) -> None:
    """A leader that obeys a pause writes nothing; once resumed, all that waited is stored."""
    seeds = seeds_of(group, GROUPS, SEEDS)
    counts = sum((_life(seed) for seed in seeds), Counter[str]())
    if len(seeds) >= 2:
        assert counts.keys() >= {"paused", "resumed", "readonly", "auto", "stopped"}, counts


@pytest.mark.timeout(1800)
@pytest.mark.parametrize("mutant", hunted_here(MUTANTS, QUICK))
def test_each_mutant_of_pauses_is_caught(mutant: str) -> None:
    """A pause with one known mistake breaks a promise in some seed."""
    with MUTANTS[mutant]():
        assert HUNT.catches(mutant, _life)
