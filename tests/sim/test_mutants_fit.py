"""Every mutant still has its place in the product.

`make test` plants a few of the mutants. If the place of another one is renamed, only `make mutants`
would say so.
"""

from __future__ import annotations

import importlib
import pkgutil
from collections.abc import Iterator

import simkit
from simkit.replacing import Mutant

_MUTANTS_MIN = 200


def _mutants() -> Iterator[tuple[str, Mutant]]:
    for found in pkgutil.walk_packages(simkit.__path__, "simkit."):
        module = importlib.import_module(found.name)
        for table in ("MUTANTS", "BY_HAND"):
            for name, mutant in getattr(module, table, {}).items():
                yield f"{found.name}: {name}", mutant


def test_every_mutant_can_be_planted() -> None:
    """`replaced` refuses a name that the product no longer has, and other arguments."""
    planted, misfits = 0, []
    for name, mutant in _mutants():
        try:
            with mutant():
                planted += 1
        except (AttributeError, KeyError, TypeError) as error:
            misfits.append(f"{name}: {error!r}")
    assert not misfits
    assert planted > _MUTANTS_MIN
