"""The real clock. No decision of the broker reads another; metrics read the time themselves."""

from __future__ import annotations

import time


class SystemClock:
    """Implements ``Clock`` over the operating system."""

    def now_us(self) -> int:
        """Return UTC microseconds since 1970."""
        return time.time_ns() // 1000

    def monotonic_ms(self) -> int:
        """Return milliseconds that never go back; time in which the machine is suspended counts."""
        clock = getattr(time, "CLOCK_BOOTTIME", None)  # Linux has it
        return (time.monotonic_ns() if clock is None else time.clock_gettime_ns(clock)) // 1_000_000
