"""A log at the edges of its promises: what a crash, a foreign file or an old file leaves behind.

`make plant` takes these checks away one by one, and each test here is the one that notices.
"""

from __future__ import annotations

import contextlib
import itertools
import random

import pytest

from broker.codec.disk.segment_format import segment_name
from broker.codec.record_batch import HEADER_SIZE
from broker.errors import (
    LogFailedError,
    OffsetOutOfRangeError,
    SegmentCorruptError,
    StaleLeaderEpochError,
)
from broker.model.epoch_history import EpochHistory
from broker.model.epochs import LeaderEpoch
from broker.model.ids import PartitionId, PartitionNumber
from broker.model.offsets import Offset, OffsetRange
from broker.storage.log.partition_log import LogConfig, PartitionLog
from broker.storage.log.replacement import replace_log
from broker.storage.promises.promises import Promises
from broker.storage.segments.damage import RotProof
from simkit.disk.disk import ROOMY, SECTOR, PowerLostError, SimDisk
from simkit.log.batches import FOLDER, PARTITION, SMALL, bases, open_log, raw_batch, read_all

EPOCH = LeaderEpoch(1)
LARGE = LogConfig(segment_bytes_max=1 << 20, preallocate_bytes=4096, index_interval_bytes=400)
FIRST = f"{FOLDER}/{segment_name(0, 'log')}"
BODY = 1000
BATCH = HEADER_SIZE + BODY


@pytest.fixture
def disk() -> SimDisk:
    """A healthy disk with room."""
    return SimDisk(random.Random(7))


def promised(disk: SimDisk, config: LogConfig = LARGE) -> tuple[PartitionLog, Promises]:
    """Open the log with its promise."""
    files = disk.files()
    promises = Promises(files)
    log = PartitionLog.open(files, FOLDER, PARTITION, config, promise=promises.replica(PARTITION))
    return log, promises


def fill(log: PartitionLog, groups: int, *, epoch: int = 1, size: int = BODY) -> None:
    """Write and sync so many groups of one batch."""
    for _ in range(groups):
        log.append([raw_batch(size=size)], leader_epoch=LeaderEpoch(epoch), now_us=1)
        log.sync()


# ---------------------------------------------------------------------------- writing


def test_a_log_whose_writer_crashed_takes_no_writes(disk: SimDisk) -> None:
    """The crash may have been in the middle of a write; the files stay as they are."""
    log = open_log(disk.files(), LARGE)
    fill(log, 2)
    log.poison("the writing thread has crashed")
    with pytest.raises(LogFailedError, match="has crashed"):
        fill(log, 1)
    before = disk.peek(FIRST)
    log.close()
    assert disk.peek(FIRST) == before


def test_a_full_disk_may_have_no_room_for_a_promise_of_a_producer_state(disk: SimDisk) -> None:
    """The records are durable, and the state waits: neither is an error of their owner."""
    disk.copies_on_write = True
    log, _ = promised(disk)
    fill(log, 1)
    log.append([raw_batch(size=BODY)], leader_epoch=EPOCH, now_us=1)
    disk.capacity_bytes = disk.used_bytes()
    assert not log.write_producer_state(b"state")
    assert log.synced_end < log.log_end
    disk.capacity_bytes = ROOMY
    assert log.write_producer_state(b"state")
    assert log.synced_end == log.log_end
    assert log.read_producer_states().newest == (b"state", log.log_end)


def test_an_older_epoch_is_refused_and_a_newer_one_noted_first(disk: SimDisk) -> None:
    """After a power cut no record has an epoch that the history lacks."""
    log = open_log(disk.files(), LARGE)
    fill(log, 2, epoch=3)
    with pytest.raises(StaleLeaderEpochError):
        fill(log, 1, epoch=2)
    disk.kill()
    names = {**disk.copy_of(FOLDER)}
    log = open_log(disk.files(), LARGE)
    assert (log.epochs.latest, log.log_end) == (3, 2)
    assert f"{FOLDER}/epochs" in names


def test_a_segment_rolls_before_it_would_be_too_large(disk: SimDisk) -> None:
    """Only a batch that is larger than a segment makes a larger one."""
    log = open_log(disk.files())
    fill(log, 12, size=300)
    assert max(one.size_bytes for one in log.segments()) <= SMALL.segment_bytes_max


