"""The table of issue 11: every item has clauses, and each test that is named there exists."""

from __future__ import annotations

import re
from pathlib import Path
from typing import Final

ROOT: Final = Path(__file__).resolve().parents[2]
_HOME: Final = ROOT / "tests/integration/first_contact"
_ROW: Final = re.compile(r"^\| (\d+) \| ([^|]+) \| ([^|]+) \|$")
_TEST: Final = re.compile(r"`([\w/]+\.py)(?:::(\w+))?`")


def rows() -> list[tuple[int, str, str]]:
    """Return item, clause and tests of each row."""
    page = (_HOME / "README.md").read_text("utf-8")
    found = [match.groups() for line in page.splitlines() if (match := _ROW.match(line))]
    return [(int(item), clause, tests) for item, clause, tests in found]


def test_every_item_is_there_and_every_clause_names_a_test() -> None:
    """Items 1 to 15, in order."""
    items = [item for item, *_ in rows()]
    assert items == sorted(items)
    assert set(items) == set(range(1, 16))
    assert [clause for _, clause, tests in rows() if not _TEST.search(tests)] == []


def test_each_test_that_is_named_exists() -> None:
    """A file, and a test in the file."""
    missing = []
    for item, _, tests in rows():
        for path, test in _TEST.findall(tests):
            file = ROOT / path if path.startswith("tests/") else _HOME / path
            if not file.is_file() or f"def {test}(" not in file.read_text("utf-8") + "def (":
                missing.append(f"{item}: {path}::{test}")
    assert missing == []
