"""What every test run needs: property tests without a stopwatch."""

from __future__ import annotations

from hypothesis import settings

# A deadline per example fails on a busy two-core machine, not on a slow function.
settings.register_profile("headwater", deadline=None)
settings.load_profile("headwater")
