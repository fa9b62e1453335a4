"""The event that every core takes. Each core has its other events beside it.

A core is a machine without I/O: ``step(event) -> effects``. An event carries the time at which it
happened, ``now_ms`` of the monotonic clock, if the core needs it; so a simulation that repeats the
events repeats every decision. A core that acts before its first event has ``start(now_ms)``.
"""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(frozen=True, slots=True)
class TickElapsed:
    """Time has passed."""

    now_ms: int
