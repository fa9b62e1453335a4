"""What a broker of the default configuration does not import."""

from __future__ import annotations

import subprocess
import sys


def test_a_broker_without_liftbridge_does_not_import_http2() -> None:
    """The API of Liftbridge is off by default, and HTTP/2 is 30 ms of a start."""
    program = (
        "import sys, broker.process.daemon; "
        "print(sorted({'h2', 'broker.adapters.liftbridge.service'} & set(sys.modules)))"
    )
    done = subprocess.run(
        [sys.executable, "-c", program], capture_output=True, text=True, check=True
    )
    assert done.stdout.strip() == "[]"
