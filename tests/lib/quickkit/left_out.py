"""The tests that a run leaves out because they take too long for it.

They are listed, a function a line with the seconds that it took. A marker in each of a hundred
files would say the same, and nobody would look whether it is still true.

- tests/slower.txt: what `make quick` leaves out; `make quick-list` measures it (slower.py).
- tests/longer.txt: what `make test` leaves out and `make test WHOLE=1` runs; `make test-list`
  measures it (longer.py).
"""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import Final, Literal

ListName = Literal["slower", "longer"]

LIST: Final = "HEADWATER_TEST_LEFT_OUT"  # names the list of a run; empty or not there: none
_FOLDER: Final = Path(__file__).parents[2]
# Simulations stay in every run, with few seeds: that is what they have seeds for.
_STAYS: Final = "tests/sim/"


def left_out(name: str) -> frozenset[str]:
    """Return the functions of a list, as ``tests/unit/test_a.py::test_b``."""
    lines = (_FOLDER / f"{name}.txt").read_text("ascii").splitlines()
    return frozenset(line.split()[0] for line in lines)


def write(name: ListName, seconds: Mapping[str, float]) -> str:
    """Write a list, without simulations; return what to tell about it."""
    listed = {one: took for one, took in sorted(seconds.items()) if not one.startswith(_STAYS)}
    target = _FOLDER / f"{name}.txt"
    target.write_text("".join(f"{one} {took:.1f}\n" for one, took in listed.items()), "ascii")
    return f"{len(listed)} functions, {sum(listed.values()):.0f} s, are in {target}"


def function_of(nodeid: str) -> str:
    """Return the function of a test's node id, without its case and its group."""
    return nodeid.partition("[")[0].partition("@")[0]
