"""Torn tail or rot: docs/decisions/0002, case by case."""

from __future__ import annotations

import contextlib
import dataclasses
import random

import pytest

from broker.codec.checksum import crc32c
from broker.codec.disk.segment_format import SEGMENT_HEADER_SIZE, segment_name
from broker.codec.record_batch import HEADER_SIZE
from broker.errors import LogFailedError, MetadataCorruptError, SegmentCorruptError
from broker.model.epochs import LeaderEpoch
from broker.model.offsets import Offset, OffsetRange
from broker.storage.log.partition_log import LogConfig, PartitionLog
from broker.storage.log_folder import RECOVERY_NAME, LogFolder, RecoveryPointFile
from broker.storage.segments.damage import RotProof
from cases import each_of, seeds
from simkit.disk.disk import SECTOR, PowerLostError, SimDisk
from simkit.log.batches import FOLDER, PARTITION, bases, open_log, raw_batch, read_all

EPOCH = LeaderEpoch(1)
LARGE = LogConfig(segment_bytes_max=1 << 20, preallocate_bytes=4096, index_interval_bytes=400)
BODY = 1000
BATCH = HEADER_SIZE + BODY  # two sectors and a bit, so that a missing one is easily made
FIRST = f"{FOLDER}/{segment_name(0, 'log')}"


@pytest.fixture
def disk() -> SimDisk:
    """A healthy disk with room."""
    return SimDisk(random.Random(7))


def written(disk: SimDisk, groups: list[int]) -> PartitionLog:
    """Return a log with one synced group after another, of so many batches each; not closed."""
    log = open_log(disk.files(), LARGE)
    for count in groups:
        log.append([raw_batch(size=BODY)] * count, leader_epoch=EPOCH, now_us=1)
        log.sync()
    disk.kill()
    return log


def start_of(batch: int) -> int:
    """Return the position of the batch of this number in the first segment."""
    return SEGMENT_HEADER_SIZE + batch * BATCH


def check_rot(disk: SimDisk, proof: RotProof, lost: OffsetRange, log_end: int) -> PartitionLog:
    """Open; expect this rot and nothing cut, all else readable, no writes."""
    sizes = {path: len(disk.peek(path).rstrip(b"\0")) for path in disk.paths()}
    log = open_log(disk.files(), LARGE)
    assert log.recovery.torn is None
    assert [(one.proof, one.offsets) for one in log.recovery.damaged_ranges] == [(proof, lost)]
    assert log.log_end == log_end
    for offset in range(log_end):
        if offset in lost:
            with pytest.raises(SegmentCorruptError) as caught:
                log.read(Offset(offset), Offset(log_end), bytes_max=1)
            assert caught.value.offset == lost.start
            assert caught.value.path.startswith(FOLDER)
            assert caught.value.position is not None
        else:
            assert bases(log.read(Offset(offset), Offset(log_end), bytes_max=1)) == [offset]
    with pytest.raises(LogFailedError, match="damaged"):
        log.append([raw_batch()], leader_epoch=EPOCH, now_us=1)
    for path, size in sizes.items():
        assert len(disk.peek(path).rstrip(b"\0")) >= size, f"{path} was shortened"
    return log


@each_of(range(0, 3 * BATCH, 24))
def test_a_tail_cut_at_any_byte_is_torn(cut: int) -> None:
    """A file that ends inside the unsynced group loses that group's last batches and no more."""
    disk = SimDisk(random.Random(7))
    log = open_log(disk.files(), LARGE)
    log.append([raw_batch(size=BODY)] * 3, leader_epoch=EPOCH, now_us=1)
    log.sync()
    log.append([raw_batch(size=BODY)] * 3, leader_epoch=EPOCH, now_us=1)
    disk.kill()
    disk.cut(FIRST, start_of(3) + cut)
    log = open_log(disk.files(), LARGE)
    assert not log.recovery.damaged
    assert log.log_end == 3 + cut // BATCH
    assert bases(read_all(log)) == list(range(log.log_end))
    torn = log.recovery.torn
    assert (torn is None) == (cut % BATCH == 0)
    if torn is not None:
        assert (torn.position, torn.offset) == (start_of(log.log_end), log.log_end)
        assert 0 < torn.bytes_cut <= cut % BATCH  # up to the last byte that was not zero
    log.append([raw_batch(size=BODY)], leader_epoch=EPOCH, now_us=1)
    log.sync()
    disk.lose_power()
    log = open_log(disk.files(), LARGE)
    assert not log.recovery.damaged
    assert len(read_all(log)) == log.log_end


