"""Airflow's own command, as the tests in Airflow's environment run it."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path
from typing import Final

DAGS: Final = Path(__file__).resolve().parents[3] / "airflow_dags"


def airflow(*words: str) -> str:
    """Run ``airflow WORDS`` and return what it printed; fails the test when it fails."""
    done = subprocess.run(
        [sys.executable, "-m", "airflow", *words],
        capture_output=True, text=True, timeout=300, check=False,
    )  # fmt: skip
    assert done.returncode == 0, f"airflow {words}: {done.stdout}{done.stderr}"
    return done.stdout
