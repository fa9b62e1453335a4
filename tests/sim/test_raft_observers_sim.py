"""Members that do not vote, in the simulation of a Raft group: nothing rests on them.

The seeds of `test_raft_sim.py` have observers now and then; here all have.
"""

from __future__ import annotations

from collections import Counter

import pytest

from simkit.raft.observer_mutants import (
    OBSERVER_FIRST_SEEDS,
    OBSERVER_HINTS,
    OBSERVER_MUTANTS,
    OBSERVER_SCRIPTS,
)
from simkit.raft.sim import run_seed
from simkit.seed_hunt import Hunt

SEEDS = 60
HUNT = Hunt(
    "simkit/raft/observer_mutants.py: OBSERVER_FIRST_SEEDS",
    OBSERVER_FIRST_SEEDS,
    seeds_max=300,
    scripts=OBSERVER_SCRIPTS,
)


@pytest.mark.parametrize("observers", [1, 2])
def test_no_promise_is_broken_and_everybody_comes_to_the_same_place(observers: int) -> None:
    """With whatever faults; wiped observers, and those that need a snapshot, among them."""
    seen: Counter[str] = Counter()
    for seed in range(20_000, 20_000 + SEEDS):
        seen += run_seed(seed, observers=observers)[0]
    wanted = {"observers converged", "observer wiped", "snapshot installed"}
    assert wanted <= seen.keys(), "these seeds are blind"


@pytest.mark.parametrize("mutant", OBSERVER_MUTANTS)
def test_each_observer_mutant_is_caught(mutant: str) -> None:
    """A group with one known mistake breaks a promise in some seed, or in its script."""
    faults, size, observers = OBSERVER_HINTS.get(mutant, (None, None, None))
    with OBSERVER_MUTANTS[mutant]():
        assert HUNT.catches(
            mutant, lambda seed: run_seed(seed, faults=faults, size=size, observers=observers)
        )


@pytest.mark.parametrize("script", OBSERVER_SCRIPTS)
def test_observer_scripts_pass_without_their_mistake(script: str) -> None:
    """What a script catches is the mutant's mistake."""
    OBSERVER_SCRIPTS[script]()


@pytest.mark.parametrize("mutant", OBSERVER_HINTS)
def test_without_the_mistake_the_same_observers_seeds_pass(mutant: str) -> None:
    """What catches a mutant is its mistake: the same faults do nothing to the real code."""
    faults, size, observers = OBSERVER_HINTS[mutant]
    for seed in range(5):
        run_seed(seed, faults=faults, size=size, observers=observers)
