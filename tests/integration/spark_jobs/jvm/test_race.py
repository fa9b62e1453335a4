"""A short race of drivers in every test run; ``make race`` is the long one."""

from __future__ import annotations

import re
import subprocess
import sys
from pathlib import Path

import pytest

from projectfiles import ROOT

pytestmark = [
    pytest.mark.program,
    pytest.mark.spark,
    pytest.mark.integration,
    pytest.mark.slow,
    pytest.mark.timeout(500),
]


def test_two_drivers_and_delta_rs_lose_nothing(tmp_path: Path) -> None:
    """Three processes contest every version of one table on S3; each acked row is in it, once."""
    command = [sys.executable, str(ROOT / "tests" / "race" / "run.py"), "--commits", "24"]
    done = subprocess.run(
        [*command, "--drivers", "2", "--folder", str(tmp_path / "race")],
        capture_output=True,
        text=True,
        timeout=480,
        check=False,
    )
    assert done.returncode == 0, f"{done.stdout}\n{done.stderr}"
    found = re.search(
        r"(\d+) acked, 0 lost, 0 doubled, (\d+) versions, 0 writers failed", done.stdout
    )
    assert found, done.stdout
    assert int(found[1]) == int(found[2]) >= 24
