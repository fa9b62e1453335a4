"""Checks of the shells that take milliseconds; each check must fail on the bug planted for it."""

from __future__ import annotations

from pathlib import Path
from typing import Final

import pytest

from simkit.brokers.shell_checks import CHECKS, Check
from simkit.brokers.shell_mutants import PLANTED
from simkit.replacing import Mutant

# The errors by which a check, or an assert of the product, reports a bug.
FOUND: Final = (AssertionError, KeyError, IndexError)


@pytest.mark.parametrize("check", CHECKS, ids=lambda check: check.__name__)
def test_the_product_holds(check: Check, tmp_path: Path) -> None:
    """The check passes on the unchanged product."""
    check(tmp_path)


@pytest.mark.parametrize(
    ("mutant", "check"),
    PLANTED,
    ids=[f"{mutant.__name__}-{check.__name__}" for mutant, check in PLANTED],
)
def test_a_planted_bug_is_found(mutant: Mutant, check: Check, tmp_path: Path) -> None:
    """The check fails while the bug is in the product."""
    with mutant(), pytest.raises(FOUND):
        check(tmp_path)


def test_every_check_has_a_bug() -> None:
    """A check that no planted bug fails proves nothing."""
    assert {check for _, check in PLANTED} == set(CHECKS)
