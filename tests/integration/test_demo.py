"""`make demo` in small: every layer, Spark included, checked by the demo itself."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import pytest

pytestmark = [
    pytest.mark.integration,
    pytest.mark.spark,
    pytest.mark.slow,
    pytest.mark.timeout(900),  # it starts a JVM of its own, beside whatever else runs
]


@pytest.mark.program
def test_the_tour_ends_with_every_check_passed(tmp_path: Path) -> None:
    """Exit code 0 means that the tour has checked every number and left no process behind."""
    done = subprocess.run(
        [sys.executable, "-m", "headwater.demo", "--flights", "20000"],
        cwd=tmp_path, capture_output=True, text=True, check=False, timeout=880,
    )  # fmt: skip
    assert done.returncode == 0, done.stdout + done.stderr
    assert "20,000 acknowledged" in done.stdout
    assert "All checks passed" in done.stdout
    assert list(tmp_path.iterdir()) == []  # the tour leaves no file in the current folder


def test_the_tour_fails_on_a_wrong_number(monkeypatch: pytest.MonkeyPatch) -> None:
    """A number that differs ends the tour with code 1."""
    from headwater.demo import tour

    def wrong(*_: object) -> None:
        tour._require(1, 2, "rows")

    monkeypatch.setattr(tour, "_tour", wrong)
    monkeypatch.setattr(tour, "adopt_orphans", lambda: None)
    monkeypatch.setattr(tour, "wait_for_children", lambda _timeout: [])
    assert tour.main([]) == 1
