"""Puts the folders of a run's tests in memory, and keeps those of failed tests on disk.

``--failed-to=FOLDER``: tests write to a file system in memory where the machine has room, because
they sync many small files and read them back at once. At the end FOLDER has what is left, which is
what the tests that failed have written, with their servers' logs. A machine without that room has
everything in FOLDER from the beginning. The folder of a run that was killed is removed by the next
run. A test about what a file system on a disk does has the fixture ``disk_path``.

Used by tests/conftest.py, only with that option.
"""

from __future__ import annotations

import os
import shutil
import stat
import time
from contextlib import suppress
from pathlib import Path
from typing import Final

import pytest

MEMORY: Final = Path("/dev/shm")
# Then the process id of the run. A path with our name in it would look like our source in a plan.
_PREFIX: Final = "run-of-tests-"
_ROOM_MIN: Final = 6 << 30  # twice what a run of everything was seen to use, its JVMs included
# Folders that tests and simulations make in memory by themselves; no test runs for half a day.
_OTHERS: Final = ("headwater-house-*", "headwater-damage-*")
_OLD_S: Final = 43_200.0


class MemoryFolders:
    """The plugin of the process that a run is started in; its workers have folders in its own."""

    def __init__(self, failed_to: Path, memory: Path = MEMORY, room_min: int = _ROOM_MIN) -> None:
        self._failed_to = failed_to.absolute()
        self._memory = memory
        self._room_min = room_min
        self._run: Path | None = None
        self._failed = True  # until pytest says otherwise

    def begin(self) -> Path:
        """Remove what killed runs have left; return the folder of this run, which is not there."""
        shutil.rmtree(self._failed_to, ignore_errors=True)
        self._failed_to.parent.mkdir(parents=True, exist_ok=True)
        remove_leftovers(self._memory)
        if room(self._memory) < self._room_min:
            return self._failed_to
        self._run = self._memory / f"{_PREFIX}{os.getpid()}"
        return self._run

    def pytest_sessionfinish(self, exitstatus: int) -> None:
        """Take note of whether there is something to keep."""
        self._failed = exitstatus not in (pytest.ExitCode.OK, pytest.ExitCode.NO_TESTS_COLLECTED)

    @pytest.hookimpl(trylast=True)
    def pytest_unconfigure(self) -> None:
        """Move what is left to the disk if a test failed; the workers have ended."""
        if not self._failed:
            shutil.rmtree(self._failed_to, ignore_errors=True)
        elif self._run is not None and self._run.is_dir():
            copy_files(self._run, self._failed_to)
        if self._run is not None:
            shutil.rmtree(self._run, ignore_errors=True)


def room(memory: Path) -> int:
    """Return how many bytes of files fit into memory beside the processes; 0 without it."""
    if not (memory.is_dir() and os.access(memory, os.W_OK)):
        return 0
    facts = Path("/proc/meminfo").read_text("ascii").splitlines()
    free = next((line.split()[1] for line in facts if line.startswith("MemAvailable:")), "0")
    return min(shutil.disk_usage(memory).free, int(free) * 1024)


def remove_leftovers(memory: Path) -> None:
    """Remove the folders of runs whose process is gone, and what is older than any test."""
    for folder in memory.glob(f"{_PREFIX}*"):
        if not Path("/proc", folder.name.removeprefix(_PREFIX)).exists():
            shutil.rmtree(folder, ignore_errors=True)
    for pattern in _OTHERS:
        for folder in memory.glob(pattern):
            with suppress(FileNotFoundError):  # its owner removes it at this moment
                if time.time() - folder.stat().st_mtime > _OLD_S:
                    shutil.rmtree(folder, ignore_errors=True)


def copy_files(source: Path, target: Path) -> None:
    """Copy files, folders and links; sockets and what vanishes meanwhile are left out."""

    def unfit(folder: str, names: list[str]) -> list[str]:
        return [name for name in names if not _is_copied(Path(folder, name))]

    with suppress(shutil.Error):
        shutil.copytree(source, target, symlinks=True, ignore=unfit, dirs_exist_ok=True)


def _is_copied(path: Path) -> bool:
    try:
        mode = path.lstat().st_mode
    except OSError:
        return False
    return stat.S_ISREG(mode) or stat.S_ISDIR(mode) or stat.S_ISLNK(mode)
