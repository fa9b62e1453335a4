"""Which tests `make test` leaves out: those that cost most CPU.

A function is left out for its own cost, and all functions of a file for that of the fixtures which
they share, such as a cluster with certificates: one of them alone would cost as much. In a folder
from which nothing would be left, the function that costs least stays, if that is not too much.
"""

from __future__ import annotations

import json
import sys
from collections import defaultdict
from collections.abc import Mapping
from pathlib import Path, PurePosixPath
from typing import Final

from quickkit.left_out import function_of, write

CPU_SECONDS_MAX: Final = 1.5  # of all cases of a function
SHARED_CPU_SECONDS_MAX: Final = 4.0  # of the fixtures of a file
LAST_CPU_SECONDS_MAX: Final = 10.0  # of the last function of a folder, with its fixtures
_FIXTURE: Final = "::("  # `cpu_report.py` writes FILE::(NAME)


def chosen(costs_s: Mapping[str, float]) -> dict[str, float]:
    """Return the functions to leave out, with their seconds; ``costs_s`` has tests and fixtures."""
    took: defaultdict[str, float] = defaultdict(float)
    shared: defaultdict[str, float] = defaultdict(float)
    for name, seconds in costs_s.items():
        if _FIXTURE in name:
            shared[_file_of(name)] += seconds
        else:
            took[function_of(name)] += seconds
    left_out = {
        name
        for name, seconds in took.items()
        if seconds > CPU_SECONDS_MAX or shared[_file_of(name)] > SHARED_CPU_SECONDS_MAX
    }
    some_stay = {_folder_of(name) for name in took.keys() - left_out}
    for folder in {_folder_of(name) for name in left_out} - some_stay:
        alone_s = {
            name: took[name] + shared[_file_of(name)]
            for name in left_out
            if _folder_of(name) == folder
        }
        least = min(alone_s, key=alone_s.__getitem__)
        if alone_s[least] <= LAST_CPU_SECONDS_MAX:
            left_out.remove(least)
    return {name: took[name] for name in left_out}


def _file_of(name: str) -> str:
    return name.partition("::")[0]


def _folder_of(name: str) -> str:
    return str(PurePosixPath(_file_of(name)).parent)


def main(report: str) -> None:
    """Write the list of what ``--cpu-report`` has written."""
    costs_s = json.loads(Path(report).read_text("utf-8"))["tests"]
    sys.stdout.write(f"{write('longer', chosen(costs_s))}; all: {sum(costs_s.values()):.0f} s\n")


if __name__ == "__main__":
    main(sys.argv[1])