def test_what_a_replaced_log_had_promised_is_no_loss(disk: SimDisk) -> None:
    """At whichever step the power fails: the promise is renewed before the old log is removed."""
    for step in range(1, 60):
        disk = SimDisk(random.Random(step))
        log, promises = promised(disk)
        fill(log, 3)
        promises.sync()
        log.close()
        files = disk.files()
        promise = Promises(files).replica(PARTITION)
        epochs = EpochHistory.of([(EPOCH, Offset(0))])
        disk.stop_after = step
        with contextlib.suppress(PowerLostError):
            replace_log(
                files, FOLDER, PARTITION, start=Offset(100), epochs=epochs, producers=b"state",
                promise=promise,
            )  # fmt: skip
            break
        disk.lose_power()
        log, _ = promised(disk)
        assert not log.recovery.damaged, f"step {step}"
    assert step > 5, "the replacement has many steps"


# ---------------------------------------------------------------------------- opening


def test_what_an_opening_served_survives_the_next_power_cut(disk: SimDisk) -> None:
    """After a failed sync the page cache shows more than the disk has."""
    log = open_log(disk.files(), LARGE)
    fill(log, 2)
    log.append([raw_batch(2, size=BODY)] * 2, leader_epoch=EPOCH, now_us=1)
    disk.datasync_failures = 1
    with pytest.raises(LogFailedError):
        log.sync()
    disk.kill()
    served = [bytes(one.body) for one in read_all(open_log(disk.files(), LARGE))]
    disk.lose_power()
    assert [bytes(one.body) for one in read_all(open_log(disk.files(), LARGE))] == served


