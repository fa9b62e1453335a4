"""A folder that was copied by hard links gets files of its own before the broker writes."""

from __future__ import annotations

import errno
import os
import shutil
import subprocess
from pathlib import Path
from typing import Any

import pytest

from broker.adapters.disk import hard_links
from broker.adapters.disk.files import DiskFiles
from broker.errors import InvalidConfigError

_NAMES = ("journal", "streams/a/0.log", "streams/a/1.log")


@pytest.fixture
def twin(tmp_path: Path) -> Path:
    """A data folder, and a copy of it by hard links beside it; returns the copy."""
    files = DiskFiles(tmp_path / "root")
    files.make_folder("streams/a")
    for name in _NAMES:
        file = files.open(name, create=True)
        file.write_at(0, [name.encode()])
        file.close()
    files.close()
    copy = tmp_path / "twin"
    subprocess.run(["cp", "-al", str(tmp_path / "root"), str(copy)], check=True)
    return copy


def test_what_is_appended_in_a_linked_copy_is_not_in_the_original(twin: Path) -> None:
    """Nor the other way round; bytes and modes of all files stay."""
    first = twin.with_name("root")
    (first / "journal").chmod(0o640)
    files = DiskFiles(twin)
    for name in _NAMES:
        file = files.open(name)
        file.write_at(file.size(), [b" and more"])
        file.close()
        assert (first / name).read_bytes() == name.encode()
        assert (twin / name).read_bytes() == name.encode() + b" and more"
        assert (first / name).stat().st_nlink == (twin / name).stat().st_nlink == 1
    assert (twin / "journal").stat().st_mode & 0o777 == 0o640
    assert {one.name for one in twin.iterdir()} == {one.name for one in first.iterdir()}
    files.close()


def test_two_folders_of_one_lock_still_exclude_each_other(twin: Path) -> None:
    """While the original runs, its linked copy does not start, and nothing in it is copied."""
    files = DiskFiles(twin.with_name("root"))
    (twin / "journal").unlink()
    os.link(twin.with_name("root") / "journal", twin / "journal")
    with pytest.raises(InvalidConfigError, match="in use by another process"):
        DiskFiles(twin)
    assert (twin / "journal").stat().st_nlink == 2
    files.close()


def test_what_a_crash_left_half_copied_is_copied_again(twin: Path) -> None:
    """The copy has its name only when it is whole; what was copied before is not copied again."""
    (twin / ".unshared").write_bytes(b"half of something longer than a journal")
    assert hard_links.unshare(twin, keep=".lock") == len(_NAMES)
    assert [(twin / name).read_bytes() for name in _NAMES] == [one.encode() for one in _NAMES]
    assert hard_links.unshare(twin, keep=".lock") == 0


def test_a_linked_copy_without_room_for_its_own_files_does_not_start(
    twin: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The error says what is shared and what to do; the lock is free again."""

    def full(*_: Any) -> None:
        raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))

    monkeypatch.setattr(shutil, "copyfileobj", full)
    with pytest.raises(InvalidConfigError, match="hard links"):
        DiskFiles(twin)
    monkeypatch.undo()
    DiskFiles(twin).close()


def test_links_are_no_files_of_the_folder(twin: Path) -> None:
    """A symbolic link is left as it is."""
    (twin / "link").symlink_to(twin / "journal")
    assert hard_links.unshare(twin, keep=".lock") == len(_NAMES)
    assert (twin / "link").is_symlink()
