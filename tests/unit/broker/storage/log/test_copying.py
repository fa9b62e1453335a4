"""A log that is copied from a leader in groups: one sync for batches that were synced alone."""

from __future__ import annotations

import random
from collections.abc import Sequence

import pytest

from broker.codec.disk.segment_format import SEGMENT_HEADER_SIZE, segment_name
from broker.codec.record_batch import HEADER_SIZE
from broker.model.epochs import LeaderEpoch
from broker.model.offsets import Offset
from broker.ports.partition import StoredBatch
from broker.storage.log.partition_log import LogConfig, PartitionLog
from broker.storage.log_folder import COPYING_NAME
from broker.storage.segments.damage import RotProof
from simkit.disk.disk import SECTOR, SimDisk
from simkit.log.batches import FOLDER, bases, open_log, raw_batch, read_all

EPOCH = LeaderEpoch(1)
LARGE = LogConfig(segment_bytes_max=1 << 20, preallocate_bytes=4096, index_interval_bytes=400)
BODY = 1000
FIRST = f"{FOLDER}/{segment_name(0, 'log')}"
MARK = f"{FOLDER}/{COPYING_NAME}"


@pytest.fixture
def sent() -> Sequence[StoredBatch]:
    """Twelve batches that their leader synced one by one."""
    leader = open_log(SimDisk(random.Random(1)).files(), LARGE)
    for _ in range(12):
        leader.append([raw_batch(size=BODY)], leader_epoch=EPOCH, now_us=1)
        leader.sync()
    return read_all(leader)


@pytest.fixture
def disk() -> SimDisk:
    """The follower's disk."""
    return SimDisk(random.Random(7))


def lose_a_sector_of(disk: SimDisk, batch: int) -> None:
    """Put zeros where the disk had not written a sector of a batch yet, and end the process."""
    disk.kill()
    position = SEGMENT_HEADER_SIZE + batch * (HEADER_SIZE + BODY)
    disk.overwrite(FIRST, (position // SECTOR + 1) * SECTOR, bytes(SECTOR))


def proof_of_rot(disk: SimDisk) -> RotProof:
    """Open the log, and return why its one damaged range is no torn write."""
    (damage,) = open_log(disk.files(), LARGE).recovery.damaged_ranges
    return damage.proof


def copied(disk: SimDisk, sent: Sequence[StoredBatch]) -> PartitionLog:
    """Return a log with four synced batches, and four of a group that is not synced."""
    log = open_log(disk.files(), LARGE)
    log.begin_copying()
    log.append_stored(sent[:4])
    log.sync()
    log.append_stored(sent[4:8])
    return log


def test_a_torn_group_is_cut_although_later_batches_had_seen_it_synced(
    disk: SimDisk, sent: Sequence[StoredBatch]
) -> None:
    """They had seen it on the leader's disk. The log goes on, and believes batches again."""
    copied(disk, sent)
    lose_a_sector_of(disk, 5)
    log = open_log(disk.files(), LARGE)
    assert not log.recovery.damaged
    assert log.recovery.torn is not None
    assert bases(read_all(log)) == [0, 1, 2, 3, 4]
    assert not disk.has_file(MARK)
    log.append_stored(sent[5:8])
    log.sync()
    lose_a_sector_of(disk, 6)
    assert proof_of_rot(disk) is RotProof.SEEN_SYNCED


def test_without_the_mark_the_same_tail_is_taken_for_rot(
    disk: SimDisk, sent: Sequence[StoredBatch]
) -> None:
    """So the mark is durable before the first group."""
    copied(disk, sent)
    disk.delete(MARK)
    lose_a_sector_of(disk, 5)
    assert proof_of_rot(disk) is RotProof.SEEN_SYNCED


def test_what_was_synced_before_the_copying_stays_proved(
    disk: SimDisk, sent: Sequence[StoredBatch]
) -> None:
    """The recovery point moves up to the first group, before the mark is made."""
    log = open_log(disk.files(), LARGE)
    log.append_stored(sent[:1])
    log.sync()
    log.append_stored(sent[1:2])
    log.begin_copying()
    log.append_stored(sent[2:8])
    lose_a_sector_of(disk, 1)
    disk.delete(f"{FOLDER}/{segment_name(0, 'index')}")
    assert proof_of_rot(disk) is RotProof.BELOW_RECOVERY_POINT


@pytest.mark.parametrize("how", ["told", "by a write as the leader"])
def test_the_end_of_copying_is_durable_and_syncs_first(
    disk: SimDisk, sent: Sequence[StoredBatch], how: str
) -> None:
    """Afterwards a later batch proves again that earlier ones were durable."""
    log = copied(disk, sent)
    if how == "told":
        log.end_copying()
    else:
        log.append([raw_batch(size=BODY)], leader_epoch=EPOCH, now_us=1)
    assert not log.copying
    assert log.synced_end == 8
    disk.lose_power()
    assert not disk.has_file(MARK)
    log = open_log(disk.files(), LARGE)
    assert not log.recovery.damaged
    assert log.log_end >= 8


def test_a_copied_log_keeps_its_mark_over_a_power_cut_only_until_it_is_opened(
    disk: SimDisk, sent: Sequence[StoredBatch]
) -> None:
    """Opening puts the recovery point behind all that it found."""
    copied(disk, sent)
    disk.lose_power()
    assert disk.has_file(MARK)
    log = open_log(disk.files(), LARGE)
    assert not log.recovery.damaged
    assert 4 <= log.log_end <= 8
    assert not log.copying
    disk.lose_power()
    assert not disk.has_file(MARK)


def test_a_truncation_ends_copying(disk: SimDisk, sent: Sequence[StoredBatch]) -> None:
    """The cut makes everything durable, and opens the log anew."""
    log = copied(disk, sent)
    log.truncate(Offset(6))
    assert not log.copying
    assert not disk.has_file(MARK)
    assert bases(read_all(log)) == [0, 1, 2, 3, 4, 5]
