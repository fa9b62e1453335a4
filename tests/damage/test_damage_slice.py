"""A part of ``make damage``: each kind of file and folder, and each kind of damage in each place.

``make damage DAMAGE_ARGS=--slice`` runs each kind of file and folder with each kind of damage.
"""

from __future__ import annotations

import json
import shutil
import subprocess
import sys
import tempfile
from pathlib import Path
from typing import Any

import pytest

ROOT = Path(__file__).resolve().parents[2]
_SLICE_S = 800  # 55 cases: some 80 seconds of CPU; five times as long on a busy machine

# No case loses power, so none needs a disk that syncs: a fifth of the time was spent on that.
_IN_MEMORY = Path("/dev/shm")
_FREE_BYTES_MIN = 1 << 30  # worlds and cases take some 20 MB

pytestmark = [
    pytest.mark.integration,
    pytest.mark.slow,
    pytest.mark.timeout(_SLICE_S + 60),
]


@pytest.fixture(scope="module")
def told(tmp_path_factory: pytest.TempPathFactory) -> dict[str, Any]:
    """Return the results of a run, in a process of its own: it forks, which pytest must not."""
    folder = tmp_path_factory.mktemp("damage")
    results = folder / "damage.json"
    with tempfile.TemporaryDirectory(prefix="headwater-damage-", dir=_fast(folder)) as files:
        done = subprocess.run(
            [
                sys.executable,
                str(ROOT / "tests/damage/run.py"),
                "--cover",
                "--folder",
                files,
                "--json",
                str(results),
            ],
            capture_output=True,
            text=True,
            timeout=_SLICE_S,
            check=False,
        )
    assert results.exists(), done.stdout + done.stderr
    return {**json.loads(results.read_text()), "code": done.returncode, "printed": done.stdout}


def _fast(otherwise: Path) -> Path:
    """Return a folder in memory, if this machine has one with room."""
    has_room = _IN_MEMORY.is_dir() and shutil.disk_usage(_IN_MEMORY).free > _FREE_BYTES_MIN
    return _IN_MEMORY if has_room else otherwise


def test_what_is_not_damaged_is_exact(told: dict[str, Any]) -> None:
    """The harness is right: without a damage all readers find everything, in every state."""
    undamaged = [case["outcome"] for case in told["cases"] if case["damage"] == "nothing"]
    assert undamaged == ["exact"] * 6, told["printed"]


def test_each_kind_of_damage_is_exact_or_named(told: dict[str, Any]) -> None:
    """Nothing is silent, hangs, dies or fails without a type, now or after more was written."""
    assert told["code"] == 0, told["printed"]
    assert told["counts"]["exact"] > 10, "a broker that names everything is of no use"
    assert told["counts"]["named"] > 10, "damage that nobody notices is not damage"
