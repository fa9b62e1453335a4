"""Seeded lives of a consumer group: the product's coordinators and members, among faults."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator

import pytest
import structlog

from simkit.groups.life import live
from simkit.mistakes import groups
from simkit.seed_hunt import Hunt, seed_count, seeds_of

_TESTS = 4
_HUNT = Hunt("simkit/mistakes/groups.py: FIRST_SEEDS", groups.FIRST_SEEDS, seeds_max=200)


@pytest.fixture(autouse=True)
def _quiet() -> Iterator[None]:
    """Keep thousands of log lines about expelled members out of the report."""
    with structlog.testing.capture_logs():
        yield


@pytest.mark.seeds
@pytest.mark.timeout(600)
@pytest.mark.parametrize("part", range(_TESTS))
def test_nothing_is_skipped_and_a_partition_has_one_reader(part: int) -> None:
    """Kills, pauses, cuts, expulsions, lost coordinators, added partitions; then quiet."""
    met: Counter[str] = Counter()
    for seed in seeds_of(part, _TESTS, seed_count(80)):
        life = live(seed)
        assert life.wrong == [], f"seed {seed}"
        met += life.met
    assert met.keys() >= {"expelled", "kill", "cut", "pause", "coordinator lost"} or not met


@pytest.mark.timeout(600)
@pytest.mark.parametrize("mistake", sorted(groups.MUTANTS))
def test_a_mistake_is_noticed(mistake: str) -> None:
    """Each known mistake breaks a promise in its known seed, or in another one."""
    with groups.MUTANTS[mistake]():
        assert _HUNT.catches(mistake, _kept)


def _kept(seed: int) -> None:
    assert live(seed).wrong == []
