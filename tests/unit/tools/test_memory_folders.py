"""Tests run in memory where there is room; what failed tests wrote is on disk in the end."""

from __future__ import annotations

import os
import socket
import subprocess
import sys
from pathlib import Path

import pytest

from memory_folders import MemoryFolders, remove_leftovers, room
from projectfiles import ROOT

_TESTS = """
def test_passes(tmp_path):
    (tmp_path / "passed.log").write_text(str(tmp_path))

def test_fails(tmp_path):
    (tmp_path / "failed.log").write_text(str(tmp_path))
    assert {outcome}
"""


@pytest.mark.slow
@pytest.mark.parametrize(("workers", "fails"), [("2", True), ("0", False)])
def test_the_folder_of_a_failed_test_is_kept_on_disk(
    tmp_path: Path, workers: str, fails: bool
) -> None:
    """That folder and no other; of a run without a failure nothing is left."""
    kept = tmp_path / "kept"
    (tmp_path / "conftest.py").write_text((ROOT / "tests/conftest.py").read_text("utf-8"))
    (tmp_path / "test_it.py").write_text(_TESTS.format(outcome=not fails))
    done = subprocess.run(
        [sys.executable, "-m", "pytest", "-q", "-n", workers, "-p", "no:cacheprovider",
         "-c", str(ROOT / "pyproject.toml"), f"--rootdir={tmp_path}",
         "-o", f"pythonpath={ROOT / 'tests/lib'}", f"--failed-to={kept}", str(tmp_path)],
        cwd=tmp_path, capture_output=True, text=True, timeout=200, check=False,
        env={name: value for name, value in os.environ.items() if "PYTEST" not in name},
    )  # fmt: skip
    assert done.returncode == fails, done.stdout + done.stderr
    found = list(kept.rglob("*.log"))
    assert [one.name for one in found] == ["failed.log"] * fails
    for one in found:
        assert not Path(one.read_text("utf-8")).exists() or room(Path("/dev/shm")) == 0


def test_a_machine_without_room_runs_on_disk(tmp_path: Path) -> None:
    """No byte is written to memory, and what failed stays where it was written."""
    memory, kept = tmp_path / "memory", tmp_path / "disk" / "kept"
    memory.mkdir()
    folders = MemoryFolders(kept, memory, room_min=1 << 62)
    assert folders.begin() == kept
    kept.mkdir()
    folders.pytest_sessionfinish(1)
    folders.pytest_unconfigure()
    assert kept.is_dir()
    assert not list(memory.iterdir())
    assert room(tmp_path / "no such folder") == 0


def test_what_a_killed_run_left_is_removed(tmp_path: Path) -> None:
    """The next run does it; the folders of a run that goes on stay."""
    ended = subprocess.Popen([sys.executable, "-c", ""])
    ended.wait()
    dead, alive = (tmp_path / f"run-of-tests-{pid}" for pid in (ended.pid, os.getpid()))
    old, young = tmp_path / "headwater-house-old", tmp_path / "headwater-house-young"
    for folder in (dead, alive, old, young):
        (folder / "deep").mkdir(parents=True)
    os.utime(old, (0, 0))
    remove_leftovers(tmp_path)
    assert sorted(tmp_path.iterdir()) == sorted([alive, young])


def test_sockets_do_not_keep_a_folder_from_being_copied(tmp_path: Path) -> None:
    """A server that died leaves its socket beside the logs that somebody wants to see."""
    kept = tmp_path / "kept"
    folders = MemoryFolders(kept, tmp_path, room_min=0)
    run = folders.begin()
    (run / "deep").mkdir(parents=True)
    (run / "deep" / "log").write_text("seen")
    (run / "link").symlink_to("nothing")
    with socket.socket(socket.AF_UNIX) as left:
        left.bind(os.path.relpath(run / "s"))
    folders.pytest_sessionfinish(1)
    folders.pytest_unconfigure()
    assert (kept / "deep" / "log").read_text() == "seen"
    assert (kept / "link").is_symlink()
    assert not run.exists()
