"""The machine's clocks, for shells whose threads really wait."""

from __future__ import annotations

import time


class WallClock:
    """Implements ``Clock``."""

    def now_us(self) -> int:
        """Return UTC microseconds."""
        return time.time_ns() // 1000

    def monotonic_ms(self) -> int:
        """Return milliseconds that never go back."""
        return time.monotonic_ns() // 1_000_000
