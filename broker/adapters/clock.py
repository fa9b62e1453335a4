"""The real clock. No decision in the broker reads another one; metrics time what they watch."""

from __future__ import annotations

import time


class SystemClock:
    """Implements ``Clock`` over the operating system."""

    def now_us(self) -> int:
        """Return UTC microseconds since 1970."""
        return time.time_ns() // 1000

    def monotonic_ms(self) -> int:
        """Return milliseconds that never go back."""
        return time.monotonic_ns() // 1_000_000
