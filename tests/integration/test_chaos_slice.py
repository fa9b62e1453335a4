"""A short slice of ``make chaos`` in every test run: one leader of a real cluster is killed."""

from __future__ import annotations

import re
import subprocess
import sys
from pathlib import Path

import pytest

from projectfiles import ROOT

pytestmark = [pytest.mark.integration, pytest.mark.slow, pytest.mark.timeout(280)]


def test_acked_records_survive_a_killed_leader(tmp_path: Path) -> None:
    """Three brokers, the leader killed under load: nothing lost, doubled or different anywhere."""
    command = [sys.executable, str(ROOT / "tests" / "chaos" / "run.py"), "--minutes", "0"]
    command += ["--brokers", "3", "--seed", "2", "--only", "kill the leader, start it at once"]
    done = subprocess.run(
        [*command, "--folder", str(tmp_path / "chaos")],
        capture_output=True,
        text=True,
        timeout=270,
        check=False,
    )
    assert done.returncode == 0, f"{done.stdout}\n{done.stderr}"
    summary = done.stdout.strip().splitlines()[-1]
    wanted = r"chaos: 1 stories, (\d+) acked, 0 lost, 0 doubled, 0 diverged, 0 never reached, .*"
    found = re.fullmatch(wanted, summary)
    assert found, summary
    assert int(found[1]) > 100, "a run without load proves nothing"
