"""Seeds of a Raft group whose voters change while everything fails, and proof of sight.

HEADWATER_SIM_SEED replays one seed, HEADWATER_SIM_SEEDS sets how many are run (`make sim`).
HEADWATER_WHOLE_HUNT hunts for every mutant, each from its known seed (`make mutants`).
"""

from __future__ import annotations

from collections import Counter

import pytest

from simkit.raft.changing import run_changing_seed
from simkit.raft.changing_mutants import (
    CHANGING_FIRST_SEEDS,
    CHANGING_HINTS,
    CHANGING_MUTANTS,
    CHANGING_REASONS,
    CHANGING_SCRIPTS,
)
from simkit.seed_hunt import Hunt, seed_count, seeds_of

SEEDS = seed_count(240)
GROUPS = 2  # so that workers share them
MUTANT_SEEDS_MAX = 1500
HUNT = Hunt(
    "simkit/raft/changing_mutants.py: CHANGING_FIRST_SEEDS",
    CHANGING_FIRST_SEEDS,
    MUTANT_SEEDS_MAX,
    CHANGING_SCRIPTS,
    CHANGING_REASONS,
)

# What has to happen in some seed, or the simulation is blind.
SOMETIMES = (
    "1 voters",
    "2 voters",
    "3 voters",
    "4 voters",
    "5 voters",
    "began as an observer",
    "conflict cut",
    "disk numbered",
    "disk put back",
    "elected by voters that were added",
    "elected to leave",
    "files lost",
    "floor reached",
    "not changed: another change of the voters is not committed yet",
    "not changed: it has not caught up with the leader's commit",
    "not changed: it was asked which disk it has",
    "not changed: nothing of the leader's own term is committed yet",
    "numbered disk wiped",
    "rejoined",
    "snapshot installed",
    "voter added",
    "voter removed",
    "went on without some",
)


@pytest.mark.seeds
@pytest.mark.parametrize("group", range(GROUPS))
def test_no_promise_is_broken_while_the_voters_change(group: int) -> None:
    """Through every change of voters safety holds after each step, and healing brings progress."""
    seen: Counter[str] = Counter()
    seeds = seeds_of(group, GROUPS, SEEDS)
    for seed in seeds:
        seen += run_changing_seed(seed)[0]
    if len(seeds) >= 120:
        rare = [what for what in SOMETIMES if not seen[what]]
        assert len(rare) <= 4, f"these seeds are blind for {rare}"


@pytest.mark.timeout(1800)  # if the known seed is stale
@pytest.mark.parametrize("mutant", CHANGING_MUTANTS)
def test_each_mutant_is_caught(mutant: str) -> None:
    """A group that changes its voters by a wrong rule breaks a promise."""
    faults, size, observers = CHANGING_HINTS.get(mutant, (None, None, None))
    with CHANGING_MUTANTS[mutant]():
        assert HUNT.catches(
            mutant,
            lambda seed: run_changing_seed(seed, faults=faults, size=size, observers=observers),
        )


@pytest.mark.parametrize("script", CHANGING_SCRIPTS)
def test_scripts_pass_without_their_mistake(script: str) -> None:
    """What a script catches is the mutant's mistake."""
    CHANGING_SCRIPTS[script]()


@pytest.mark.parametrize("mutant", sorted({*CHANGING_FIRST_SEEDS, *CHANGING_HINTS}))
def test_without_the_mistake_the_same_seeds_pass(mutant: str) -> None:
    """What catches a mutant is its mistake: the same seeds do nothing to the real code."""
    faults, size, observers = CHANGING_HINTS.get(mutant, (None, None, None))
    first = CHANGING_FIRST_SEEDS.get(mutant, 0)
    for seed in range(first, first + 3):
        run_changing_seed(seed, faults=faults, size=size, observers=observers)


def test_a_seed_is_a_whole_story() -> None:
    """The same seed runs the same way twice, so that it can be replayed."""
    lives = [[run_changing_seed(seed)[1] for seed in (11, 12)] for _ in range(2)]
    assert lives[0] == lives[1]
