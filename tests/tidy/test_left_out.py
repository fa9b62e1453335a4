"""The lists of tests that `make quick` and `make test` leave out name tests that there are."""

from __future__ import annotations

from pathlib import Path

import pytest

from projectfiles import ROOT
from quickkit.left_out import function_of, left_out
from quickkit.longer import (
    CPU_SECONDS_MAX,
    LAST_CPU_SECONDS_MAX,
    SHARED_CPU_SECONDS_MAX,
    chosen,
)
from quickkit.slower import SECONDS_MAX, measured

LISTS = ("slower", "longer")


@pytest.mark.parametrize("name", LISTS)
def test_each_line_names_a_test(name: str) -> None:
    """A test that was renamed or moved would be back without a word."""
    unknown = []
    for line in sorted(left_out(name)):
        path, _, function = line.partition("::")
        file = ROOT / path
        if not file.exists() or f"def {function}(" not in file.read_text("utf-8"):
            unknown.append(line)
    assert unknown == [], "run `make quick-list` or `make test-list`, or amend the list"


@pytest.mark.parametrize("name", LISTS)
def test_simulations_stay_in(name: str) -> None:
    """A few seeds of each are run."""
    assert not [line for line in left_out(name) if line.startswith("tests/sim/")]


def test_what_costs_most_is_left_out() -> None:
    """All cases of a function count, and a fixture that is dear leaves out all that share it."""
    dear_s, shared_s = CPU_SECONDS_MAX, SHARED_CPU_SECONDS_MAX
    found = chosen(
        {
            "tests/a.py::test_small": dear_s,
            "tests/a.py::test_cases[1]": dear_s,
            "tests/a.py::test_cases[2]@tests/a.py": 1.0,
            "tests/a.py::(cheap)": shared_s,
            "tests/b.py::test_small": 0.1,
            "tests/b.py::(cluster)": shared_s,
            "tests/b.py::(certificates)": 0.1,
            "::(of the whole session)": 9 * shared_s,
        }
    )
    assert found == {"tests/a.py::test_cases": dear_s + 1.0, "tests/b.py::test_small": 0.1}


def test_no_folder_is_without_a_test() -> None:
    """The function stays that costs least with its fixtures, if it does not cost too much."""
    dear_s, shared_s = 2 * CPU_SECONDS_MAX, 2 * SHARED_CPU_SECONDS_MAX
    found = chosen(
        {
            "tests/one/a.py::test_dear": dear_s,
            "tests/one/a.py::test_dearer": 2 * dear_s,
            "tests/one/b.py::test_shares": 0.1,
            "tests/one/b.py::(cluster)": shared_s,
            "tests/two/a.py::test_small": 0.1,
            "tests/three/a.py::test_campaign": LAST_CPU_SECONDS_MAX + 0.1,
        }
    )
    assert set(found) == {
        "tests/one/a.py::test_dearer",
        "tests/one/b.py::test_shares",
        "tests/three/a.py::test_campaign",
    }


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
