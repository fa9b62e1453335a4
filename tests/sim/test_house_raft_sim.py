"""The product's shells over the product's Raft: brokers, controllers and their journals, together.

HEADWATER_SIM_SEED replays one seed, HEADWATER_SIM_SEEDS sets how many are run (`make sim`).
HEADWATER_WHOLE_HUNT hunts for every mutant, each from its known seed (`make mutants`).
"""

from __future__ import annotations

import os
import re
import subprocess
import sys
from collections import Counter

import pytest

from projectfiles import ROOT
from simkit.house.beneath.mutants import BIASED, FIRST_SEEDS, MUTANTS, QUICK
from simkit.house.house import run_seed
from simkit.seed_hunt import Hunt, hunted_here, never_seen, seed_count, seeds_of

SEEDS = seed_count(4, one_in=16)
SIGHT_SEEDS_MAX = 200
MUTANT_SEEDS_MAX = 120
GROUPS = 2  # so that workers share them
# Lives in which, together, everything was met; a change of the product moves some elsewhere.
KNOWN_LIVES = (40, 0, 1)
HUNT = Hunt("simkit/house/beneath/mutants.py: FIRST_SEEDS", FIRST_SEEDS, MUTANT_SEEDS_MAX)
FILE = ROOT / "tests/lib/simkit/house/beneath/raft.py"


@pytest.mark.seeds
@pytest.mark.timeout(3600)  # as many seeds as somebody asks for
@pytest.mark.parametrize("group", range(GROUPS))
def test_nothing_acknowledged_is_lost_over_raft(group: int) -> None:
    """Kills, power cuts, partitions, pauses and wiped disks, of brokers that are controllers."""
    assert all(run_seed(seed, with_raft=True).seen for seed in seeds_of(group, GROUPS, SEEDS))


@pytest.mark.timeout(900)  # until the rarest was seen
def test_every_situation_of_raft_is_reached() -> None:
    """A floor that nobody rejoins below, or a leader that is never asked, proves nothing."""
    wanted = set(re.findall(r'note\(\s*"([^"]+)"', FILE.read_text("utf-8")))
    assert len(wanted) > 4
    lives, table = range(SIGHT_SEEDS_MAX), "tests/sim/test_house_raft_sim.py: KNOWN_LIVES"
    assert never_seen(wanted, _seen, lives, KNOWN_LIVES, table) == []


def _seen(seed: int) -> Counter[str]:
    return run_seed(seed, with_raft=True).seen


@pytest.mark.timeout(1800)
@pytest.mark.parametrize("mutant", hunted_here(MUTANTS, QUICK))
def test_each_mutant_around_raft_is_caught(mutant: str) -> None:
    """A shell around the core with one known mistake breaks a promise in some seed."""
    faults = BIASED.get(mutant)
    with MUTANTS[mutant]():
        assert HUNT.catches(mutant, lambda seed: run_seed(seed, with_raft=True, faults=faults))


def test_a_seed_over_raft_is_a_whole_story() -> None:
    """The same seed happens the same way again, also in a process with another hash seed."""
    told = subprocess.run(
        [
            sys.executable,
            "-c",
            "from simkit.house.house import run_seed; print(run_seed(0, with_raft=True).digest)",
        ],
        env={**_environment(), "PYTHONHASHSEED": "1"},
        capture_output=True,
        text=True,
        check=True,
    )
    assert told.stdout.strip() == run_seed(0, with_raft=True).digest


def test_what_is_beneath_is_the_product_s() -> None:
    """The pumps, the core and the journal of Raft are in the simulation's import graph."""
    told = subprocess.run(
        [sys.executable, "-c", "import sys, simkit.house.house; print(*sys.modules)"],
        env=_environment(),
        capture_output=True,
        text=True,
        check=True,
    )
    rooms = ("pump", "saving", "applying", "waiting", "rejoin", "machine")
    wanted = {f"broker.runtime.metadata.raft.{one}" for one in rooms}
    wanted |= {"broker.runtime.metadata.raft_metadata_log", "broker.core.raft.core"}
    wanted |= {"broker.storage.raft.journal", "broker.codec.peer.raft_messages"}
    assert wanted <= set(told.stdout.split())


def _environment() -> dict[str, str]:
    path = os.pathsep.join([str(ROOT), str(ROOT / "tests/lib")])
    return {**os.environ, "PYTHONPATH": path}
