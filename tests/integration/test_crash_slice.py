"""A short slice of ``make crash`` in every test run, and one with the tables in S3.

The stories of disks that forget, which ``make crash`` tells at its end, are test_disk_stories.
"""

from __future__ import annotations

import re
import subprocess
import sys
from pathlib import Path

import pytest

from projectfiles import ROOT

pytestmark = [pytest.mark.integration, pytest.mark.slow, pytest.mark.timeout(600)]


@pytest.mark.parametrize(("s3", "rounds", "seed"), [("local", 3, 20), ("moto", 2, 21)])
def test_acked_records_survive_kills(tmp_path: Path, s3: str, rounds: int, seed: int) -> None:
    """After every kill -9 each acked record is in the unified read, once, bit for bit."""
    command = [sys.executable, str(ROOT / "tests" / "crash" / "run.py")]
    command += ["--rounds", str(rounds), "--check-every", "2", "--s3", s3, "--seed", str(seed)]
    done = subprocess.run(
        [
            *command,
            "--spark-every",
            "0",
            "--forked",
            "--no-disk-stories",
            "--folder",
            str(tmp_path / "crash"),
        ],
        capture_output=True,
        text=True,
        timeout=580,
        check=False,
    )
    assert done.returncode == 0, f"{done.stdout}\n{done.stderr}"
    summary = done.stdout.strip().splitlines()[-1]
    found = re.fullmatch(rf"crash: {rounds} rounds, (\d+) acked, 0 lost, 0 doubled, .*", summary)
    assert found, summary
    assert int(found[1]) > 100, "a campaign without load proves nothing"
