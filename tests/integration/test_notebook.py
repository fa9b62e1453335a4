"""The notebook of the docs, unchanged, wherever Spark may run; each mode in its own processes."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parents[2]

pytestmark = [
    pytest.mark.program,
    pytest.mark.spark,
    pytest.mark.integration,
    pytest.mark.slow,
    pytest.mark.timeout(1300),
]


@pytest.mark.parametrize("mode", ["connect", "cluster", "pipeline"])
def test_the_notebook_runs_everywhere(mode: str, tmp_path: Path) -> None:
    """Every step checks its own result; the other tests use classic Spark."""
    done = subprocess.run(
        [sys.executable, str(ROOT / "tests" / "notebook" / "run.py"), "--mode", mode],
        cwd=tmp_path, capture_output=True, text=True, timeout=1200, check=False,
    )  # fmt: skip
    assert done.returncode == 0, f"{done.stdout[-4000:]}\n{done.stderr[-6000:]}"
    assert f"{mode}: " in done.stdout
