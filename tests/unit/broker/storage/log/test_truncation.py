"""A cut that was interrupted is finished by the next opening; a foreign mark cuts nothing."""

from __future__ import annotations

import random

from broker.model.epochs import LeaderEpoch
from broker.model.offsets import Offset
from broker.storage.log.partition_log import PartitionLog
from broker.storage.promises.promises import Promises
from simkit.disk.disk import SimDisk
from simkit.log.batches import FOLDER, PARTITION, SMALL, bases, raw_batch, read_all

EPOCH = LeaderEpoch(1)
MARK = f"{FOLDER}/cut"


def _start(disk: SimDisk) -> tuple[PartitionLog, Promises]:
    files = disk.files()
    promises = Promises(files)
    log = PartitionLog.open(files, FOLDER, PARTITION, SMALL, promise=promises.replica(PARTITION))
    promises.sync()
    return log, promises


def _write(log: PartitionLog, count: int) -> None:
    for _ in range(count):
        log.append([raw_batch(size=128)], leader_epoch=EPOCH, now_us=1)
        log.sync()


def test_a_cut_is_finished_although_the_index_of_what_went_is_back() -> None:
    """The power failed after the index was removed, before that was synced; the mark was kept."""
    disk = SimDisk(random.Random(1))
    log, _ = _start(disk)
    _write(log, 12)
    segment = log.segments()[-2]
    assert segment.end_offset - segment.base_offset > 1, "there is something to cut in it"
    end = Offset(segment.end_offset - 1)
    before = disk.copy_of(FOLDER)
    log.truncate(end)
    names = [f"{FOLDER}/{segment.base_offset:020d}.{kind}" for kind in ("log", "index")]
    disk.kill()
    disk.exchange(
        FOLDER, {**disk.copy_of(FOLDER), **{one: before[one] for one in names}, MARK: b""}
    )

    log, _ = _start(disk)
    assert log.recovery.damaged == []
    assert (log.log_end, bases(read_all(log))) == (end, list(range(end)))
    _write(log, 3)
    assert MARK not in disk.paths()


def test_a_mark_below_the_promise_cuts_nothing() -> None:
    """A cut lowers the promise first, so this mark came with a copy; what was promised stays."""
    disk = SimDisk(random.Random(1))
    log, promises = _start(disk)
    _write(log, 2)
    log.checkpoint()
    _write(log, 1)
    promises.sync()
    disk.kill()
    disk.put_back({MARK: b""})

    log, _ = _start(disk)
    assert log.recovery.damaged == []
    assert bases(read_all(log)) == [0, 1, 2]
    assert MARK not in disk.paths()
