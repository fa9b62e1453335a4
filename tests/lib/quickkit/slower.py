"""Which tests `make quick` leaves out: those whose slowest case takes too long on the clock."""

from __future__ import annotations

import sys
import xml.etree.ElementTree as ET
from pathlib import Path
from typing import Final

from quickkit.left_out import function_of, write

SECONDS_MAX: Final = 0.12


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
    took = measured(Path(junit))
    told = write("slower", {name: took_s for name, took_s in took.items() if took_s > SECONDS_MAX})
    sys.stdout.write(f"{told}, of {len(took)}\n")


if __name__ == "__main__":
    main(sys.argv[1])
