"""A process that met a bug ends with its exit code, even if its other threads hang."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import pytest

REPOSITORY = Path(__file__).resolve().parents[4]


@pytest.mark.parametrize(
    "say",
    [
        "lambda: print('said', flush=True)",
        "threading.Event().wait",  # a pipe for the log that nobody reads
        "lambda: 1 / 0",
        "lambda: sys.exit(3)",
    ],
)
def test_the_process_ends_at_once(say: str) -> None:
    """Hanging threads, even the main one, do not delay the end; no exit handler runs."""
    program = f"""
import atexit, sys, threading
from broker.runtime.process_end import end_process
atexit.register(lambda: print("handler", flush=True))
threading.Thread(target=threading.Event().wait).start()
threading.Thread(target=end_process, args=(70, {say})).start()
threading.Event().wait()
"""
    ended = subprocess.run(
        [sys.executable, "-c", program],
        check=False,
        cwd=REPOSITORY,
        timeout=120,
        capture_output=True,
        text=True,
    )
    assert ended.returncode == 70
    assert "handler" not in ended.stdout
