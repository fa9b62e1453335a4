"""Seeds of a partition log's life on a failing disk, and the proof that they would notice.

HEADWATER_SIM_SEED replays one seed, HEADWATER_SIM_SEEDS sets how many are run (`make sim`).
HEADWATER_WHOLE_HUNT hunts for every mutant, each from its known seed (`make mutants`).
"""

from __future__ import annotations

import os
import subprocess
import sys
from collections import Counter

import pytest

from projectfiles import ROOT
from simkit.log.mutants import FIRST_SEEDS, MUTANTS
from simkit.log.sim import run_seed
from simkit.seed_hunt import Hunt, never_seen, seed_count, seeds_of

SEEDS = seed_count(400)
GROUPS = 4  # so that workers share them
REPLAYED = (5, 7, 11, 14, 20, 34, 42)  # power cuts with several unsynced files, but 11
MUTANT_SEEDS_MAX = 4000
HUNT = Hunt("simkit/log/mutants.py: FIRST_SEEDS", FIRST_SEEDS, MUTANT_SEEDS_MAX)

# What has to happen in some seed, or the simulation is blind. Most do by a thousand seeds.
SOMETIMES = (
    "torn tail cut",
    "tail written again",
    "rot proved: BELOW_RECOVERY_POINT",
    "rot proved: SEEN_SYNCED",
    "rot proved: NO_SECTOR_MISSING",
    "rot proved: SEALED",
    "rot proved: MISSING",
    "damage met by name",
    "damaged log refused writes",
    "flipped in log",
    "flipped in header",
    "flipped in index",
    "flipped in epochs",
    "flipped in recovery",
    "flipped in producers",
    "rebuilt index",
    "rebuilt epochs",
    "rebuilt recovery",
    "sector torn",
    "sector lost",
    "name lost",
    "torn roll: successor lost",
    "torn roll: index lost",
    "disk full, refused",
    "disk full, healed",
    "write did not fit",
    "allocation did not fit",
    "file did not fit",
    "log failed by fsync",
    "failed in recovery",
    "stopped in the middle",
    "stopped in recovery",
    "segment lost",
    "segment cut short",
    "active segment cut short",
    "sector zeroed",
    "active sector zeroed",
    "freed",
    "truncated",
    "cut interrupted",
    "rolled by age",
    "lost: folder",
    "lost: older",
    "lost: active",
    "lost: cut",
    "loss named",
    "read failed",
    "promises failed",
    "rot proved: PROMISED",
    "rot proved: UNREADABLE",
    "copied in groups",
    "ended by close",
    "ended by kill",
    "ended by power",
)
# Seeds in which, together, all of it happens; others are run when it does not.
KNOWN_SEEDS = (
    *(3, 4, 8, 10, 13, 25, 36, 63, 65, 111),
    *(174, 265, 436, 525, 570, 731, 1371, 69, 507, 40),
)


@pytest.mark.seeds
@pytest.mark.parametrize("group", range(GROUPS))
def test_promised_records_survive_or_are_named(group: int) -> None:
    """Whatever the disk does, promised records are there bit for bit or their damage is named."""
    seen: Counter[str] = Counter()
    seeds = seeds_of(group, GROUPS, SEEDS)
    for seed in seeds:
        seen += run_seed(seed)
    if len(seeds) >= SEEDS // GROUPS >= 250:
        rare = [what for what in SOMETIMES if not seen[what]]
        assert len(rare) <= len(SOMETIMES) // 5, f"these seeds are blind for {rare}"


def test_every_situation_is_reached() -> None:
    """Each situation that the log is built for occurs in some seed."""
    table = "tests/sim/test_log_sim.py: KNOWN_SEEDS"
    assert never_seen(SOMETIMES, run_seed, range(MUTANT_SEEDS_MAX), KNOWN_SEEDS, table) == []


@pytest.mark.timeout(1800)  # if the known seed is stale
@pytest.mark.parametrize("mutant", MUTANTS)
def test_each_mutant_is_caught(mutant: str) -> None:
    """A log with one known mistake breaks a promise in some seed."""
    with MUTANTS[mutant]():
        assert HUNT.catches(mutant, run_seed)


def test_a_seed_is_a_whole_story() -> None:
    """The same seed runs the same way in another process, so a failure can be replayed."""
    script = (
        "from simkit.log.sim import run_seed\n"
        f"print([sorted(run_seed(seed).items()) for seed in {REPLAYED}])"
    )
    path = os.pathsep.join([str(ROOT), str(ROOT / "tests/lib")])
    here = f"{[sorted(run_seed(seed).items()) for seed in REPLAYED]}\n"
    for hash_seed in ("1", "2"):
        told = subprocess.run(
            [sys.executable, "-c", script],
            env={**os.environ, "PYTHONPATH": path, "PYTHONHASHSEED": hash_seed},
            capture_output=True,
            text=True,
            check=True,
        )
        assert told.stdout == here
