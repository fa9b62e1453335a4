"""The simulation of test_raft_sim.py with pysyncobj and its corrections as the members.

The same seeds, faults and promises; HEADWATER_SIM_SEED and HEADWATER_SIM_SEEDS as there.
"""

from __future__ import annotations

from collections import Counter

import pytest

from simkit.raft.pysyncobj_mutants import (
    FIRST_SEEDS,
    HINTS,
    MUTANTS,
    REASONS,
    SCRIPTS,
    in_simulation,
)
from simkit.raft.sim import run_seed
from simkit.seed_hunt import Hunt, seed_count, seeds_of

SEEDS = seed_count(150)
MUTANT_SEEDS_MAX = 1500
HUNT = Hunt(
    "simkit/raft/pysyncobj_mutants.py: FIRST_SEEDS", FIRST_SEEDS, MUTANT_SEEDS_MAX, SCRIPTS, REASONS
)

# What has to happen in some seed, or the simulation is blind.
SOMETIMES = (
    "barrier passed on a follower",
    "conflict cut",
    "deaf follower did no harm",
    "deaf leader replaced",
    "floor reached",
    "killed",
    "lonely follower came back",
    "power lost everywhere",
    "refused: transferring",
    "rejoined",
    "retry answered",
    "snapshot installed",
)


@pytest.mark.seeds
def test_no_promise_is_broken_and_the_group_comes_back() -> None:
    """Whatever fails, safety holds after every step, and healing brings progress."""
    seen: Counter[str] = Counter()
    seeds = seeds_of(0, 1, SEEDS)
    with in_simulation():
        for seed in seeds:
            seen += run_seed(seed, observers=0)[0]
    if len(seeds) >= 150:
        assert [what for what in SOMETIMES if not seen[what]] == []


def test_a_seed_is_a_whole_story() -> None:
    """The same seed runs the same way twice, so that it can be replayed."""
    with in_simulation():
        assert [run_seed(seed, observers=0)[1] for seed in (11, 12)] == [
            run_seed(seed, observers=0)[1] for seed in (11, 12)
        ]


@pytest.mark.timeout(1800)  # if the known seed is stale
@pytest.mark.parametrize("mutant", MUTANTS)
def test_each_correction_is_needed(mutant: str) -> None:
    """Without one of them a promise is broken in some seed, or in its script."""
    faults, size = HINTS.get(mutant, (None, None))
    with in_simulation(), MUTANTS[mutant]():
        assert HUNT.catches(
            mutant, lambda seed: run_seed(seed, faults=faults, size=size, observers=0)
        )


@pytest.mark.parametrize("script", SCRIPTS)
def test_scripts_pass_with_all_corrections(script: str) -> None:
    """What a script catches is what the mutant took away."""
    SCRIPTS[script]()


@pytest.mark.parametrize("mutant", HINTS)
def test_with_all_corrections_the_same_seeds_pass(mutant: str) -> None:
    """A mutant fails by the correction that it takes away: without it the same faults pass."""
    faults, size = HINTS[mutant]
    first = FIRST_SEEDS.get(mutant, 0)
    with in_simulation():
        lives = [
            run_seed(seed, faults=faults, size=size, observers=0)[1]
            for seed in range(first, first + 5)
        ]
    assert len(set(lives)) == len(lives), "they were not the seeds' own lives"
