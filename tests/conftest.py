"""What every test run needs: one worker for Spark, and property tests without a stopwatch."""

from __future__ import annotations

import pytest
from hypothesis import settings

# A deadline per example fails on a busy two-core machine, not on a slow function.
settings.register_profile("headwater", deadline=None)
settings.load_profile("headwater")


def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    """Put the Spark tests into one group: one JVM, in one worker of `pytest --dist loadgroup`."""
    for item in items:
        if item.get_closest_marker("spark") is not None:
            item.add_marker(pytest.mark.xdist_group("spark"))
