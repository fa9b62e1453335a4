"""The first voters of a cluster are those of its first start, whatever a file says later."""

from __future__ import annotations

import random

import pytest

from broker.errors import InvalidConfigError, MetadataCorruptError
from broker.runtime.metadata.controllers_note import (
    check_controllers,
    note_controllers,
    noted_controllers,
)
from simkit.disk.disk import SimDisk


def test_the_first_list_stays_the_list() -> None:
    """The list survives a power cut. A start as a single broker beside the note is refused."""
    disk = SimDisk(random.Random(1))
    assert noted_controllers(disk.files()) == ()
    assert not check_controllers(disk.files(), ["b1"])
    note_controllers(disk.files(), ["b3", "b2", "b1"])
    disk.lose_power()
    for other in (["b1", "b2", "b4"], ["b1"]):
        note_controllers(disk.files(), other)
        assert noted_controllers(disk.files()) == ("b1", "b2", "b3")
        with pytest.raises(InvalidConfigError, match="b1, b2, b3"):
            check_controllers(disk.files(), other)
    assert check_controllers(disk.files(), ["b2", "b3", "b1"])


@pytest.mark.parametrize("data", [b"", b"{}", b"[1]", b'["b1"'])
def test_a_damaged_note_is_no_note(data: bytes) -> None:
    """Whether the list has changed cannot be told."""
    disk = SimDisk(random.Random(1))
    file = disk.files().open("controllers.json", create=True)
    file.write_at(0, [data])
    file.close()
    with pytest.raises(MetadataCorruptError, match="not readable"):
        check_controllers(disk.files(), ["b1"])
