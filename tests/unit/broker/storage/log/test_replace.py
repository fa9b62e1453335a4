"""A log that begins anew above its former end: durable, with the epochs before it."""

from __future__ import annotations

import itertools
import random

import pytest

from broker.errors import DiskFullError
from broker.model.epoch_history import EpochHistory
from broker.model.epochs import LeaderEpoch
from broker.model.offsets import Offset
from broker.ports.system import Files
from broker.storage.log.replacement import replace_log
from simkit.disk.disk import PowerLostError, SimDisk
from simkit.log.batches import FOLDER, PARTITION, open_log, raw_batch, read_all

PRODUCERS = b"state"
EPOCHS = EpochHistory.of([(LeaderEpoch(1), Offset(0)), (LeaderEpoch(4), Offset(70))])


def _written(disk: SimDisk) -> None:
    log = open_log(disk.files())
    log.append([raw_batch(), raw_batch()], leader_epoch=LeaderEpoch(1), now_us=1)
    log.sync()
    log.close()


def _replace(disk: SimDisk) -> None:
    _begin_anew(disk.files())


def _begin_anew(files: Files) -> None:
    replace_log(files, FOLDER, PARTITION, start=Offset(100), epochs=EPOCHS, producers=PRODUCERS)


def test_it_begins_at_the_offset_with_the_epochs_of_what_was_before() -> None:
    """Afterwards it takes writes like any log."""
    disk = SimDisk(random.Random(1))
    _written(disk)
    _replace(disk)
    log = open_log(disk.files())
    assert (log.log_start, log.log_end, log.synced_end) == (100, 100, 100)
    assert log.epochs.epoch_of(Offset(99)) == 4
    assert log.read_producer_states().newest == (PRODUCERS, 100)
    assert not log.recovery.damaged
    log.append([raw_batch(7)], leader_epoch=LeaderEpoch(5), now_us=1)
    log.sync()
    log.close()
    again = open_log(disk.files())
    assert [(one.header.base_offset, bytes(one.body)[:1]) for one in read_all(again)] == [
        (100, b"\x07")
    ]


def test_a_crash_at_any_step_leaves_no_log_or_the_new_one() -> None:
    """Never a log at the new offset without the epochs and producers of the earlier records."""
    outcomes = set()
    for step in range(1, 60):
        disk = SimDisk(random.Random(step))
        _written(disk)
        files = disk.files()
        disk.stop_after = step
        try:
            _begin_anew(files)
            done = True
        except PowerLostError:
            done = False
        disk.lose_power()
        log = open_log(disk.files())
        where = (log.log_start, log.log_end)
        outcomes.add(where)
        if where == (100, 100):
            assert log.epochs.epoch_of(Offset(99)) == 4
            assert log.read_producer_states().newest == (PRODUCERS, 100)
        if done:
            assert where == (100, 100)
            break
    assert outcomes == {(0, 0), (100, 100)}


def _crashed(step: int) -> tuple[SimDisk, bool]:
    """Return a disk after a power cut at a step of a replacement, and whether it was one."""
    disk = SimDisk(random.Random(step))
    _written(disk)
    files = disk.files()
    disk.stop_after = step
    try:
        _begin_anew(files)
    except PowerLostError:
        disk.lose_power()
        return disk, True
    return disk, False


def _opened_in_peace(disk: SimDisk, step: int) -> bool:
    """Open the log, with a power cut at a step; return whether there was none."""
    files = disk.files()
    disk.stop_after = step
    try:
        open_log(files)
    except PowerLostError:
        disk.lose_power()
        return False
    disk.stop_after = None
    disk.lose_power()
    return True


def test_no_log_that_begins_at_0_finds_the_producers_of_one_that_was_to_begin_later() -> None:
    """Its records may be others, whose retries that state does not know. Crashes do not matter."""
    met, step = 0, 0
    while _crashed(step)[1]:
        for again in itertools.count():
            disk, _ = _crashed(step)
            met += _states_in(disk) == 1
            done = _opened_in_peace(disk, again)
            log = open_log(disk.files())
            assert _states_in(disk) == (log.log_start > 0), f"step {step}, then {again}"
            if done:
                break
        step += 1
    assert met > 10, "no crash left that state"


def _states_in(disk: SimDisk) -> int:
    return sum(path.endswith(".producers") for path in disk.paths())


def test_a_full_disk_says_so() -> None:
    """The caller asks again later."""
    disk = SimDisk(random.Random(1), capacity_bytes=10)
    with pytest.raises(DiskFullError):
        _replace(disk)
