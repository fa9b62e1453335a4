"""Which tests `make quick` leaves out because they take too long for it.

They are listed in tests/slower.txt, a function a line with the seconds of its slowest case, as
measured by `make quick-list`. A marker in each of a hundred files would say the same, and nobody
would look whether it is still true. Simulations stay in, with few seeds.
"""

from __future__ import annotations

import sys
import xml.etree.ElementTree as ET
from pathlib import Path
from typing import Final

SLOWER: Final = Path(__file__).parents[2] / "slower.txt"
SECONDS_MAX: Final = 0.12
_STAYS: Final = "tests/sim/"


def slower() -> frozenset[str]:
    """Return the functions that are listed, as ``tests/unit/test_a.py::test_b``."""
    return frozenset(line.split()[0] for line in SLOWER.read_text("ascii").splitlines())


def function_of(nodeid: str) -> str:
    """Return the function of a test's node id, without its case and its group."""
    return nodeid.partition("[")[0].partition("@")[0]


def measured(junit: Path) -> dict[str, float]:
    """Return the seconds of each function's slowest case in a JUnit file."""
    found: dict[str, float] = {}
    for case in ET.parse(junit).getroot().iter("testcase"):
        path = case.attrib["classname"].replace(".", "/") + ".py"
        name = function_of(f"{path}::{case.attrib['name']}")
        found[name] = max(found.get(name, 0.0), float(case.attrib["time"]))
    return found


def main(junit: str) -> None:
    """Write the list of what a JUnit file says."""
    took = sorted(measured(Path(junit)).items())
    lines = [
        f"{name} {seconds:.1f}\n"
        for name, seconds in took
        if seconds > SECONDS_MAX and not name.startswith(_STAYS)
    ]
    SLOWER.write_text("".join(lines), "ascii")
    sys.stdout.write(f"{len(lines)} of {len(took)} functions are in {SLOWER}\n")


if __name__ == "__main__":
    main(sys.argv[1])
