"""What every implementation of the Files port does: the real disk and the simulated one."""

from __future__ import annotations

import random
from collections.abc import Iterator
from pathlib import Path

import pytest

from broker.adapters.disk.files import DiskFiles
from broker.ports.system import Files
from simkit.disk.disk import SimDisk


@pytest.fixture(params=["disk", "simulated"])
def files(request: pytest.FixtureRequest, disk_path: Path) -> Iterator[Files]:
    """Each implementation in turn, empty, with one folder in it."""
    if request.param == "simulated":
        simulated = SimDisk(random.Random(1)).files()
        simulated.make_folder("a/b")
        yield simulated
        return
    disk = DiskFiles(disk_path / "root")
    disk.make_folder("a/b")
    yield disk
    disk.close()


def test_what_is_written_is_read(files: Files) -> None:
    """Buffers land one after another, at any position; the hole before them reads as zeros."""
    file = files.open("a/b/f", create=True)
    assert file.write_at(3, [b"ab", bytearray(b"c"), memoryview(b"de")]) == 5
    assert file.read_at(0, 100) == b"\0\0\0abcde"
    assert file.read_at(4, 2) == b"bc"
    assert file.read_at(8, 10) == b""
    assert file.size() == 8
    file.datasync()
    file.close()


def test_a_write_of_many_buffers_is_whole(files: Files) -> None:
    """More buffers than one system call takes are all written."""
    file = files.open("a/f", create=True)
    pieces = [bytes([number % 251]) * (number % 7) for number in range(5000)]
    assert file.write_at(0, pieces) == sum(map(len, pieces))
    assert file.read_at(0, 1 << 20) == b"".join(pieces)
    file.close()


def test_what_nobody_reads_soon_is_kept_all_the_same(files: Files) -> None:
    """The hint changes neither the bytes around nor what is durable."""
    file = files.open("a/f", create=True)
    large = bytes(range(256)) * 4096
    file.write_at(0, [b"head"], read_soon=False)
    assert file.write_at(4, [large, b"tail"], read_soon=False) == len(large) + 4
    file.datasync()
    assert file.read_at(0, 1 << 21) == b"head" + large + b"tail"
    file.write_at(4 + len(large), [b"more"])
    assert file.read_at(len(large), 100) == large[-4:] + b"more"
    file.close()


def test_allocated_space_is_zero_and_keeps_content(files: Files) -> None:
    """Reserving extends the file with zeros, and never shortens it."""
    file = files.open("a/f", create=True)
    file.write_at(0, [b"head"])
    file.allocate(10_000)
    assert file.size() == 10_000
    assert file.read_at(0, 20_000) == b"head" + bytes(9_996)
    file.allocate(10)
    assert file.size() == 10_000
    file.close()


def test_truncated_space_comes_back_as_zeros(files: Files) -> None:
    """Truncated bytes do not reappear when the file grows again."""
    file = files.open("a/f", create=True)
    file.write_at(0, [b"x" * 3000])
    file.truncate(700)
    file.allocate(4096)
    assert file.read_at(0, 5000) == b"x" * 700 + bytes(3396)
    file.close()


def test_open_and_create_do_not_mix(files: Files) -> None:
    """Opening needs a file, creating needs none, and both need the folder."""
    with pytest.raises(FileNotFoundError):
        files.open("a/f")
    files.open("a/f", create=True).close()
    with pytest.raises(FileExistsError):
        files.open("a/f", create=True)
    with pytest.raises(FileNotFoundError):
        files.open("nowhere/f", create=True)


def test_replace_and_remove_change_names(files: Files) -> None:
    """A rename takes the place of its target; a removed file is gone; syncing names works."""
    for name, content in (("a/new", b"new"), ("a/old", b"old")):
        file = files.open(name, create=True)
        file.write_at(0, [content])
        file.close()
    files.replace("a/new", "a/old")
    files.sync_folder("a")
    assert files.list("a") == ["b", "old"]
    assert files.open("a/old").read_at(0, 10) == b"new"
    files.remove("a/old")
    assert not files.exists("a/old")
    with pytest.raises(FileNotFoundError):
        files.remove("a/old")


def test_a_folder_is_renamed_with_all_that_is_in_it(files: Files) -> None:
    """Damaged logs are set aside in this way; a name in use is refused."""
    for name in ("a/b/f", "a/b/c/g"):
        files.make_folder(name.rpartition("/")[0])
        file = files.open(name, create=True)
        file.write_at(0, [name.encode()])
        file.close()
    files.make_folder("aside")
    files.replace("a/b", "aside/b-1")
    files.sync_folder("aside")
    files.sync_folder("a")
    assert not files.exists("a/b")
    assert files.list("a") == []
    assert files.list("aside/b-1") == ["c", "f"]
    assert files.open("aside/b-1/c/g").read_at(0, 10) == b"a/b/c/g"
    files.make_folder("a/b")
    files.open("a/b/f", create=True).close()
    with pytest.raises(OSError, match="aside/b-1"):
        files.replace("a/b", "aside/b-1")


def test_a_simulated_folder_has_one_name_after_a_power_cut() -> None:
    """The old one or the new one, and all that was durable is below it."""
    seen = set()
    for seed in range(40):
        disk = SimDisk(random.Random(seed))
        files = disk.files()
        files.make_folder("a/b")
        for name in ("a/b/f", "a/b/g"):
            file = files.open(name, create=True)
            file.write_at(0, [b"x"])
            file.datasync()
        files.sync_folder("a/b")
        files.make_folder("aside")
        files.replace("a/b", "aside/b")
        disk.lose_power()
        assert disk.paths() in (["a/b/f", "a/b/g"], ["aside/b/f", "aside/b/g"])
        assert disk.files().exists(disk.paths()[0].rpartition("/")[0])
        seen.add(disk.paths()[0])
    assert len(seen) == 2


def test_an_open_file_outlives_its_name(files: Files) -> None:
    """Readers of a removed file go on reading it."""
    file = files.open("a/f", create=True)
    file.write_at(0, [b"still here"])
    files.remove("a/f")
    assert file.read_at(0, 100) == b"still here"
    file.close()


def test_folders_are_made_listed_and_removed(files: Files) -> None:
    """Making a folder twice is fine, and so is listing or removing an absent one."""
    files.make_folder("a/b/c/d")
    files.make_folder("a/b/c/d")
    files.open("a/b/c/d/f", create=True).close()
    assert files.list("a/b") == ["c"]
    assert files.list("absent") == []
    files.remove_folder("a/b/c")
    files.remove_folder("a/b/c")
    assert not files.exists("a/b/c")
    assert files.list("a/b") == []
    assert files.exists("a/b")


def test_free_space_is_known(files: Files) -> None:
    """The port tells how much may still be written."""
    assert files.free_bytes() > 1 << 20
