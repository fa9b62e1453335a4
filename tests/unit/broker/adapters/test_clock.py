"""The clocks of a broker and of a group's member: a machine that slept has grown older."""

from __future__ import annotations

import subprocess
import sys
import time

import pytest

from broker.adapters.clock import SystemClock
from headwater.client.group.calls import monotonic_ms

pytestmark = pytest.mark.skipif(sys.platform != "linux", reason="other clocks")

_ASLEEP_S = 86_400
_CODE = """
import time
from broker.adapters.clock import SystemClock
from headwater.client.group.calls import monotonic_ms
awake_ms = time.monotonic_ns() // 1_000_000
print(SystemClock().monotonic_ms() - awake_ms, monotonic_ms() - awake_ms)
"""


def test_the_time_in_which_the_machine_slept_counts() -> None:
    """Both clocks are the one that the system does not stop while it is suspended."""
    before_ms = time.clock_gettime_ns(time.CLOCK_BOOTTIME) // 1_000_000
    times = [SystemClock().monotonic_ms(), monotonic_ms()]
    after_ms = time.clock_gettime_ns(time.CLOCK_BOOTTIME) // 1_000_000
    assert all(before_ms <= one <= after_ms for one in times)


def test_a_machine_that_has_slept_for_a_day() -> None:
    """A namespace of Linux in which the boot is a day earlier, and the other clock is not."""
    command = ["unshare", "--time", "--boottime", str(_ASLEEP_S), "--fork", sys.executable]
    try:
        done = subprocess.run([*command, "-c", _CODE], capture_output=True, check=False, text=True)
    except FileNotFoundError:
        pytest.skip("no unshare")
    if "Operation not permitted" in done.stderr:
        pytest.skip("no right to make a time namespace")
    assert done.returncode == 0, done.stderr
    slept_ms = time.clock_gettime_ns(time.CLOCK_BOOTTIME) - time.monotonic_ns()
    for told in done.stdout.split():
        assert int(told) >= _ASLEEP_S * 1000 + slept_ms // 1_000_000 - 1_000
