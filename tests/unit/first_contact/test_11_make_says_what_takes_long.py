"""Issue 11, item 11: a minute of downloads is not a minute of silence."""

from __future__ import annotations

import subprocess

import pytest

from projectfiles import ROOT


@pytest.mark.parametrize(
    ("target", "newer", "told"),
    [
        (".venv/.installed", "requirements.lock", "into .venv"),
        (".airflow-venv/.installed", "airflow_dags/requirements.lock", "into .airflow-venv"),
    ],
)
def test_an_environment_is_announced(target: str, newer: str, told: str) -> None:
    """`make venv` took a minute, and `make demo` two minutes more, without a word."""
    done = subprocess.run(
        ["make", "--dry-run", f"--what-if={ROOT / newer}", str(ROOT / target)],
        cwd=ROOT, capture_output=True, text=True, check=True,
    )  # fmt: skip
    (line,) = [line for line in done.stdout.splitlines() if told in line]
    assert line.startswith("echo ")
    assert "minute" in line