def test_a_promised_record_is_never_cut_as_torn(disk: SimDisk) -> None:
    """A sector of it is missing, as after a power cut; but it had been synced."""
    log, _ = promised(disk)
    fill(log, 3)
    disk.kill()
    last = disk.peek(FIRST).rindex(bytes([1]) * 8) - BODY // 2
    disk.overwrite(FIRST, last // SECTOR * SECTOR, bytes(SECTOR))
    log, _ = promised(disk)
    assert log.recovery.torn is None
    (damage,) = log.recovery.damaged_ranges
    assert (damage.proof, damage.offsets) == (RotProof.PROMISED, OffsetRange(Offset(2), Offset(3)))


def test_beside_rot_no_byte_is_cut(disk: SimDisk) -> None:
    """The torn tail of a file that also has rot may help in a repair."""
    log = open_log(disk.files(), LARGE)
    fill(log, 3)
    log.append([raw_batch(3, size=BODY)], leader_epoch=EPOCH, now_us=1)
    disk.kill()
    disk.flip_bit(FIRST, 64 + BATCH + HEADER_SIZE + 9, 1)
    tail = (64 + 3 * BATCH + HEADER_SIZE + SECTOR) // SECTOR * SECTOR
    disk.overwrite(FIRST, tail, bytes(SECTOR))
    before = disk.peek(FIRST)
    log = open_log(disk.files(), LARGE)
    assert log.recovery.damaged
    assert log.recovery.torn is not None
    assert log.recovery.torn.kept
    assert disk.peek(FIRST) == before


@pytest.mark.parametrize("change", ["longer", "shorter"])
def test_a_sealed_segment_of_another_size_is_scanned(disk: SimDisk, change: str) -> None:
    """Its index has its size; bytes after that, or missing bytes, are damage."""
    log = open_log(disk.files())
    fill(log, 16, size=128)
    log.close()
    if change == "longer":
        disk.extend(FIRST, b"x" * 64)
    else:
        disk.cut(FIRST, len(disk.peek(FIRST)) - 8)
    log = open_log(disk.files())
    assert [one.proof for one in log.recovery.damaged_ranges] == [RotProof.SEALED]


def test_a_segment_of_another_partition_is_damage(disk: SimDisk) -> None:
    """It is refused although its base offset is right and its records are whole."""
    other = PartitionId(PARTITION.stream_uuid, PartitionNumber(1))
    for folder, partition in ((FOLDER, PARTITION), ("streams/s/1", other)):
        log = PartitionLog.open(disk.files(), folder, partition, SMALL)
        fill(log, 16, size=128)
        log.close()
    name = segment_name(0, "log")
    disk.overwrite(FIRST, 0, disk.peek(f"streams/s/1/{name}"))
    disk.delete(f"{FOLDER}/{segment_name(0, 'index')}")
    log = open_log(disk.files())
    assert log.recovery.damaged
    with pytest.raises(SegmentCorruptError):
        log.read(Offset(0), Offset(1), bytes_max=1)


def test_the_epochs_of_another_partition_are_not_taken(disk: SimDisk) -> None:
    """The epochs of an older copy are not taken either: those of the log's batches count."""
    log = open_log(disk.files(), LARGE)
    fill(log, 2, epoch=4)
    older = disk.peek(f"{FOLDER}/epochs")
    fill(log, 2, epoch=6)
    log.close()
    other = PartitionLog.open(
        disk.files(), "streams/s/1",
        PartitionId(PARTITION.stream_uuid, PartitionNumber(1)), LARGE,
    )  # fmt: skip
    fill(other, 1, epoch=9)
    other.close()
    for content in (older, disk.peek("streams/s/1/epochs")):
        disk.overwrite(f"{FOLDER}/epochs", 0, content.ljust(len(disk.peek(f"{FOLDER}/epochs"))))
        disk.cut(f"{FOLDER}/epochs", len(content))
        log = open_log(disk.files(), LARGE)
        assert [int(one.leader_epoch) for one in log.epochs.starts] == [4, 6]
        log.close()


def test_the_newer_point_counts_and_the_other_slot_survives_a_torn_write(disk: SimDisk) -> None:
    """A checkpoint writes one slot; the one before is still whole."""
    log = open_log(disk.files(), LARGE)
    points = []
    for _ in range(3):
        fill(log, 1)
        log.checkpoint()
        points.append(disk.peek(f"{FOLDER}/recovery"))
    changed = [
        {at // 4096 for at in range(len(new)) if new[at] != old[at]}
        for old, new in itertools.pairwise(points)
    ]
    assert changed in ([{0}, {1}], [{1}, {0}]), "each goes to the slot with the older point"
    disk.kill()
    log = open_log(disk.files(), LARGE)
    assert log.recovery.scanned_bytes <= BATCH


def test_the_last_record_below_the_recovery_point_is_never_torn(disk: SimDisk) -> None:
    """It reads as zeros, as if never written, but the recovery point proves that it was."""
    log = open_log(disk.files(), LARGE)
    fill(log, 3, size=128)
    start = log.segments()[0].size_bytes * 2 // 3 // 8 * 8 + 64
    log.checkpoint()
    disk.kill()
    disk.delete(f"{FOLDER}/{segment_name(0, 'index')}")
    size = len(disk.peek(FIRST).rstrip(b"\0"))
    disk.overwrite(FIRST, start, bytes(size - start))
    log = open_log(disk.files(), LARGE)
    assert log.recovery.torn is None
    assert log.recovery.damaged


def test_a_batch_of_an_older_epoch_is_of_another_log(disk: SimDisk) -> None:
    """Offset, size and checksum are right, but epochs never fall along a log."""
    folders = {FOLDER: 3, "streams/s/1": 1}
    for folder, epoch in folders.items():
        log = PartitionLog.open(disk.files(), folder, PARTITION, LARGE)
        fill(log, 2, epoch=epoch)
    disk.kill()
    theirs = disk.peek(f"streams/s/1/{segment_name(0, 'log')}")
    second = 64 + BATCH
    disk.overwrite(FIRST, second, theirs[second : second + BATCH])
    log = open_log(disk.files(), LARGE)
    assert [one.offsets.start for one in log.recovery.damaged_ranges] == [1]


# ---------------------------------------------------------------------------- reading


def test_reads_stop_before_damage_and_times_do_not_look_over_it(disk: SimDisk) -> None:
    """A later record must not be taken for the next, or for the first of a time."""
    log = open_log(disk.files())
    for stamp in range(16):
        log.append([raw_batch(size=128, stamp_us=stamp)], leader_epoch=EPOCH, now_us=1)
    log.close()
    gone = OffsetRange(Offset(4), Offset(8))
    disk.delete(f"{FOLDER}/{segment_name(4, 'log')}")
    log = open_log(disk.files())
    assert [one.offsets for one in log.recovery.damaged_ranges] == [gone]
    assert bases(log.read(Offset(2), Offset(16), bytes_max=1 << 20)) == [2, 3]
    assert log.offset_at(3) == 3
    for stamp in (5, 9):
        with pytest.raises(SegmentCorruptError):
            log.offset_at(stamp)


def test_what_was_freed_is_out_of_range(disk: SimDisk) -> None:
    """A read one offset below the log start is refused: the table has that record."""
    log = open_log(disk.files())
    fill(log, 16, size=128)
    log.free([log.segments()[0].base_offset])
    start = log.log_start
    assert start > 0
    with pytest.raises(OffsetOutOfRangeError):
        log.read(Offset(start - 1), log.log_end, bytes_max=1)


def test_a_time_leads_to_the_segment_that_reaches_it_exactly(disk: SimDisk) -> None:
    """The newest time of a segment is the highest of its batches, not the last one's."""
    log = open_log(disk.files())
    for stamp in (1, 9, 2, 3, 9, 9, 9, 9):
        log.append([raw_batch(size=128, stamp_us=stamp)], leader_epoch=EPOCH, now_us=1)
    assert len(log.segments()) > 1
    assert log.offset_at(9) == 1
    log.close()
    assert open_log(disk.files()).offset_at(9) == 1


def test_a_producer_state_beyond_the_end_is_of_another_log(disk: SimDisk) -> None:
    """The state before the newest is used when the newest is damaged."""
    log = open_log(disk.files(), LARGE)
    states = []
    for number in range(3):
        fill(log, 1)
        assert log.write_producer_state(b"%d" % number)
        states.append(f"{FOLDER}/{segment_name(number + 1, 'producers')}")
    assert [one in disk.paths() for one in states] == [False, True, True]
    disk.flip_bit(states[2], 28, 0)
    assert log.read_producer_states().newest == (b"1", Offset(2))
    disk.flip_bit(states[2], 28, 0)
    log = open_log(disk.files(), LARGE)
    later = {states[2]: disk.peek(states[2])}
    log.truncate(Offset(1))
    assert log.read_producer_states().newest is None
    log.close()
    disk.put_back(later)  # a power cut may undo a removal
    assert open_log(disk.files(), LARGE).read_producer_states().newest is None


def test_a_batch_in_the_place_of_another_is_not_handed_out(disk: SimDisk) -> None:
    """Both are whole; the reader compares the offset with the one that it expects."""
    log = open_log(disk.files(), LARGE)
    for number in range(3):
        log.append([raw_batch(number + 1, size=BODY)], leader_epoch=EPOCH, now_us=1)
    log.close()
    first, second, third = 64, 64 + BATCH, 64 + 2 * BATCH
    whole = disk.peek(FIRST)
    disk.overwrite(FIRST, second, whole[third : third + BATCH])
    disk.overwrite(FIRST, third, whole[second:third])
    log = open_log(disk.files(), LARGE)
    assert bases(log.read(Offset(0), Offset(3), bytes_max=1)) == [0]
    assert whole[first:second] == disk.peek(FIRST)[first:second]
    for offset in (1, 2):
        with pytest.raises(SegmentCorruptError):
            log.read(Offset(offset), Offset(offset + 1), bytes_max=1)


def test_the_index_of_another_partition_leads_nobody(disk: SimDisk) -> None:
    """Its base offset is right, but its positions are those of other batches."""
    other = PartitionId(PARTITION.stream_uuid, PartitionNumber(1))
    for folder, partition, size in ((FOLDER, PARTITION, 120), ("streams/s/1", other, 136)):
        log = PartitionLog.open(disk.files(), folder, partition, SMALL)
        fill(log, 16, size=size)
        log.close()
    log = open_log(disk.files())
    name = segment_name(0, "index")
    theirs = disk.peek(f"streams/s/1/{name}")
    disk.cut(f"{FOLDER}/{name}", 0)
    disk.extend(f"{FOLDER}/{name}", theirs)
    assert bases(log.read(Offset(3), Offset(4), bytes_max=1)) == [3]
