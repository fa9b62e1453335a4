"""A small file replaced whole: the old content or the new one, whenever the power fails."""

from __future__ import annotations

import random

import pytest

from broker.ports.system import File
from broker.storage.whole_file import write_whole
from cases import seeds
from simkit.disk.disk import PowerLostError, SimDisk

OLD, NEW = b"o" * 5000, b"n" * 9000


@pytest.mark.parametrize("path", ["small", "folder/small"])
@pytest.mark.parametrize("seed", seeds(5))
def test_after_a_power_loss_it_is_the_old_one_or_the_new_one(path: str, seed: int) -> None:
    """The power fails at each operation in turn; the new content is certain after the last one."""
    for stop in range(100):
        disk = SimDisk(random.Random(seed))
        disk.tear_sectors = True
        files = disk.files()
        disk.make_folder("folder")
        write_whole(files, path, [OLD])
        disk.stop_after = stop
        done = False
        try:
            write_whole(files, path, [NEW[:1000], NEW[1000:]])
            done = True
        except PowerLostError:
            pass
        disk.lose_power()
        assert disk.peek(path) in ((NEW,) if done else (OLD, NEW))
        write_whole(disk.files(), path, [b"again"])  # whatever the first attempt left behind
        assert disk.peek(path) == b"again"
        if done:
            return
    raise AssertionError("the write never completed")


def test_a_sync_of_the_callers_own_decides() -> None:
    """If it raises, the old content stays, and the caller gets that error."""
    disk = SimDisk(random.Random(1))
    files = disk.files()
    write_whole(files, "small", [OLD])

    def fails(_: File) -> None:
        raise RuntimeError("this one")

    with pytest.raises(RuntimeError, match="this one"):
        write_whole(files, "small", [NEW], datasync=fails)
    assert disk.peek("small") == OLD
