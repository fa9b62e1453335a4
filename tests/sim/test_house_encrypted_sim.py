"""Seeds of a cluster whose streams are encrypted, while brokers lack keys and keys are rotated.

HEADWATER_SIM_SEED replays one seed, HEADWATER_SIM_SEEDS sets how many are run (`make sim`).
"""

from __future__ import annotations

from collections import Counter

import pytest

from simkit.house.house import opened
from simkit.mistakes.encryption import MUTANTS
from simkit.seed_hunt import seed_count, seeds_of

SEEDS = seed_count(6, one_in=32)


def _life(seed: int) -> Counter[str]:
    """Run one life; return what became of its keys."""
    with opened(seed, encrypted=True) as house:
        try:
            house.run()
        except Exception as error:
            raise AssertionError(f"seed {seed}: {type(error).__name__}: {error}") from error
        assert house.keys is not None
        return house.keys.counts


@pytest.mark.seeds
@pytest.mark.timeout(3600)  # as many seeds as somebody asks for
def test_encrypted_streams_keep_every_promise() -> None:
    """What was acknowledged is read, whoever leads and whichever key it was written with."""
    seeds = seeds_of(0, 1, SEEDS)
    counts = sum((_life(seed) for seed in seeds), Counter[str]())
    if len(seeds) >= 6:
        assert counts.keys() >= {"rotated", "locked"}, counts


@pytest.mark.timeout(1800)
@pytest.mark.parametrize("mutant", MUTANTS)
def test_each_mutant_of_encryption_is_caught(mutant: str) -> None:
    """A mistake with keys or places breaks a promise in one of a few lives."""
    with MUTANTS[mutant]():
        for seed in range(12):
            try:
                _life(seed)
            except AssertionError:
                return
    pytest.fail(f"nobody noticed {mutant}")
