"""A process that has loaded pytest and every library, and forks a child for each run of tests.

A run of one test file takes a tenth of a second in such a child and more than a second in a process
of its own. Nothing of the product is loaded before the fork, so that each child loads the product
with its own bug.

Run as a program with the names of the libraries: a line of JSON on the standard input asks for a
run, a line with the child's exit status answers. The program ends with its input, and ends a run
that is under way then.
"""

from __future__ import annotations

import importlib
import json
import os
import select
import signal
import sys
from pathlib import Path
from typing import Any, Final

HUNG: Final = -1  # in place of an exit status


def main() -> None:
    """Load the libraries, then serve until the input ends."""
    for name in sys.argv[1:]:
        importlib.import_module(name)
    _tell("ready")
    for line in sys.stdin:
        _tell(str(_run(json.loads(line))))


def _tell(answer: str) -> None:
    sys.stdout.write(f"{answer}\n")
    sys.stdout.flush()


def _run(asked: dict[str, Any]) -> int:
    """Run pytest in a child; return its exit status, or HUNG."""
    child = os.fork()
    if child == 0:
        try:
            _be_child(asked)
        finally:
            os._exit(70)
    watched = os.pidfd_open(child)
    try:
        ready, _, _ = select.select([watched, sys.stdin], [], [], asked["timeout_s"])
        ended = watched in ready
        if not ended:  # it takes too long, or whoever asked is gone and its pipe is closed
            os.killpg(child, signal.SIGKILL)
        _, status = os.waitpid(child, 0)
    finally:
        os.close(watched)
    return os.waitstatus_to_exitcode(status) if ended else HUNG


def _be_child(asked: dict[str, Any]) -> None:
    """Become the process of one run, with its own environment and output. Never returns."""
    os.setsid()
    os.chdir(asked["root"])
    os.environ.update(asked["environment"])
    sys.path[:] = [*asked["path"], *sys.path]
    sink = os.open(asked["output"], os.O_WRONLY | os.O_CREAT | os.O_TRUNC, 0o600)
    os.dup2(os.open(os.devnull, os.O_RDONLY), 0)
    os.dup2(sink, 1)
    os.dup2(sink, 2)
    site: Any = importlib.import_module("planted_text")
    site.plant_what_is_asked_for()
    pytest: Any = importlib.import_module("pytest")
    status = int(pytest.main(asked["arguments"]))
    sys.stdout.flush()
    sys.stderr.flush()
    os._exit(status)


if __name__ == "__main__":
    sys.path.remove(str(Path(__file__).parent))  # `lines` and `trials` are no modules of their own
    main()
