"""Each file of tests is in one share, and the shares are about equal."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import pytest

from projectfiles import ROOT
from quickkit.shards import exit_code, shares, weighed


def test_every_file_is_in_one_share() -> None:
    """In the order of their names."""
    files = [("a", 5), ("b", 1), ("c", 3), ("d", 1)]
    assert shares(files, 2) == [["a"], ["b", "c", "d"]]
    assert shares(files, 1) == [["a", "b", "c", "d"]]


def test_files_weigh_as_much_as_they_have_tests(tmp_path: Path) -> None:
    """Simulations weigh more."""
    (tmp_path / "sim").mkdir()
    for name in ("test_a.py", "sim/test_b.py"):
        (tmp_path / name).write_text(
            "def test_a():\n    pass\n\n\ndef helper():\n    pass\n", "utf-8"
        )
    assert [(Path(name).name, weight > 1) for name, weight in weighed(tmp_path)] == [
        ("test_b.py", True),
        ("test_a.py", False),
    ]


@pytest.mark.slow
@pytest.mark.parametrize("fails", [False, True])
def test_a_failure_in_any_share_is_the_exit_code(tmp_path: Path, fails: bool) -> None:
    """And what each share says is printed."""
    (tmp_path / "test_a.py").write_text("def test_a():\n    pass\n", "utf-8")
    (tmp_path / "test_b.py").write_text(f"def test_b():\n    assert not {fails}\n", "utf-8")
    done = subprocess.run(
        [sys.executable, str(ROOT / "tests/lib/quickkit/shards.py"), "2", str(tmp_path), "--", "-q",
         "-p", "no:cacheprovider", "--rootdir", str(ROOT), "-c", str(ROOT / "pyproject.toml")],
        cwd=ROOT, capture_output=True, text=True, check=False,
    )  # fmt: skip
    assert done.returncode == int(fails), done.stdout + done.stderr
    assert done.stdout.count("1 passed") == 2 - int(fails)


@pytest.mark.parametrize(
    ("codes", "expected"), [([0, 5], 0), ([5, 5], 5), ([5, 1], 1), ([0, 2, 1], 2), ([], 5)]
)
def test_a_share_without_a_test_is_no_failure(codes: list[int], expected: int) -> None:
    """As with `-k`, unless no share has one."""
    assert exit_code(codes) == expected
