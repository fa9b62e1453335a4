"""Child processes of a test: waited for by their output, ended by their own handle."""

from __future__ import annotations

import contextlib
import subprocess
import threading
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Final

_END_S: Final = 30.0
_LOOK_S: Final = 0.1


@contextlib.contextmanager
def ended(process: subprocess.Popen[bytes]) -> Iterator[subprocess.Popen[bytes]]:
    """Terminate a child at the end of the block, and kill it if it does not go."""
    try:
        yield process
    finally:
        process.terminate()
        try:
            process.wait(_END_S)
        except subprocess.TimeoutExpired:
            process.kill()
            process.wait(_END_S)


def wait_for_line(process: subprocess.Popen[bytes], log: Path, text: str, seconds: float) -> str:
    """Return the first line of a child's log that contains a text.

    Raises:
        AssertionError: the child ended, or said nothing of the kind in time; with its log's end.
    """
    deadline = time.monotonic() + seconds
    while True:
        lines = log.read_text("utf-8", "replace").splitlines() if log.exists() else []
        for line in lines:
            if text in line:
                return line
        tail = "\n".join(lines[-20:])
        assert process.poll() is None, f"{log.name}: ended with {process.returncode}\n{tail}"
        assert time.monotonic() < deadline, f"{log.name}: no {text!r} within {seconds} s\n{tail}"
        threading.Event().wait(_LOOK_S)
