"""A process without a free file descriptor is overloaded; its disk has not failed.

Each step of a log's life meets the shortage at each of its calls, one after the other. The step is
refused, by an error that says so, and succeeds when there are descriptors again, without a restart.
No acknowledged record is lost, and no other record appears.
"""

from __future__ import annotations

import errno
import random
from collections.abc import Callable
from contextlib import suppress

import pytest

from broker.errors import DescriptorsExhaustedError, NoRoomError
from broker.model.epochs import LeaderEpoch
from broker.model.offsets import Offset
from broker.ports.system import File, Files
from broker.storage.cached_files import CachedFiles
from broker.storage.log.partition_log import PartitionLog
from broker.storage.log_folder import EPOCHS_NAME
from broker.storage.promises.promises import Promises
from simkit.disk.disk import SimDisk
from simkit.disk.scarce_files import CountedFiles, ScarceFiles
from simkit.log.batches import FOLDER, PARTITION, SMALL, raw_batch, read_all

BODY = 300


class Life:
    """A log over a process whose descriptors may run out, and what it has acknowledged."""

    def __init__(self, wrap: Callable[[Files], Files]) -> None:
        self.disk = SimDisk(random.Random(7))
        self.wrap = wrap
        self.epoch = 1
        self.start()

    def start(self) -> None:
        """Open the log, with its promises, as one process does."""
        self.scarce = ScarceFiles(self.disk.files())
        files = self.wrap(self.scarce)
        promises = Promises(files)
        self.log = PartitionLog.open(
            files, FOLDER, PARTITION, SMALL, promise=promises.replica(PARTITION)
        )

    def append(self, *, epoch: int = 0) -> None:
        """Append two batches and sync them, perhaps in a new epoch."""
        self.epoch = max(self.epoch, epoch)
        batches = [raw_batch(size=BODY), raw_batch(size=BODY)]
        self.log.append(batches, leader_epoch=LeaderEpoch(self.epoch), now_us=1)
        self.log.sync()

    def truncate(self) -> None:
        """Cut the last batch."""
        self.log.truncate(Offset(self.log.log_end - 1))

    def free(self) -> None:
        """Remove the oldest segment."""
        self.log.free([self.log.segments()[0].base_offset])


STEPS: dict[str, Callable[[Life], object]] = {
    "append": lambda life: life.append(),
    "append in a new epoch": lambda life: life.append(epoch=2),
    "roll": lambda life: life.log.seal_active(1),
    "checkpoint": lambda life: life.log.checkpoint(),
    "truncate": Life.truncate,
    "free": Life.free,
    "producer state": lambda life: life.log.write_producer_state(b"state"),
    "mark": lambda life: life.log.mark_suspect(),
    "read": lambda life: read_all(life.log),
}
WRAPS: dict[str, Callable[[Files], Files]] = {
    "plain": lambda files: files,
    "cached": lambda files: CachedFiles(files, open_max=1, below="streams"),
}


@pytest.mark.parametrize("wrap", WRAPS.values(), ids=WRAPS)
@pytest.mark.parametrize("step", STEPS.values(), ids=STEPS)
def test_a_step_without_descriptors_is_refused_and_heals(
    step: Callable[[Life], object], wrap: Callable[[Files], Files]
) -> None:
    """Whichever call of the step is the first that finds none."""
    for allowed in range(60):
        life = Life(wrap)
        for _ in range(5):
            life.append()
        life.scarce.allowed = allowed
        with suppress(NoRoomError):  # the truncation of a log that is to be cut may need two tries
            step(life)
        for _ in range(3):  # while it lasts, writers are refused or served, and nothing breaks
            with suppress(DescriptorsExhaustedError):
                life.append(epoch=2)
        met = life.scarce.refused_count
        life.scarce.allowed = None
        life.append(epoch=2)
        step(life)
        life.append(epoch=2)
        records = read_all(life.log)
        ends = (life.log.log_start, life.log.log_end)
        life.start()
        assert not life.log.recovery.damaged
        assert (life.log.log_start, life.log.log_end) == ends
        assert read_all(life.log) == records
        if not met:
            return
    raise AssertionError("the step needs fewer descriptors")


@pytest.mark.parametrize("wrap", WRAPS.values(), ids=WRAPS)
def test_an_open_without_descriptors_changes_nothing(wrap: Callable[[Files], Files]) -> None:
    """No damage is seen, and no file that cannot be read now is written anew from a guess."""
    life = Life(wrap)
    for epoch in (1, 1, 2, 2, 3, 3, 3, 3):
        life.append(epoch=epoch)
    life.free()
    life.log.write_producer_state(b"state")
    epochs, end = life.disk.peek(f"{FOLDER}/{EPOCHS_NAME}"), life.log.log_end
    for allowed in range(100):
        scarce = ScarceFiles(life.disk.files())
        files = wrap(scarce)
        promise = Promises(files).replica(PARTITION)
        scarce.allowed = allowed
        with suppress(NoRoomError):
            log = PartitionLog.open(files, FOLDER, PARTITION, SMALL, promise=promise)
            assert not log.recovery.damaged
            with suppress(NoRoomError):
                assert log.read_producer_states().newest == (b"state", end)
        assert life.disk.peek(f"{FOLDER}/{EPOCHS_NAME}") == epochs
        if not scarce.refused_count:
            return
    raise AssertionError("an open needs fewer descriptors")


def test_a_log_that_is_closed_or_not_opened_leaves_no_file_open() -> None:
    """The space of a removed file is free only when nobody has it open."""
    life = Life(lambda files: files)
    for epoch in (1, 1, 2, 2, 3, 3, 3, 3):
        life.append(epoch=epoch)
    life.log.close()
    for allowed in range(100):
        process = life.disk.files()
        files, promise = CountedFiles(process), Promises(process).replica(PARTITION)
        files.allowed = allowed
        with suppress(NoRoomError):
            log = PartitionLog.open(files, FOLDER, PARTITION, SMALL, promise=promise)
            files.allowed = None
            read_all(log)
            log.close()
        assert not files.opened
        if not files.refused_count:
            return
    raise AssertionError("an open needs fewer descriptors")


class ShortOfIndexes(ScarceFiles):
    """While ``is_short``, has a descriptor for every file but a segment's index."""

    is_short = False

    def open(self, path: str, *, create: bool = False) -> File:
        """Refuse an index; open every other file."""
        if self.is_short and path.endswith(".index"):
            raise OSError(errno.EMFILE, "simulated: too many open files", path)
        return super().open(path, create=create)


def test_an_index_that_cannot_be_opened_now_is_not_taken_for_a_lost_index() -> None:
    """An index proves that bytes were durable; a read without it would scan the segment."""
    life = Life(WRAPS["plain"])
    for _ in range(8):
        life.append()
    files = ShortOfIndexes(life.disk.files())
    files.is_short = True
    with pytest.raises(DescriptorsExhaustedError):
        PartitionLog.open(files, FOLDER, PARTITION, SMALL)
    files.is_short = False
    log = PartitionLog.open(files, FOLDER, PARTITION, SMALL)
    assert not log.recovery.rebuilt
    files.is_short = True
    with pytest.raises(DescriptorsExhaustedError):
        log.read(Offset(0), Offset(1), bytes_max=1)
    files.is_short = False
    assert read_all(log) == read_all(life.log)
