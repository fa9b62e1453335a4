"""A pytest plugin: plants the mutant that HEADWATER_PLANT names for a whole run of pytest.

``HEADWATER_PLANT=cores:no_alignment pytest -p simkit.mistakes.planted tests/unit/broker/core`` has
to fail. So a mistake that a unit test is to notice is shown to be noticed by it.
"""

from __future__ import annotations

import importlib
import os
from contextlib import ExitStack
from typing import Final

import pytest

_PLANTED: Final = ExitStack()


def pytest_configure(config: pytest.Config) -> None:
    """Plant it before any test is imported."""
    room, _, name = os.environ["HEADWATER_PLANT"].partition(":")
    mutants = importlib.import_module(f"simkit.mistakes.{room}").MUTANTS
    _PLANTED.enter_context(mutants[name]())
    config.add_cleanup(_PLANTED.close)
