"""A command's process ends at once, with its output whole and its exit handlers run."""

from __future__ import annotations

import subprocess
import sys

import pytest

_SETUP = """
import atexit, sys, threading
from headwater.process_end import end_process

class Late:
    def __del__(self):
        print("taken apart")

late = Late()
atexit.register(lambda: print("handler"))
print("answer")
"""


_A_THREAD = """
may_end = threading.Event()
threading.Thread(target=lambda: (may_end.wait(), print("thread"))).start()
end_process(3)
print("returned")
may_end.set()
sys.exit(3)
"""


def _run(ending: str) -> tuple[int, list[str]]:
    command = [sys.executable, "-c", f"{_SETUP}\n{ending}"]
    done = subprocess.run(command, check=False, capture_output=True, text=True, timeout=60)
    return done.returncode, done.stdout.splitlines()


@pytest.mark.parametrize(("code", "status"), [("None", 0), ("0", 0), ("3", 3), ("-1", 255)])
def test_nothing_is_lost_and_nothing_is_taken_apart(code: str, status: int) -> None:
    """Buffered output is written, and exit handlers run."""
    assert _run(f"end_process({code})") == (status, ["answer", "handler"])


def test_the_interpreter_waits_for_a_thread() -> None:
    """A thread that still writes is not cut off."""
    status, lines = _run(_A_THREAD)
    assert status == 3
    assert {"answer", "returned", "thread", "handler"} <= set(lines)


def test_a_text_is_left_to_the_interpreter() -> None:
    """It prints the text to stderr and exits with 1."""
    status, lines = _run("end_process('why'); sys.exit('why')")
    assert status == 1
    assert lines[:2] == ["answer", "handler"]
