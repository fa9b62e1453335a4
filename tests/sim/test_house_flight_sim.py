"""Lives in which publishers call over Flight, and the proof that they would notice a mistake.

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
from simkit.house.house import run_seed
from simkit.mistakes.flight import FIRST_SEEDS, MUTANTS
from simkit.seed_hunt import Hunt, never_seen, seed_count, seeds_of

SEEDS = seed_count(8, one_in=8)
SIGHT_SEEDS_MAX = 200
MUTANT_SEEDS_MAX = 60
HUNT = Hunt("simkit/mistakes/flight.py: FIRST_SEEDS", FIRST_SEEDS, MUTANT_SEEDS_MAX)
# Lives in which, together, everything was met; a change of the product moves some elsewhere.
KNOWN_LIVES = (10, 1, 8, 11)
GROUPS = 2  # so that workers share them
FILES = [ROOT / f"tests/lib/simkit/house/{one}.py" for one in ("flight", "flight_clients")]


@pytest.mark.seeds
@pytest.mark.timeout(3600)  # as many seeds as somebody asks for
@pytest.mark.parametrize("group", range(GROUPS))
def test_nothing_acknowledged_over_flight_is_lost(group: int) -> None:
    """Answers come in the order of the batches, once each, and are kept; every fifth over Raft."""
    seeds = seeds_of(group, GROUPS, SEEDS)
    assert all(run_seed(one, with_flight=True, with_raft=one % 5 == 4).seen for one in seeds)


@pytest.mark.timeout(900)  # until the rarest was seen
def test_every_situation_of_a_call_is_reached() -> None:
    """A bound that is never met, or a refusal that nobody hears, proves nothing."""
    texts = [path.read_text("utf-8") for path in FILES]
    wanted = {one for text in texts for one in re.findall(r'note\(\s*"([^"]+)"', text)}
    wanted |= {f"Flight publish refused: {one}" for one in ("OverloadedError", "NotLeaderError")}
    wanted |= {"retry answered with its first offset (producer)"}
    assert len(wanted) > 8
    lives, table = range(SIGHT_SEEDS_MAX), "tests/sim/test_house_flight_sim.py: KNOWN_LIVES"
    assert never_seen(wanted, _seen, lives, KNOWN_LIVES, table) == []


def _seen(seed: int) -> Counter[str]:
    return run_seed(seed, with_flight=True).seen


@pytest.mark.timeout(1800)
@pytest.mark.parametrize("mutant", MUTANTS)
def test_each_mutant_of_a_call_is_caught(mutant: str) -> None:
    """The product's session with one known mistake breaks a promise in some seed."""
    with MUTANTS[mutant]():
        assert HUNT.catches(mutant, lambda seed: run_seed(seed, with_flight=True))


def test_a_life_with_calls_is_a_whole_story() -> None:
    """The same seed happens the same way again, also in a process with another hash seed."""
    script = "from simkit.house.house import run_seed; print(run_seed(1, with_flight=True).digest)"
    told = subprocess.run(
        [sys.executable, "-c", script],
        env={
            **os.environ,
            "PYTHONPATH": os.pathsep.join([str(ROOT), str(ROOT / "tests/lib")]),
            "PYTHONHASHSEED": "1",
        },
        capture_output=True,
        text=True,
        check=True,
    )
    assert told.stdout.strip() == run_seed(1, with_flight=True).digest
