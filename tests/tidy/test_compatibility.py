"""docs/compatibility.md: no row without a verdict, no verdict without a test or a reason."""

from __future__ import annotations

import re
from functools import cache
from typing import Final

from projectfiles import ROOT

VERDICTS: Final = {"done", "different", "not taken", "not yet"}
_ROW: Final = re.compile(r"\| ([LF]\d\d) \| (.+?) \| (.+?) \| (.*?) ?\|")
_TEST: Final = re.compile(r"`([\w/]+\.py)(?:::(test_\w+))?`")
_SCENARIO: Final = re.compile(r"`go:([a-z-]+)`")
_HOME: Final = ROOT / "tests/integration/liftbridge"


@cache
def rows() -> dict[str, tuple[str, str]]:
    """Return verdict and text by the id of a row."""
    page = (ROOT / "docs/compatibility.md").read_text("utf-8")
    found = [match.groups() for line in page.splitlines() if (match := _ROW.match(line))]
    assert len(found) == len({row for row, *_ in found}), "a row is there twice"
    return {row: (verdict, text) for row, _, verdict, text in found}


def test_every_row_has_a_verdict() -> None:
    """L01 to L60 and F01 to F41, as the specification numbers them."""
    expected = [f"L{number:02}" for number in range(1, 61)]
    expected += [f"F{number:02}" for number in range(1, 42)]
    assert list(rows()) == expected
    assert {row: verdict for row, (verdict, _) in rows().items() if verdict not in VERDICTS} == {}


def test_what_is_done_has_a_test() -> None:
    """A claim names at least one test; what is different or not taken has a reason."""
    unproved = [
        row
        for row, (verdict, text) in rows().items()
        if verdict == "done" and not (_TEST.search(text) or _SCENARIO.search(text))
    ]
    assert unproved == []
    unsaid = [
        row
        for row, (verdict, text) in rows().items()
        if verdict in {"different", "not taken"} and not text
    ]
    assert unsaid == []


def test_each_test_that_is_named_exists() -> None:
    """A file, a test in the file, or a scenario of the Go client."""
    missing = []
    scenarios = "".join(one.read_text("utf-8") for one in (ROOT / "tests/peers/go").glob("*.go"))
    for row, (_, text) in rows().items():
        for path, test in _TEST.findall(text):
            file = ROOT / path if path.startswith("tests/") else _HOME / path
            if not file.is_file() or f"def {test}(" not in file.read_text("utf-8") + "def (":
                missing.append(f"{row}: {path}::{test}")
        missing += [
            f"{row}: go:{name}"
            for name in _SCENARIO.findall(text)
            if f'["{name}"]' not in scenarios
        ]
    assert missing == []


def test_a_claimed_row_has_a_test_of_its_name() -> None:
    """The rows of the tests `test_lNN_…` are claimed, and name these tests."""
    names = "".join(one.read_text("utf-8") for one in _HOME.glob("test_l_rows*.py"))
    for found in re.findall(r"def test_l(\d\d)_", names):
        verdict, text = rows()[f"L{found}"]
        assert verdict in {"done", "different"}, f"L{found} has a test and is {verdict}"
        assert f"test_l{found}_" in text, f"L{found} does not name its test"
