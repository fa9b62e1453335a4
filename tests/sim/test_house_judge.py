"""The judge of real clusters, alone over simulated ones: what clients see is enough.

The oracle is muted here. It finds more and sooner, for it looks inside; but a mistake that costs
anybody a record must show in what clients heard and in the final reads as well.
"""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

import pytest

from checkkit.checker import judge
from simkit.house.clients import RULES
from simkit.house.damage import Damage
from simkit.house.house import run_seed
from simkit.house.oracle import Oracle
from simkit.house.scripts import finish, one_partition, the_one
from simkit.mistakes import cores, shells
from simkit.replacing import replaced, together
from simkit.seed_hunt import Hunt

MUTED = ("wrote", "started_leading", "shown", "acked", "isr_proposed", "look")
MUTANTS: dict[str, Any] = {**cores.MUTANTS, **shells.MUTANTS}
KINDS = {
    "group_is_not_remembered": "doubled",
    "no_alignment": "moved|lost|withdrawn|diverged",
    "last_replica_standing": "lost|withdrawn|moved|diverged",
    "same_epoch_after_restart": "leaders",
}
# The first seed that is known to show it, if that is not 0.
FIRST_SEEDS = {
    "group_is_not_remembered": 22,
    "last_replica_standing": 185,
    "no_alignment": 3,
    "same_epoch_after_restart": 2,
}
HUNT = Hunt("tests/sim/test_house_judge.py: FIRST_SEEDS", FIRST_SEEDS, seeds_max=200, reasons=KINDS)


@contextmanager
def _oracle_muted() -> Iterator[None]:
    deaf = [replaced(Oracle, name, lambda *_, **__: None) for name in MUTED]
    with together(replaced(Damage, "look", lambda _: None), *deaf):
        yield


@pytest.mark.parametrize("mutant", KINDS)
def test_the_judge_alone_sees_a_mutant(mutant: str) -> None:
    """A mistake is found out by its clients; that a replica stands alone is seldom met."""
    with _oracle_muted(), MUTANTS[mutant]():
        assert HUNT.catches(mutant, run_seed)


def test_the_judge_alone_passes_what_is_right() -> None:
    """With the oracle muted, and without a mutant, nothing is found."""
    with _oracle_muted():
        assert all(run_seed(seed).acked > 0 for seed in range(2))


def test_the_judge_has_something_to_judge() -> None:
    """A life gives it acks, polls and rows; and a record that all replicas lose is missed."""
    with one_partition(3, brokers=3, factor=3, min_isr=2) as house:
        house.run_for(1500)
        finish(house)
        assert house.history.acked_count > 10
        assert len(house.history.poll_rows) > 10
        finals = house.final_reads()
        assert len(finals) == 3
        for name in house.row(the_one(house)).replicas:
            driver = house.nodes[name].replica(the_one(house))
            assert driver is not None
            log = driver._local.log
            log.truncate(type(log.log_end)(log.log_end - 1))
        counts = {one.value for one in judge(house.history, house.final_reads(), RULES).counts}
        assert counts & {"lost", "withdrawn"}
