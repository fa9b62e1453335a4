"""A short slice of ``make chaos`` in every test run: a leader, then every broker, is killed."""

from __future__ import annotations

import re
import subprocess
import sys
from pathlib import Path

import pytest

from projectfiles import ROOT

pytestmark = [pytest.mark.integration, pytest.mark.slow, pytest.mark.timeout(600)]


@pytest.mark.parametrize(
    ("story", "all_killed", "options"),
    [
        ("kill the leader, start it at once", 0, ["--secure"]),
        ("kill every broker and nats-server", 1, []),
        ("kill the controller", 0, ["--raft", "pysyncobj"]),
    ],
)
def test_acked_records_survive_kills(
    tmp_path: Path, story: str, all_killed: int, options: list[str]
) -> None:
    """Three brokers, killed under load: nothing lost, doubled or different anywhere."""
    command = [sys.executable, str(ROOT / "tests" / "chaos" / "run.py"), "--minutes", "0"]
    command += ["--brokers", "3", "--seed", "2", "--only", story, *options]
    done = subprocess.run(
        [*command, "--forked", "--folder", str(tmp_path / "chaos")],
        capture_output=True,
        text=True,
        timeout=580,
        check=False,
    )
    assert done.returncode == 0, f"{done.stdout}\n{done.stderr}"
    summary = done.stdout.strip().splitlines()[-1]
    wanted = rf"chaos: 1 stories, {all_killed} all-node kills, (\d+) acked, "
    found = re.fullmatch(
        wanted + "0 lost, 0 doubled, 0 diverged, 0 group violations, 0 never reached, .*", summary
    )
    assert found, summary
    assert int(found[1]) > 100, "a run without load proves nothing"
