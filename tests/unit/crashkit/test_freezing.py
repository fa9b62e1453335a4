"""A process that a test freezes stands still when the call returns."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
from pathlib import Path

import pytest

from freezing import freeze

_PROGRAM = """
import threading, time
for _ in range(4):
    threading.Thread(target=lambda: [time.sleep(0.0001) for _ in iter(int, 1)], daemon=True).start()
print("ready", flush=True)
threading.Event().wait()
"""


def test_no_thread_runs_after_the_call() -> None:
    """Every thread is stopped, each time."""
    with subprocess.Popen([sys.executable, "-c", _PROGRAM], stdout=subprocess.PIPE) as process:
        assert process.stdout is not None
        assert process.stdout.readline() == b"ready\n"
        for _ in range(20):
            freeze(process.pid)
            threads = list(Path(f"/proc/{process.pid}/task").iterdir())
            states = [one.joinpath("stat").read_text().rpartition(") ")[2][0] for one in threads]
            assert states == ["T"] * 5
            os.kill(process.pid, signal.SIGCONT)
        process.kill()
    with pytest.raises(ProcessLookupError):
        freeze(process.pid)
