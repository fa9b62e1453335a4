"""Seeds of the life of a log that is compacted by keys, and the proof that they would notice.

HEADWATER_SIM_SEED replays one seed, HEADWATER_SIM_SEEDS sets how many are run (`make sim`).
"""

from __future__ import annotations

from collections import Counter

import pytest

from simkit.log.compaction_mutants import FIRST_SEEDS, MUTANTS
from simkit.log.compaction_sim import run_compaction_seed
from simkit.seed_hunt import Hunt, never_seen, seed_count, seeds_of

SEEDS = seed_count(20)
GROUPS = 2  # so that workers share them
MUTANT_SEEDS_MAX = 1000
HUNT = Hunt("simkit/log/compaction_mutants.py: FIRST_SEEDS", FIRST_SEEDS, MUTANT_SEEDS_MAX)

# What has to happen in some seed, or the simulation is blind.
SOMETIMES = (
    "segment compacted",
    "emptied segment",
    "pass finished",
    "pass given up",
    "pass met a full disk",
    "records gone",
    "tombstone gone",
    "reopened compacted",
    "truncated above a compacted range",
    "stopped in the middle",
    "ended by power",
    "rebuilt index",
)
KNOWN_SEEDS = tuple(range(12))  # seeds in which, together, all of it happens


@pytest.mark.seeds
@pytest.mark.parametrize("group", range(GROUPS))
def test_only_what_may_go_is_gone(group: int) -> None:
    """Whatever the disk does, each key's last record and all above the line are there."""
    for seed in seeds_of(group, GROUPS, SEEDS):
        run_compaction_seed(seed)


def test_every_situation_of_compaction_is_reached() -> None:
    """Each situation that key compaction is built for occurs in some seed."""
    table = "tests/sim/test_compaction_sim.py: KNOWN_SEEDS"
    found = never_seen(SOMETIMES, run_compaction_seed, range(MUTANT_SEEDS_MAX), KNOWN_SEEDS, table)
    assert found == []


@pytest.mark.timeout(600)  # if the known seed is stale
@pytest.mark.parametrize("mutant", MUTANTS)
def test_each_mistake_of_compaction_is_caught(mutant: str) -> None:
    """Key compaction with one known mistake breaks a promise in some seed."""
    with MUTANTS[mutant]():
        assert HUNT.catches(mutant, run_compaction_seed)


def test_a_compaction_seed_is_a_whole_story() -> None:
    """The same seed runs the same way again."""
    first: Counter[str] = run_compaction_seed(4)
    assert run_compaction_seed(4) == first
