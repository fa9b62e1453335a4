"""docs/raft.md names, for each defect of pysyncobj, the test that shows it; the tests are there."""

from __future__ import annotations

import ast
import re
from pathlib import Path

from projectfiles import ROOT

DEFECTS = ROOT / "tests/unit/broker/adapters/raft_pysyncobj"
FILES = {
    "safety": DEFECTS / "test_raft_defects_safety.py",
    "liveness": DEFECTS / "test_raft_defects_liveness.py",
    "sockets": ROOT / "tests/integration/broker/test_raft_defects_sockets.py",
}


def _tests(path: Path) -> set[str]:
    tree = ast.parse(path.read_text("utf-8"))
    return {node.name for node in tree.body if isinstance(node, ast.FunctionDef)}


def test_each_defect_has_its_test() -> None:
    """Rows S1 to S12, L1 to L8 and pickle, each with tests of its number that exist."""
    page = (ROOT / "docs/raft.md").read_text("utf-8")
    rows = re.findall(r"^\| (\w+) \| .* \| ([a-z, ]+) \| (`test_.*`) \|$", page, re.MULTILINE)
    assert [row for row, _, _ in rows] == [
        *(f"S{number}" for number in range(1, 13)),
        *(f"L{number}" for number in range(1, 9)),
        "pickle",
    ]
    for row, files, tests in rows:
        present = set().union(*(_tests(FILES[name]) for name in files.split(", ")))
        named = re.findall(r"`(\w+)`", tests)
        assert set(named) <= present, row
        assert row == "pickle" or all(one.startswith(f"test_{row.lower()}_") for one in named)
