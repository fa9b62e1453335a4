"""What only the real disk has: confinement, the lock, short writes, no fallocate."""

from __future__ import annotations

import errno
import os
import subprocess
import sys
from pathlib import Path

import pytest

from broker.adapters.disk.files import DiskFile, DiskFiles
from broker.errors import InvalidConfigError


@pytest.fixture
def tmp_path(disk_path: Path) -> Path:
    """The tests of this file are about a disk."""
    return disk_path


@pytest.mark.parametrize(
    "path", ["../x", "/etc/passwd", "a//b", "a/./b", "a/..", ".", "a/", "a\0b"]
)
def test_paths_stay_below_the_root(tmp_path: Path, path: str) -> None:
    """No path leads out of the root."""
    files = DiskFiles(tmp_path / "root")
    with pytest.raises(ValueError, match="confined"):
        files.open(path, create=True)
    files.close()


def test_symbolic_links_are_not_followed(tmp_path: Path) -> None:
    """A link in the place of a file is refused, so nothing outside is written."""
    files = DiskFiles(tmp_path / "root")
    (tmp_path / "outside").write_bytes(b"precious")
    (tmp_path / "root" / "link").symlink_to(tmp_path / "outside")
    with pytest.raises(OSError, match="symbolic"):
        files.open("link")
    files.close()


def test_a_root_has_one_owner(tmp_path: Path) -> None:
    """A second process cannot open the root while the first one lives; afterwards it can."""
    files = DiskFiles(tmp_path)
    script = (
        "import sys; from pathlib import Path\n"
        "from broker.adapters.disk.files import DiskFiles\n"
        "from broker.errors import InvalidConfigError\n"
        "try: DiskFiles(Path(sys.argv[1]))\n"
        "except InvalidConfigError as error: sys.exit(3)\n"
    )
    command = [sys.executable, "-c", script, str(tmp_path)]
    assert subprocess.run(command, check=False).returncode == 3
    with pytest.raises(InvalidConfigError, match="in use by another process"):
        DiskFiles(tmp_path)
    files.close()
    assert subprocess.run(command, check=False).returncode == 0


def test_a_root_without_its_lock_file_still_has_one_owner(tmp_path: Path) -> None:
    """Whoever removes the file does not let a second broker in: the folder itself is locked."""
    files = DiskFiles(tmp_path)
    (tmp_path / ".lock").unlink()
    with pytest.raises(InvalidConfigError, match="in use by another process"):
        DiskFiles(tmp_path)
    files.close()
    DiskFiles(tmp_path).close()


def test_the_reserve_serves_the_log_when_no_descriptor_is_left(tmp_path: Path) -> None:
    """Opening, listing and syncing work; with the reserve used up they fail as ever."""
    script = (
        "import os, resource, sys; from pathlib import Path\n"
        "from broker.adapters.disk.files import DiskFiles\n"
        "files = DiskFiles(Path(sys.argv[1]), spare_descriptors=3)\n"
        "resource.setrlimit(resource.RLIMIT_NOFILE, (64, 64))\n"
        "try:\n"
        "    while True: os.dup(0)\n"
        "except OSError: pass\n"
        "opened = [files.open(name, create=True) for name in 'abc']\n"
        "try: files.open('d', create=True)\n"
        "except OSError as error: assert error.errno == 24\n"
        "else: sys.exit('the fourth was opened')\n"
        "for file in opened: file.close()\n"
        "assert 'd' not in files.list('')\n"
        "files.sync_folder('')\n"
        "assert files.open('a').size() == 0\n"
    )
    done = subprocess.run(
        [sys.executable, "-c", script, str(tmp_path)], check=False, capture_output=True, text=True
    )
    assert done.returncode == 0, done.stderr


def test_a_folder_that_cannot_be_written_has_a_name(tmp_path: Path) -> None:
    """The error says what is wrong (read-only, or a file in its place), where, and what to do."""
    (tmp_path / "file").touch()
    (tmp_path / "data" / ".lock").mkdir(parents=True)
    for root, reason in (("file/data", "Not a directory"), ("data", "Is a directory")):
        with pytest.raises(InvalidConfigError, match=rf"{root} cannot be written: {reason}"):
            DiskFiles(tmp_path / root)


def test_short_writes_are_completed(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """When the system takes a few bytes at a time, all of them arrive in order."""
    real = os.pwritev

    def stingy(descriptor: int, views: list[memoryview], position: int) -> int:
        return real(descriptor, [views[0][:3]], position)

    monkeypatch.setattr(os, "pwritev", stingy)
    files = DiskFiles(tmp_path)
    file = files.open("f", create=True)
    assert file.write_at(0, [b"abcdefgh", b"", b"ij"]) == 10
    assert file.read_at(0, 20) == b"abcdefghij"
    file.close()
    files.close()


def test_a_system_that_knows_no_hint_is_asked_once(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """An older kernel refuses the flag: the write goes on without it, and so do all later ones."""
    real = os.pwritev
    flags_seen = []

    def older(descriptor: int, views: list[memoryview], position: int, flags: int = 0) -> int:
        flags_seen.append(flags)
        if flags:
            raise OSError(errno.EOPNOTSUPP, "unknown flag")
        return real(descriptor, views, position)

    monkeypatch.setattr(os, "pwritev", older)
    monkeypatch.setattr(DiskFile, "_takes_hint", True)
    files = DiskFiles(tmp_path)
    file = files.open("f", create=True)
    large = b"x" * 300_000
    for turn in range(2):
        assert file.write_at(turn * len(large), [large], read_soon=False) == len(large)
    assert file.write_at(0, [b"y"], read_soon=False) == 1
    assert file.read_at(0, 700_000) == b"y" + large[1:] + large
    assert [bool(flags) for flags in flags_seen] == [True, False, False, False]
    file.close()
    files.close()


def test_a_sync_without_room_is_a_failure_and_so_is_a_write_of_nothing(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Neither may be tried again: nobody knows what is on the disk, or when it would end."""

    def refuse(_: int) -> None:
        raise OSError(errno.ENOSPC, "refused")

    files = DiskFiles(tmp_path)
    file = files.open("f", create=True)
    monkeypatch.setattr(os, "fsync", refuse)
    with pytest.raises(OSError, match="a sync failed") as failed:
        files.sync_folder("")
    assert failed.value.errno == errno.EIO
    monkeypatch.setattr(os, "pwritev", lambda *_: 0)
    with pytest.raises(OSError, match="wrote nothing") as failed:
        file.write_at(0, [b"x"])
    assert failed.value.errno == errno.EIO
    file.close()
    files.close()


def test_file_systems_without_reservation_still_extend(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Where fallocate is not supported the file grows by truncation; a full disk is still told."""
    answers = iter([errno.EOPNOTSUPP, errno.ENOSPC])

    def refuse(*_: int) -> None:
        raise OSError(next(answers), "refused")

    monkeypatch.setattr(os, "posix_fallocate", refuse)
    files = DiskFiles(tmp_path)
    file = files.open("f", create=True)
    file.allocate(4096)
    assert file.size() == 4096
    with pytest.raises(OSError, match="refused"):
        file.allocate(8192)
    file.close()
    files.close()
