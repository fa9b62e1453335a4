"""The simulated disk does the same for the same seed, so that a run can be replayed."""

from __future__ import annotations

import random

from simkit.disk.disk import SimDisk

_FILES = 8


def _after_a_power_cut() -> tuple[list[bytes], SimDisk]:
    """Write files that are not synced, lose the power; return what is left, and the disk."""
    disk = SimDisk(random.Random(3))
    files = disk.files()
    for number in range(_FILES):
        file = files.open(str(number), create=True)
        file.write_at(0, [b"old"])
        file.datasync()
        files.sync_folder("")
        file.write_at(0, [bytes([number]) * 2000])
    disk.lose_power()
    return [disk.peek(path) for path in disk.paths()], disk


def test_what_a_power_cut_leaves_does_not_depend_on_addresses_in_memory() -> None:
    """Which unsynced bytes survive is drawn file by file, in the same order in every process.

    The disks stay alive, so that their files have other addresses.
    """
    found, disks = zip(*[_after_a_power_cut() for _ in range(40)], strict=True)
    assert len(disks) == 40
    assert len(found[0]) == _FILES
    assert all(one == found[0] for one in found)
