"""Seeds of a cluster whose streams are changed and purged while everything fails around them.

HEADWATER_SIM_SEED replays one seed, HEADWATER_SIM_SEEDS sets how many are run (`make sim`).
"""

from __future__ import annotations

from collections import Counter

import pytest

from simkit.house.house import opened
from simkit.mistakes.changes import FIRST_SEEDS, MUTANTS, WITH_LAKE
from simkit.seed_hunt import Hunt, hunted_here, seed_count, seeds_of

SEEDS = seed_count(12, one_in=16)
GROUPS = 2  # so that workers share them
HUNT = Hunt("simkit/mistakes/changes.py: FIRST_SEEDS", FIRST_SEEDS, seeds_max=300)
QUICK = ("purge_is_heard_at_the_next_start", "unshipped_records_are_purged")


def _life(seed: int, *, with_lake: bool) -> Counter[str]:
    """Run one life, some of them over Raft; return what became of the changes."""
    raft = seed % 4 == 3 and not with_lake
    with opened(seed, with_lake=with_lake, changing=True, with_raft=raft) as house:
        try:
            house.run()
        except Exception as error:
            raise AssertionError(f"seed {seed}: {type(error).__name__}: {error}") from error
        assert house.changes is not None
        return house.changes.counts


@pytest.mark.seeds
@pytest.mark.timeout(3600)  # as many seeds as somebody asks for
@pytest.mark.parametrize("with_lake", [False, True])
@pytest.mark.parametrize("group", range(GROUPS))
def test_changed_and_purged_streams_keep_every_promise(group: int, with_lake: bool) -> None:
    """What was acknowledged is read, or was purged on purpose; no replica brings it back."""
    seeds = seeds_of(group, GROUPS, SEEDS)
    counts = sum((_life(seed, with_lake=with_lake) for seed in seeds), Counter[str]())
    if len(seeds) >= 6:
        assert counts.keys() >= {"altered", "purged", "CommitTimeoutError"}, counts
        if not with_lake and len(seeds) >= 40:  # one life in six has such a reader
            assert counts["reader told"], "no reader was behind a purge"


@pytest.mark.timeout(1800)
@pytest.mark.parametrize("mutant", hunted_here(MUTANTS, QUICK))
def test_each_mutant_of_changes_is_caught(mutant: str) -> None:
    """A change or a purge with one known mistake breaks a promise in some seed."""
    with MUTANTS[mutant]():
        assert HUNT.catches(mutant, lambda seed: _life(seed, with_lake=mutant in WITH_LAKE))
