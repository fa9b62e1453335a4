"""What every test run needs: property tests without a stopwatch, JVMs that start with little CPU."""

from __future__ import annotations

import os

from hypothesis import settings

from broker.adapters.raft_pysyncobj.pinned import sockets_kept

# A deadline per example fails on a busy two-core machine, not on a slow function.
# HEADWATER_TEST_EXAMPLES is for `make quick`; a property that sets its own number keeps it.
EXAMPLES = int(os.environ.get("HEADWATER_TEST_EXAMPLES") or settings().max_examples)
settings.register_profile("headwater", deadline=None, max_examples=EXAMPLES)
settings.load_profile("headwater")

# Every JVM that a test starts runs for seconds: compile quickly rather than well, and collect
# garbage on one thread. A first Spark query takes 16 s of CPU with these options, 30 s without.
os.environ.setdefault("JAVA_TOOL_OPTIONS", "-XX:TieredStopAtLevel=1 -XX:+UseSerialGC")

with sockets_kept():  # its first import breaks socket.inet_ntop, wherever a test does it
    import pysyncobj.syncobj  # noqa: F401
