"""Runs pytest in several processes, each with its share of the files.

``python tests/lib/quickkit/shards.py COUNT FOLDER ... -- OPTION ...``; ``{share}`` in an option
becomes the number of the process. Each worker of xdist collects every test, and a controller hands
them out: for thousands of tests of a few milliseconds that is a seventh of the time. Here a process
collects what it runs. The first one's output is shown while it runs, the others' when they have
ended. The exit code is the first that is not 0.
"""

from __future__ import annotations

import re
import subprocess
import sys
import tempfile
from collections.abc import Sequence
from contextlib import ExitStack
from pathlib import Path
from typing import IO, Final

_TEST: Final = re.compile(r"^def test_", re.MULTILINE)
_SIMULATION_TESTS: Final = 90  # a simulation takes as long as so many other tests


def shares(files: Sequence[tuple[str, int]], count: int) -> list[list[str]]:
    """Give each file to the share that has least by then, large ones first."""
    found: list[tuple[int, list[str]]] = [(0, []) for _ in range(count)]
    for name, weight in sorted(files, key=lambda one: (-one[1], one[0])):
        least = min(range(count), key=lambda number: found[number][0])
        found[least] = found[least][0] + weight, [*found[least][1], name]
    return [sorted(names) for _, names in found]  # so pytest enters each folder once


def weighed(folder: Path) -> list[tuple[str, int]]:
    """Return the files of tests in a folder, and what each weighs."""
    return [
        (str(file), len(_TEST.findall(file.read_text("utf-8"))) * _weight(file))
        for file in sorted(folder.rglob("test_*.py"))
    ]


def _weight(file: Path) -> int:
    return _SIMULATION_TESTS if "sim" in file.parts else 1


def main(args: Sequence[str]) -> int:
    """Run the shares; return the exit code."""
    split = args.index("--")
    count, folders, options = int(args[0]), args[1:split], args[split + 1 :]
    files = [one for folder in folders for one in weighed(Path(folder))]
    with ExitStack() as stack:
        running: list[tuple[subprocess.Popen[bytes], IO[bytes] | None]] = []
        for number, share in enumerate(shares(files, count)):
            out: IO[bytes] | None = None
            if number:
                out = stack.enter_context(tempfile.TemporaryFile())
            own = [one.replace("{share}", str(number)) for one in options] + share
            process = subprocess.Popen(
                [sys.executable, "-m", "pytest", *own], stdout=out, stderr=subprocess.STDOUT
            )
            stack.callback(process.kill)
            running.append((process, out))
        codes = []
        for process, out in running:
            codes.append(process.wait())
            if out is not None:
                out.seek(0)
                sys.stdout.buffer.write(out.read())
        sys.stdout.flush()
    return next((code for code in codes if code), 0)


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
