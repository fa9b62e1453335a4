"""Seeds of a whole cluster's life, and the proof that they would notice.

HEADWATER_SIM_SEED replays one seed, HEADWATER_SIM_SEEDS sets how many are run (`make sim`).
HEADWATER_WHOLE_HUNT looks for every mutant from the first seed on (`make mutants`).
"""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import pytest

from projectfiles import ROOT
from simkit.cluster.mutants import BIASED, FIRST_SEEDS, LATE_FAULTS, MUTANTS
from simkit.cluster.scripts import SCRIPTS
from simkit.cluster.sightings import SOMETIMES, SOMETIMES_INTERVAL, SOMETIMES_TIERED
from simkit.cluster.sim import run_seed
from simkit.cluster.tier_mutants import FIRST_SEEDS as TIER_FIRST_SEEDS
from simkit.cluster.tier_mutants import INTERVAL_MUTANTS, TIER_MUTANTS
from simkit.seed_hunt import broken_seed, is_caught, never_seen

SEEDS = int(os.environ.get("HEADWATER_SIM_SEEDS") or 240)
REAL_SEEDS = max(40, SEEDS // 8)
LATE_SEEDS = max(60, SEEDS // 4)
TIERED_SEEDS = max(80, SEEDS // 3)
INTERVAL_SEEDS = max(40, SEEDS // 4)
TIERED_REAL_SEEDS = max(20, SEEDS // 12)
WHOLE_HUNT = bool(os.environ.get("HEADWATER_WHOLE_HUNT"))
GROUPS = 4  # so that workers share them
MUTANT_SEEDS_MAX = 1500
TIER_MUTANT_SEEDS_MAX = 4000
SOMETIMES_SEEDS_MAX = 4000


def _seeds(group: int, count: int) -> range:
    only = os.environ.get("HEADWATER_SIM_SEED")
    if only:
        return range(int(only), int(only) + 1 if group == 0 else int(only))
    return range(group, count, GROUPS)


@pytest.mark.seeds
@pytest.mark.parametrize("group", range(GROUPS))
def test_nothing_acknowledged_is_lost(group: int) -> None:
    """Under every mix of faults all invariants hold, and after healing everybody is equal."""
    assert all(run_seed(seed).seen for seed in _seeds(group, SEEDS))


@pytest.mark.seeds
@pytest.mark.parametrize("group", range(GROUPS))
def test_the_same_holds_on_the_product_s_own_log(group: int) -> None:
    """The same lives with PartitionLog on a disk that loses, rots, fails and fills up."""
    assert all(run_seed(seed, real_log=True).seen for seed in _seeds(group, REAL_SEEDS))


@pytest.mark.seeds
@pytest.mark.parametrize("group", range(GROUPS))
def test_late_copies_of_messages_change_nothing(group: int) -> None:
    """Every third message arrives once more, up to 300 ms later, across crashes and epochs."""
    lives = (run_seed(seed, late=True, faults=LATE_FAULTS) for seed in _seeds(group, LATE_SEEDS))
    assert all(one.seen for one in lives)


@pytest.mark.seeds
@pytest.mark.parametrize("group", range(GROUPS))
def test_a_table_and_logs_that_start_above_0_lose_nothing(group: int) -> None:
    """Records are shipped and freed, operators elect who has not everything, logs begin anew."""
    assert all(run_seed(seed, tiered=True).seen for seed in _seeds(group, TIERED_SEEDS))


@pytest.mark.seeds
@pytest.mark.parametrize("group", range(GROUPS))
def test_the_table_s_lives_on_the_product_s_own_log(group: int) -> None:
    """Segments that are really freed, logs that are really replaced."""
    lives = (
        run_seed(seed, tiered=True, real_log=True) for seed in _seeds(group, TIERED_REAL_SEEDS)
    )
    assert all(one.seen for one in lives)


@pytest.mark.seeds
@pytest.mark.parametrize("group", range(GROUPS))
def test_streams_that_sync_now_and_then_lose_only_what_is_recorded(group: int) -> None:
    """A polite stop is believed once; after any other end an operator decides."""
    lives = (run_seed(seed, interval=True) for seed in _seeds(group, INTERVAL_SEEDS))
    assert all(one.seen for one in lives)


@pytest.mark.timeout(900)  # it goes on until the rarest row was seen
def test_every_row_of_the_catalogue_is_reached() -> None:
    """Each known way to lose data had its chance in some seed, or the simulation is blind."""
    found = never_seen(
        SOMETIMES,
        lambda seed: run_seed(seed, late=seed % 4 == 3).seen,
        range(SOMETIMES_SEEDS_MAX),
    )
    assert found == []


@pytest.mark.timeout(900)
def test_every_situation_with_a_table_is_reached() -> None:
    """What a table, its operator and a schedule of its own are there for happens in some seed."""
    found = never_seen(
        SOMETIMES_TIERED,
        lambda seed: run_seed(seed, tiered=True).seen,
        range(SOMETIMES_SEEDS_MAX),
    )
    assert found == []


@pytest.mark.timeout(900)  # the whole hunt of `make mutants` goes through 620 seeds for one
@pytest.mark.parametrize("mutant", MUTANTS)
def test_each_mutant_is_caught(mutant: str) -> None:
    """Replication with one known mistake breaks a promise in its script, or in some seed."""

    def run(seed: int) -> object:
        if mutant in BIASED:
            return run_seed(seed, late=True, faults=BIASED[mutant])
        return run_seed(seed)

    first = 0 if WHOLE_HUNT else FIRST_SEEDS.get(mutant, 0)
    seeds = [*range(first, MUTANT_SEEDS_MAX), *range(first)]
    with MUTANTS[mutant]():
        assert is_caught(mutant, SCRIPTS, run, seeds)


def test_every_situation_of_a_polite_stop_is_reached() -> None:
    """Notes are written and believed, places given up, losses recorded."""
    found = never_seen(
        SOMETIMES_INTERVAL,
        lambda seed: run_seed(seed, interval=True).seen,
        range(SOMETIMES_SEEDS_MAX),
    )
    assert found == []


@pytest.mark.parametrize("mutant", INTERVAL_MUTANTS)
def test_each_mutant_of_a_polite_stop_is_caught(mutant: str) -> None:
    """What a process says of the one before it, with one known mistake, costs a record."""
    seeds = range(MUTANT_SEEDS_MAX)
    with INTERVAL_MUTANTS[mutant]():
        assert broken_seed(lambda seed: run_seed(seed, interval=True), seeds) is not None


@pytest.mark.timeout(1800)  # the whole hunt of `make mutants` goes through 3,784 seeds for one
@pytest.mark.parametrize("mutant", TIER_MUTANTS)
def test_each_mutant_of_the_table_is_caught(mutant: str) -> None:
    """What replication does with the table, with one known mistake, breaks a promise."""
    first = 0 if WHOLE_HUNT else TIER_FIRST_SEEDS.get(mutant, 0)
    seeds = [*range(first, first + 100), *range(TIER_MUTANT_SEEDS_MAX)]
    with TIER_MUTANTS[mutant]():
        assert broken_seed(lambda seed: run_seed(seed, tiered=True), seeds) is not None


@pytest.mark.parametrize("script", SCRIPTS)
def test_scripts_pass_without_their_mistake(script: str) -> None:
    """What a script catches is the mutant's mistake."""
    SCRIPTS[script]()


def test_a_seed_is_a_whole_story(tmp_path: Path) -> None:
    """The same seed happens the same way again, also in a process with other hash seeds."""
    here = [run_seed(seed).digest for seed in range(3)]
    assert here == [run_seed(seed).digest for seed in range(3)]
    script = tmp_path / "digests.py"
    script.write_text(
        "from simkit.cluster.sim import run_seed\n"
        "print(*(run_seed(seed).digest for seed in range(3)))\n",
        encoding="utf-8",
    )
    path = os.pathsep.join([str(ROOT), str(ROOT / "tests/lib")])
    for hash_seed in ("1", "2"):
        told = subprocess.run(
            [sys.executable, str(script)],
            env={**os.environ, "PYTHONPATH": path, "PYTHONHASHSEED": hash_seed},
            capture_output=True,
            text=True,
            check=True,
        )
        assert told.stdout.split() == here
