"""The checker against random runs of an honest cluster, and against every way to spoil one."""

from __future__ import annotations

import random

import pytest
from hypothesis import given
from hypothesis import strategies as st

from cases import examples
from checkkit.checker import judge
from checkkit.generate import SPOILERS, Generator, Run, Spoiler

SEEDS = st.integers(0, 2**32)


def _run(seed: int, steps: int) -> Run:
    return Generator(random.Random(seed), steps=steps).run()


@given(SEEDS, st.integers(0, 150))
@examples(150)
def test_an_honest_run_passes(seed: int, steps: int) -> None:
    """Whatever happens to an honest cluster, nothing is flagged."""
    run = _run(seed, steps)
    verdict = judge(run.history, run.finals)
    assert verdict.ok, str(verdict)


@pytest.mark.parametrize("spoiler", SPOILERS, ids=lambda spoiler: spoiler.__name__)
@given(SEEDS, st.integers(0, 100))
@examples(30)
def test_one_corruption_is_flagged(spoiler: Spoiler, seed: int, steps: int) -> None:
    """One change to a good run is found, under one of the names that fit it."""
    run = _run(seed, steps)
    names = spoiler(run, random.Random(seed))
    verdict = judge(run.history, run.finals)
    assert names & verdict.counts.keys(), f"{spoiler.__doc__} Found: {verdict}"