@pytest.mark.parametrize("batch", [3, 4, 5])
@pytest.mark.parametrize("sector", [0, 1])
def test_a_missing_sector_of_the_last_group_is_torn(disk: SimDisk, batch: int, sector: int) -> None:
    """Valid batches behind it, of the same group, go with it: none was acknowledged."""
    written(disk, [3, 3])
    missing = (start_of(batch) // SECTOR + 1 + sector) * SECTOR
    disk.overwrite(FIRST, missing, bytes(SECTOR))
    log = open_log(disk.files(), LARGE)
    assert not log.recovery.damaged
    assert log.recovery.torn is not None
    assert log.log_end == batch
    assert bases(read_all(log)) == list(range(batch))
    assert disk.peek(FIRST)[start_of(batch) :].strip(b"\0") == b""


def test_proof_b_a_later_batch_saw_it_synced(disk: SimDisk) -> None:
    """A missing sector is rot when a later batch was written after it had been synced."""
    written(disk, [2, 2, 1])
    disk.overwrite(FIRST, (start_of(1) // SECTOR + 1) * SECTOR, bytes(SECTOR))
    check_rot(disk, RotProof.SEEN_SYNCED, OffsetRange(Offset(1), Offset(2)), 5)


@pytest.mark.parametrize("where", [0, 4, 20, HEADER_SIZE - 1, HEADER_SIZE, HEADER_SIZE + 500])
@pytest.mark.parametrize("batch", [0, 2, 3])
def test_proof_c_no_sector_is_missing(disk: SimDisk, batch: int, where: int) -> None:
    """A flipped bit is no torn write, in the header or in the body, even of the last batch."""
    written(disk, [4])
    disk.flip_bit(FIRST, start_of(batch) + where, 3)
    lost = OffsetRange(Offset(batch), Offset(batch + 1))
    check_rot(disk, RotProof.NO_SECTOR_MISSING, lost, 4)


def test_proof_a_below_the_recovery_point(disk: SimDisk) -> None:
    """A missing record below the recovery point is rot, whatever it looks like."""
    log = open_log(disk.files(), LARGE)
    log.append([raw_batch(size=BODY)] * 4, leader_epoch=EPOCH, now_us=1)
    log.checkpoint()
    disk.kill()
    disk.delete(f"{FOLDER}/{segment_name(0, 'index')}")
    disk.overwrite(FIRST, (start_of(2) // SECTOR + 1) * SECTOR, bytes(SECTOR))
    check_rot(disk, RotProof.BELOW_RECOVERY_POINT, OffsetRange(Offset(2), Offset(3)), 4)


def test_a_file_shorter_than_its_recovery_point(disk: SimDisk) -> None:
    """Nobody but the owner shortens a log: the missing records are reported by number."""
    written(disk, [4])
    log = open_log(disk.files(), LARGE)
    log.close()
    disk.kill()
    disk.cut(FIRST, start_of(2))
    log = open_log(disk.files(), LARGE)
    assert {one.proof for one in log.recovery.damaged_ranges} == {
        RotProof.BELOW_RECOVERY_POINT,
        RotProof.MISSING,
    }
    assert log.log_end == 4
    assert bases(log.read(Offset(0), Offset(4), bytes_max=1 << 20)) == [0, 1]
    with pytest.raises(SegmentCorruptError):
        log.read(Offset(2), Offset(4), bytes_max=1)


def test_rot_in_a_sealed_segment_is_met_by_its_reader(disk: SimDisk) -> None:
    """Sealed segments are not scanned at start; the damaged batch raises, its neighbours do not."""
    written(disk, [6])
    log = open_log(disk.files(), LARGE)
    log.seal_active(1)
    log.close()
    disk.kill()
    for position in (start_of(2) + 10, start_of(4) + HEADER_SIZE + 10):
        disk.flip_bit(FIRST, position, 0)
    log = open_log(disk.files(), LARGE)
    assert not log.recovery.damaged
    readable = []
    for offset in range(6):
        try:
            readable += bases(log.read(Offset(offset), Offset(6), bytes_max=1))
        except SegmentCorruptError as error:
            assert error.offset == offset  # noqa: PT017 - each of two offsets raises
    assert readable == [0, 1, 3, 5]
    assert log.append([raw_batch()], leader_epoch=EPOCH, now_us=1) == [6]


@pytest.mark.parametrize("sealed", [True, False])
def test_a_suspect_log_is_scanned_whole(disk: SimDisk, sealed: bool) -> None:
    """Damage that a reader met is found by each opening, until a whole scan finds nothing."""
    written(disk, [6])
    log = open_log(disk.files(), LARGE)
    if sealed:
        log.seal_active(1)
    log.close()
    position = start_of(2) + HEADER_SIZE + 10
    disk.flip_bit(FIRST, position, 0)
    log = open_log(disk.files(), LARGE)
    assert not log.recovery.damaged  # below what opening looks at
    with pytest.raises(SegmentCorruptError):
        log.read(Offset(2), Offset(6), bytes_max=1)
    log.mark_suspect()
    log.mark_suspect()
    proof = RotProof.SEALED if sealed else RotProof.BELOW_RECOVERY_POINT
    for _ in range(2):
        disk.lose_power()
        check_rot(disk, proof, OffsetRange(Offset(2), Offset(3)), 6)
    disk.flip_bit(FIRST, position, 0)
    assert not open_log(disk.files(), LARGE).recovery.damaged
    assert f"{FOLDER}/suspect" not in disk.paths()
    log = open_log(disk.files(), LARGE)
    assert bases(read_all(log)) == list(range(6))
    assert log.append([raw_batch()], leader_epoch=EPOCH, now_us=1) == [6]


@pytest.mark.parametrize("number", [0, 1, 2, 3])
def test_a_missing_segment_is_named(disk: SimDisk, number: int) -> None:
    """The first, one in the middle or the newest: the offsets that went with it are reported."""
    log = open_log(disk.files())
    for _ in range(16):
        log.append([raw_batch()], leader_epoch=EPOCH, now_us=1)
    log.close()
    disk.kill()
    base = 4 * number
    inode = disk.delete(f"{FOLDER}/{segment_name(base, 'log')}")
    log = open_log(disk.files())
    assert [one.offsets for one in log.recovery.damaged_ranges] == [
        OffsetRange(Offset(base), Offset(base + 4))
    ]
    assert (log.log_start, log.log_end) == (0, 16)
    kept = [offset for offset in range(16) if not base <= offset < base + 4]
    for offset in kept:
        assert bases(log.read(Offset(offset), Offset(16), bytes_max=1)) == [offset]
    disk.kill()
    disk.restore(f"{FOLDER}/{segment_name(base, 'log')}", inode)
    log = open_log(disk.files())
    assert not log.recovery.damaged
    assert bases(read_all(log)) == list(range(16))


@pytest.mark.parametrize("kind", ["index", "epochs", "recovery"])
@pytest.mark.parametrize("way", ["flip", "delete", "empty"])
def test_caches_are_rebuilt(disk: SimDisk, kind: str, way: str) -> None:
    """A damaged, missing or empty cache costs time and nothing else, and is reported."""
    log = open_log(disk.files())
    for number in range(16):
        epoch = LeaderEpoch(1 + number // 5)
        log.append([raw_batch(stamp_us=number)], leader_epoch=epoch, now_us=1)
    log.close()
    disk.kill()
    path = f"{FOLDER}/{segment_name(4, 'index') if kind == 'index' else kind}"
    if way == "flip":
        disk.flip_bit(path, 20, 2)
        disk.flip_bit(path, min(4096 + 20, len(disk.peek(path)) - 1), 2)
    elif way == "delete":
        disk.delete(path)
    else:
        disk.cut(path, 0)
    log = open_log(disk.files())
    assert log.recovery.rebuilt == [path]
    assert not log.recovery.damaged
    assert bases(read_all(log)) == list(range(16))
    assert [one.start_offset for one in log.epochs.starts] == [0, 5, 10, 15]
    assert log.offset_at(9) == 9
    log.close()
    disk.kill()
    assert open_log(disk.files()).recovery.rebuilt == []


def test_nothing_legible_is_refused(disk: SimDisk) -> None:
    """Without a segment and with a damaged recovery point the log does not begin at zero."""
    written(disk, [1])
    disk.delete(FIRST)
    for slot in (0, 4096):
        disk.overwrite(f"{FOLDER}/recovery", slot, b"garbage!")
    with pytest.raises(MetadataCorruptError, match="damaged"):
        open_log(disk.files())


def test_truncating_below_the_damage_heals(disk: SimDisk) -> None:
    """An operator may decide to give the damaged end up; then the log takes writes again."""
    written(disk, [2, 2, 2])
    disk.flip_bit(FIRST, start_of(3) + 5, 1)
    lost = OffsetRange(Offset(3), Offset(4))
    log = check_rot(disk, RotProof.SEEN_SYNCED, lost, 6)
    log.truncate(Offset(3))
    assert not log.recovery.damaged
    assert log.append([raw_batch(size=BODY)], leader_epoch=EPOCH, now_us=1) == [3]
    log.sync()
    disk.lose_power()
    assert bases(read_all(open_log(disk.files(), LARGE))) == [0, 1, 2, 3]


def test_a_record_that_looks_like_a_batch_is_not_one(disk: SimDisk) -> None:
    """An older copy of the log inside a record is not taken for what follows the damage."""
    written(disk, [3])
    copy = disk.peek(FIRST)[start_of(0) : start_of(3)]
    log = open_log(disk.files(), LARGE)
    bait = dataclasses.replace(raw_batch(), body=copy, body_crc=crc32c(copy))
    log.append([bait], leader_epoch=EPOCH, now_us=1)
    log.sync()
    log.append([raw_batch(size=BODY)], leader_epoch=EPOCH, now_us=1)
    log.sync()
    disk.kill()
    disk.flip_bit(FIRST, start_of(3) + 2, 1)
    check_rot(disk, RotProof.SEEN_SYNCED, OffsetRange(Offset(3), Offset(4)), 5)


def test_an_index_left_behind_vouches_for_nothing(disk: SimDisk) -> None:
    """A new segment never believes the index of an earlier one of its name (seed 5666)."""
    log = open_log(disk.files())
    for _ in range(4):
        log.append([raw_batch()], leader_epoch=EPOCH, now_us=1)
    log.close()
    disk.kill()
    stale = disk.peek(f"{FOLDER}/{segment_name(0, 'index')}")
    for name in disk.files().list(FOLDER):
        disk.delete(f"{FOLDER}/{name}")
    left = disk.files().open(f"{FOLDER}/{segment_name(0, 'index')}", create=True)
    left.write_at(0, [stale])
    left.datasync()
    log = open_log(disk.files())
    assert log.log_end == 0
    log.append([raw_batch()], leader_epoch=EPOCH, now_us=1)
    disk.kill()
    disk.cut(f"{FOLDER}/{segment_name(0, 'log')}", 100)
    log = open_log(disk.files())
    assert not log.recovery.damaged
    assert log.recovery.torn is not None


@pytest.mark.parametrize(("twin_start", "is_named"), [(2, False), (3, True), (9, True)])
def test_the_recovery_point_of_a_copy_that_freed_more_removes_nothing(
    twin_start: int, *, is_named: bool
) -> None:
    """A log starts with a segment: a point that starts where there is none is of another log.

    What lies below it is not what a free left half done. With the right point, all is there again.
    """
    disk = SimDisk(random.Random(7))
    log = open_log(disk.files(), LARGE)
    for _ in range(2):
        for _ in range(2):
            log.append([raw_batch(size=BODY)], leader_epoch=EPOCH, now_us=1)
        log.seal_active(1)
    log.append([raw_batch(size=BODY)], leader_epoch=EPOCH, now_us=1)
    log.close()
    files = disk.files()
    folder = LogFolder(files, FOLDER, PARTITION)
    own = folder.read(folder.file(RECOVERY_NAME))
    before = [name for name in files.list(FOLDER) if name.endswith(".log")]
    point, newest, _ = RecoveryPointFile.open(folder)
    assert newest is not None
    twin_end = max(twin_start + 1, newest.log_end)
    twin = dataclasses.replace(
        newest,
        sequence=newest.sequence + 1,
        log_start=Offset(twin_start),
        segment_base=Offset(max(twin_start, newest.segment_base)),
        log_end=Offset(twin_end),
    )
    point.confirm(twin)
    point.close()
    found = open_log(files, LARGE)
    assert bool(found.recovery.damaged) is is_named
    found.close()
    left = [name for name in files.list(FOLDER) if name.endswith(".log")]
    assert left == (before if is_named else before[1:])
    if is_named:
        folder.replace(folder.file(RECOVERY_NAME), own)
        again = open_log(files, LARGE)
        assert not again.recovery.damaged
        assert bases(read_all(again)) == list(range(5))


@pytest.mark.parametrize("seed", seeds(12))
def test_what_a_failed_sync_only_told_the_cache_frees_nothing(seed: int) -> None:
    """The recovery point of a free was not confirmed; the next process finishes it, power fails.

    Whatever it had removed by then, the point that says so must be on the disk as well.
    """
    for steps in range(1, 12):
        disk = SimDisk(random.Random(100 * seed + steps))
        log = open_log(disk.files(), LARGE)
        for _ in range(4):
            log.append([raw_batch(size=BODY)], leader_epoch=EPOCH, now_us=1)
            log.seal_active(1)
        disk.datasync_failures = 1
        with pytest.raises(LogFailedError):
            log.free([one.base_offset for one in log.segments()[:3]])
        disk.kill()
        files = disk.files()
        disk.stop_after = steps
        with contextlib.suppress(PowerLostError):
            open_log(files, LARGE)
        disk.lose_power()
        found = open_log(disk.files(), LARGE)
        assert not found.recovery.damaged
        assert [one.header.base_offset for one in read_all(found)] == list(
            range(found.log_start, 4)
        )
