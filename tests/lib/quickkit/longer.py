"""Which tests `make test` leaves out: those that cost most CPU, but one function of each file.

The functions of a file are alike: most of a file's cost is its servers and its sessions of Spark.
So the function that costs least stays, whatever it costs, and no file is without a test.
"""

from __future__ import annotations

import json
import sys
from collections import defaultdict
from collections.abc import Mapping
from pathlib import Path
from typing import Final

from quickkit.left_out import files_of, function_of, write

CPU_SECONDS_MAX: Final = 1.2  # of all cases of a function


def chosen(tests_s: Mapping[str, float]) -> dict[str, float]:
    """Return the functions to leave out and their CPU seconds, of those of each test."""
    took: defaultdict[str, float] = defaultdict(float)
    for test, seconds in tests_s.items():
        took[function_of(test)] += seconds
    stay = {min(functions, key=took.__getitem__) for functions in files_of(took).values()}
    return {
        name: seconds
        for name, seconds in took.items()
        if seconds > CPU_SECONDS_MAX and name not in stay
    }


def main(report: str) -> None:
    """Write the list of what ``--cpu-report`` has written."""
    tests_s = json.loads(Path(report).read_text("utf-8"))["tests"]
    sys.stdout.write(f"{write('longer', chosen(tests_s))}; all: {sum(tests_s.values()):.0f} s\n")


if __name__ == "__main__":
    main(sys.argv[1])
