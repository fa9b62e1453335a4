"""A slice of ``make damage``: each kind of file and folder with each kind of damage, once."""

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
_SLICE_S = 800  # about 100 alone on two cores, more than 200 beside another test

# No case loses power, so none needs a disk that syncs: a fifth of the time was spent on that.
_IN_MEMORY = Path("/dev/shm")
_FREE_BYTES_MIN = 1 << 30  # worlds and cases take some 20 MB

pytestmark = [pytest.mark.integration, pytest.mark.slow, pytest.mark.timeout(_SLICE_S + 60)]


def _run(tmp_path: Path, *arguments: str) -> tuple[int, dict[str, Any], str]:
    """Run the command in a process of its own: it forks, and must not have pytest's threads."""
    told = tmp_path / "damage.json"
    with tempfile.TemporaryDirectory(prefix="headwater-damage-", dir=_fast(tmp_path)) as files:
        done = subprocess.run(
            [
                sys.executable,
                str(ROOT / "tests/damage/run.py"),
                *arguments,
                "--folder",
                files,
                "--json",
                str(told),
            ],
            capture_output=True,
            text=True,
            timeout=_SLICE_S,
            check=False,
        )
    assert told.exists(), done.stdout + done.stderr
    return done.returncode, json.loads(told.read_text()), done.stdout


def _fast(otherwise: Path) -> Path:
    """Return a folder in memory, if this machine has one with room."""
    has_room = _IN_MEMORY.is_dir() and shutil.disk_usage(_IN_MEMORY).free > _FREE_BYTES_MIN
    return _IN_MEMORY if has_room else otherwise


def test_what_is_not_damaged_is_exact(tmp_path: Path) -> None:
    """The harness is right: without a damage all readers find everything, in every state."""
    code, told, printed = _run(tmp_path, "--only", ":data:nothing")
    assert code == 0, printed
    assert told["counts"]["exact"] == sum(told["counts"].values()) == 6


def test_each_kind_of_damage_is_exact_or_named(tmp_path: Path) -> None:
    """Nothing is silent, hangs, dies or fails without a type, now or after more was written."""
    code, told, printed = _run(tmp_path, "--slice")
    assert code == 0, printed
    assert told["counts"]["exact"] > 20, "a broker that names everything is of no use"
    assert told["counts"]["named"] > 20, "damage that nobody notices is not damage"
