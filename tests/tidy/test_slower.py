"""The list of tests that `make quick` leaves out names tests that there are."""

from __future__ import annotations

from pathlib import Path

import pytest

from projectfiles import ROOT
from quickkit.slower import SECONDS_MAX, function_of, measured, slower


def test_each_line_names_a_test() -> None:
    """A test that was renamed or moved would be back without a word."""
    unknown = []
    for line in sorted(slower()):
        path, _, name = line.partition("::")
        file = ROOT / path
        if not file.exists() or f"def {name}(" not in file.read_text("utf-8"):
            unknown.append(line)
    assert unknown == [], "run `make quick-list`, or amend tests/slower.txt"


def test_simulations_stay_in() -> None:
    """A few seeds of each are what `make quick` is for."""
    assert not [line for line in slower() if line.startswith("tests/sim/")]


@pytest.mark.parametrize(
    "nodeid",
    ["tests/unit/test_a.py::test_b", "tests/unit/test_a.py::test_b[c::d]",
     "tests/unit/test_a.py::test_b@tests/unit/test_a.py"],
)  # fmt: skip
def test_a_case_belongs_to_its_function(nodeid: str) -> None:
    """Whatever its parameters are, and whatever group a worker has given it."""
    assert function_of(nodeid) == "tests/unit/test_a.py::test_b"


def test_the_slowest_case_counts(tmp_path: Path) -> None:
    """Of what pytest has written."""
    junit = tmp_path / "junit.xml"
    case = '<testcase classname="tests.unit.test_a" name="test_b[{}]" time="{}"/>'
    junit.write_text(
        f"<testsuites>{case.format(1, 0.01)}{case.format(2, SECONDS_MAX)}</testsuites>", "ascii"
    )
    assert measured(junit) == {"tests/unit/test_a.py::test_b": SECONDS_MAX}
