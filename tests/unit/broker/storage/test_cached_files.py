"""Open files share descriptors; no byte and no error of a sync is lost by that."""

from __future__ import annotations

import errno
import random
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import pytest

from broker.adapters.disk.files import DiskFiles
from broker.ports.system import File
from broker.storage.cached_files import CachedFiles
from simkit.disk.disk import SimDisk
from simkit.disk.scarce_files import ScarceFiles


@pytest.fixture
def disk() -> SimDisk:
    """A healthy disk."""
    return SimDisk(random.Random(7))


def written(files: CachedFiles, path: str, data: bytes = b"data") -> File:
    """Create a file with synced bytes, open."""
    file = files.open(path, create=True)
    file.write_at(0, [data])
    file.datasync()
    return file


def test_a_thousand_open_files_take_ten_descriptors(tmp_path: Path) -> None:
    """Each is read and written as if it were open all the time; the limit holds throughout."""
    disk = DiskFiles(tmp_path)
    files = CachedFiles(disk, open_max=10)
    opened = [written(files, f"f{number}", b"%06d" % number) for number in range(1000)]
    dice = random.Random(1)
    for _ in range(3000):
        number = dice.randrange(1000)
        assert opened[number].read_at(0, 6) == b"%06d" % number
        assert files.open_count <= 10
    for file in opened:
        file.close()
    assert files.open_count == 0
    disk.close()


def test_unsynced_bytes_are_synced_before_their_descriptor_goes(disk: SimDisk) -> None:
    """A power cut after that loses none of them, though nobody asked for a sync."""
    files = CachedFiles(disk.files(), open_max=1)
    file = written(files, "a", b"old")
    files.sync_folder("")
    file.write_at(0, [b"new"])
    written(files, "b")
    assert files.open_count == 1
    disk.lose_power()
    assert disk.peek("a") == b"new"


class _FailingFile:
    """A file whose sync fails once, as the kernel tells an error of write-back once."""

    def __init__(self, file: File) -> None:
        self.file = file
        self.errors = [OSError(errno.EIO, "the disk lost the bytes")]
        self.read_at, self.write_at, self.size = file.read_at, file.write_at, file.size
        self.allocate, self.truncate, self.close = file.allocate, file.truncate, file.close

    def datasync(self) -> None:
        """Fail once, then say that all is well."""
        if self.errors:
            raise self.errors.pop()
        self.file.datasync()


def test_the_error_of_a_sync_that_nobody_asked_for_reaches_the_owner(disk: SimDisk) -> None:
    """The kernel tells it once: who asks for a sync later would hear that all is well."""
    below = disk.files()
    opening = below.open

    def failing(path: str, *, create: bool = False) -> File:
        file = opening(path, create=create)
        return _FailingFile(file) if path == "a" else file

    below.open = failing  # type: ignore[method-assign]
    files = CachedFiles(below, open_max=1)
    file = files.open("a", create=True)
    file.write_at(0, [b"data"])
    other = written(files, "b")
    for change in (file.datasync, lambda: file.write_at(0, [b"more"]), file.datasync):
        with pytest.raises(OSError, match="lost the bytes"):
            change()
    assert other.read_at(0, 4) == b"data"


def test_a_removed_file_is_read_on_by_who_has_it_open(disk: SimDisk) -> None:
    """It keeps its descriptor, also while others need one."""
    files = CachedFiles(disk.files(), open_max=1)
    file = written(files, "a")
    file.size()
    files.remove("a")
    for name in ("b", "c"):
        written(files, name)
    assert file.read_at(0, 4) == b"data"
    file.close()


@pytest.mark.parametrize("how", ["remove", "replace", "remove_folder"])
def test_a_name_that_another_file_has_now_is_not_opened_again(disk: SimDisk, how: str) -> None:
    """A file without a descriptor whose name was taken cannot be used; it is never another one."""
    files = CachedFiles(disk.files(), open_max=1)
    files.make_folder("x")
    old = written(files, "x/a", b"old!")
    written(files, "x/b", b"new!")  # takes the descriptor
    if how == "replace":
        files.replace("x/b", "x/a")
    else:
        files.remove("x/a") if how == "remove" else files.remove_folder("x")
        files.make_folder("x")
        written(files, "x/a", b"new!")
    with pytest.raises(FileNotFoundError):
        old.read_at(0, 4)
    assert files.open("x/a").read_at(0, 4) == b"new!"


def test_a_renamed_file_is_found_under_its_new_name(disk: SimDisk) -> None:
    """It may lose its descriptor after the rename like any other."""
    files = CachedFiles(disk.files(), open_max=1)
    file = written(files, "a.new")
    files.replace("a.new", "a")
    written(files, "b")
    assert file.read_at(0, 4) == b"data"


def test_a_closed_file_is_closed(disk: SimDisk) -> None:
    """Twice is once; a use after that is an error, not a new descriptor."""
    files = CachedFiles(disk.files(), open_max=2)
    file = written(files, "a")
    file.close()
    file.close()
    with pytest.raises(OSError, match="closed"):
        file.read_at(0, 1)
    assert files.open_count == 0


def test_without_a_free_descriptor_idle_files_give_up_theirs(disk: SimDisk) -> None:
    """First the guard of the connections is told; the call waits a little; then it fails."""
    scarce = ScarceFiles(disk.files())
    pauses: list[float] = []
    shortages: list[bool] = []

    def pause(seconds: float) -> None:
        pauses.append(seconds)
        if len(pauses) == 3:
            scarce.allowed = 1

    files = CachedFiles(scarce, open_max=8, pause=pause, on_shortage=lambda: shortages.append(True))
    kept = [written(files, f"f{number}") for number in range(8)]
    scarce.allowed = 0
    new = files.open("f0")
    assert (len(shortages), len(pauses)) == (1, 3)
    assert files.open_count <= 2
    assert new.read_at(0, 4) == b"data"
    with pytest.raises(OSError, match="too many"):
        kept[5].read_at(0, 4)
    assert sum(pauses) < 1.0
    scarce.allowed = None
    assert kept[5].read_at(0, 4) == b"data"


def test_many_threads_share_few_descriptors(tmp_path: Path) -> None:
    """Reads and writes of sixteen files by eight threads over two descriptors are all right."""
    disk = DiskFiles(tmp_path)
    files = CachedFiles(disk, open_max=2)
    opened = [written(files, f"f{number}", bytes([number]) * 8) for number in range(16)]

    def work(seed: int) -> bool:
        dice = random.Random(seed)
        for _ in range(300):
            number = dice.randrange(16)
            if opened[number].read_at(0, 8) != bytes([number]) * 8:
                return False
            if dice.random() < 0.2:
                opened[number].write_at(0, [bytes([number]) * 8])
                opened[number].datasync()
        return True

    with ThreadPoolExecutor(8) as pool:
        assert all(pool.map(work, range(8)))
    for file in opened:
        file.close()
    assert files.open_count == 0
    disk.close()
