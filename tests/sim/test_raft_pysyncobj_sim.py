"""The simulation of test_raft_sim.py with pysyncobj and its corrections as the members.

The same seeds, faults and promises; HEADWATER_SIM_SEED and HEADWATER_SIM_SEEDS as there.
"""

from __future__ import annotations

import os
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
from simkit.seed_hunt import hunting_order, is_caught

SEEDS = int(os.environ.get("HEADWATER_SIM_SEEDS") or 150)
MUTANT_SEEDS_MAX = 1500

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


def _seeds() -> range:
    only = os.environ.get("HEADWATER_SIM_SEED")
    return range(int(only), int(only) + 1) if only else range(SEEDS)


@pytest.mark.seeds
def test_no_promise_is_broken_and_the_group_comes_back() -> None:
    """Whatever fails, safety holds after every step, and healing brings progress."""
    seen: Counter[str] = Counter()
    with in_simulation():
        for seed in _seeds():
            seen += run_seed(seed, observers=0)[0]
    if len(_seeds()) >= 150:
        assert [what for what in SOMETIMES if not seen[what]] == []


def test_a_seed_is_a_whole_story() -> None:
    """The same seed runs the same way twice, so that it can be replayed."""
    with in_simulation():
        assert [run_seed(seed, observers=0)[1] for seed in (11, 12)] == [
            run_seed(seed, observers=0)[1] for seed in (11, 12)
        ]


@pytest.mark.parametrize("mutant", MUTANTS)
def test_each_correction_is_needed(mutant: str) -> None:
    """Without one of them a promise is broken in some seed, or in its script."""
    faults, size = HINTS.get(mutant, (None, None))
    with in_simulation(), MUTANTS[mutant]():
        assert is_caught(
            mutant,
            SCRIPTS,
            lambda seed: run_seed(seed, faults=faults, size=size, observers=0),
            hunting_order(FIRST_SEEDS.get(mutant, 0), MUTANT_SEEDS_MAX),
            REASONS[mutant],
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
