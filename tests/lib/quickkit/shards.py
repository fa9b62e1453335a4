"""Runs pytest in several processes, each with its share of the files.

``python tests/lib/quickkit/shards.py COUNT FOLDER ... -- OPTION ...``; ``{share}`` in an option
becomes the number of the process. Each worker of xdist collects every test, and a controller hands
them out: for thousands of tests of a few milliseconds that is a seventh of the time. Here a process
collects what it runs. The first one's output is shown while it runs, the others' when all have
ended, failed ones last.
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
_NO_TESTS: Final = 5  # of pytest's exit codes
_INTERRUPTED: Final = 2
_TIDY_S: Final = 10.0
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
        for number, share in enumerate(one for one in shares(files, count) if one):
            out: IO[bytes] | None = None
            if number:
                out = stack.enter_context(tempfile.TemporaryFile())
            # Options come last: one with an optional value would take a file.
            own = share + [one.replace("{share}", str(number)) for one in options]
            process = subprocess.Popen(
                [sys.executable, "-m", "pytest", *own],
                stdin=subprocess.DEVNULL if number else None,
                stdout=out,
                stderr=subprocess.STDOUT,
            )
            stack.callback(process.kill)
            running.append((process, out))
        codes = [_ended(process) for process, _ in running]
        for _, number in sorted((_is_bad(code), number) for number, code in enumerate(codes)):
            if (out := running[number][1]) is not None:
                out.seek(0)
                sys.stdout.buffer.write(out.read())
        sys.stdout.flush()
    return exit_code(codes)


def exit_code(codes: Sequence[int]) -> int:
    """Return the first code of a failure; a share without a test is none, unless all are."""
    bad = [code for code in codes if _is_bad(code)]
    return bad[0] if bad else min(codes, default=_NO_TESTS)


def _is_bad(code: int) -> bool:
    return code not in (0, _NO_TESTS)


def _ended(process: subprocess.Popen[bytes]) -> int:
    """Wait for a share; after Ctrl-C, which it gets too, for as long as it needs to tidy up."""
    try:
        return process.wait()
    except KeyboardInterrupt:
        try:
            return process.wait(_TIDY_S)
        except subprocess.TimeoutExpired:
            return _INTERRUPTED


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
