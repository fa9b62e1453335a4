"""The summary of a run names known seeds that are stale."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import pytest

from projectfiles import ROOT

_TESTS = """
from simkit.seed_hunt import Hunt, never_seen

def breaks(seed):
    assert seed != 3

def test_stale():
    assert Hunt("the table", {"a_mutant": 1}, 5).catches("a_mutant", breaks)

def test_fresh():
    assert Hunt("the table", {"another": 3}, 5).catches("another", breaks)

def test_situation():
    assert never_seen(["2"], lambda one: {str(one): 1}, range(5), [1], "the lives") == []
"""


@pytest.mark.slow
def test_the_end_of_a_run_has_the_lines_to_paste(tmp_path: Path) -> None:
    """This holds if workers run the tests, too; hunts with a valid known seed are not listed."""
    (tmp_path / "conftest.py").write_text(
        "from stale_seeds import StaleSeeds\n"
        "def pytest_configure(config):\n"
        "    config.pluginmanager.register(StaleSeeds())\n",
        encoding="utf-8",
    )
    (tmp_path / "test_hunts.py").write_text(_TESTS, encoding="utf-8")
    told = subprocess.run(
        [sys.executable, "-m", "pytest", "-q", "-n", "1", "-p", "no:cacheprovider", str(tmp_path)],
        cwd=tmp_path,
        env={**os.environ, "PYTHONPATH": os.pathsep.join([str(ROOT), str(ROOT / "tests/lib")])},
        capture_output=True,
        text=True,
        check=True,
    ).stdout
    assert "known seeds that are stale" in told
    section = told[told.index("known seeds that are stale") :].splitlines()[1:]
    assert section[:4] == [
        "the lives",
        "    2,  # not in the known ones: 2",
        "the table",
        '    "a_mutant": 3,  # 1 shows it no longer',
    ]
    assert "another" not in told
