"""The log's contract with the partition driver, on a healthy disk."""

from __future__ import annotations

import itertools
import random
import sys
import threading
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import pytest

from broker.adapters.disk.files import DiskFiles
from broker.errors import (
    DiskFullError,
    LogFailedError,
    MetadataCorruptError,
    OffsetOutOfRangeError,
    SegmentCorruptError,
    StaleLeaderEpochError,
)
from broker.model.epochs import LeaderEpoch
from broker.model.ids import PartitionId, PartitionNumber, StreamUuid
from broker.model.offsets import Offset
from broker.storage.log.partition_log import LogConfig, PartitionLog
from broker.storage.segments.index import SegmentIndex
from broker.storage.segments.log_reader import LogReader
from broker.storage.segments.segment import Segment
from simkit.disk.disk import ROOMY, SimDisk
from simkit.log.batches import FOLDER, PARTITION, SMALL, bases, open_log, raw_batch, read_all

EPOCH = LeaderEpoch(1)


@pytest.fixture
def disk() -> SimDisk:
    """A healthy disk with room."""
    return SimDisk(random.Random(7))


def fill(log: PartitionLog, count: int, *, epoch: LeaderEpoch = EPOCH) -> None:
    """Append and sync ``count`` single-record batches, the i-th stamped 10 i µs."""
    for _ in range(count):
        stamp = 10 * log.log_end
        log.append([raw_batch(stamp_us=stamp)], leader_epoch=epoch, now_us=stamp)
        log.sync()


def test_a_new_log_is_empty(disk: SimDisk) -> None:
    """A log begins at offset 0 with one empty, active segment."""
    log = open_log(disk.files())
    assert (log.log_start, log.log_end, log.synced_end) == (0, 0, 0)
    assert [(one.base_offset, one.sealed) for one in log.segments()] == [(0, False)]
    assert log.read(Offset(0), Offset(0), bytes_max=1) == []
    assert log.offset_at(0) == 0
    assert log.read_producer_states().newest is None


def test_append_returns_the_offsets_that_come_next(disk: SimDisk) -> None:
    """A group gets contiguous offsets; it is durable only after a sync."""
    log = open_log(disk.files())
    batches = [raw_batch(records=3), raw_batch(records=2)]
    assert log.append(batches, leader_epoch=EPOCH, now_us=5) == [0, 3]
    assert (log.log_end, log.synced_end) == (5, 0)
    assert log.sync() == 5
    assert log.append([raw_batch()], leader_epoch=EPOCH, now_us=5) == [5]
    headers = [one.header for one in read_all(log)]
    assert [one.synced_end for one in headers] == [0, 0, 5]
    assert [one.leader_epoch for one in headers] == [1, 1, 1]


def test_segments_roll_by_bytes(disk: SimDisk) -> None:
    """No segment outgrows its limit, unless one batch alone does; segments join without a gap."""
    log = open_log(disk.files())
    log.append([raw_batch(size=128) for _ in range(10)], leader_epoch=EPOCH, now_us=1)
    log.append([raw_batch(size=2000)], leader_epoch=EPOCH, now_us=1)
    log.append([raw_batch(size=8)], leader_epoch=EPOCH, now_us=1)
    segments = log.segments()
    assert [one.base_offset for one in segments] == [0, 4, 8, 10, 11]
    assert all(a.end_offset == b.base_offset for a, b in itertools.pairwise(segments))
    assert [one.sealed for one in segments] == [True] * 4 + [False]
    assert [one.size_bytes for one in segments[:4]] == [928, 928, 496, 64 + 88 + 2000]
    assert log.sealed_count == 4
    assert bases(read_all(log)) == list(range(12))


def test_segments_roll_by_age(disk: SimDisk) -> None:
    """Age counts from a segment's first batch, on a tick and on an append."""
    log = open_log(disk.files(), LogConfig(segment_age_ms_max=1))
    assert not log.roll_if_due(10_000)
    log.append([raw_batch()], leader_epoch=EPOCH, now_us=10_000)
    assert not log.roll_if_due(10_999)
    assert log.roll_if_due(11_000)
    assert not log.roll_if_due(99_000), "an empty segment has no age"
    log.append([raw_batch()], leader_epoch=EPOCH, now_us=99_000)
    log.append([raw_batch()], leader_epoch=EPOCH, now_us=100_000)
    assert [one.base_offset for one in log.segments()] == [0, 1, 2]


def test_a_segment_from_before_the_clock_was_put_back_is_sealed(disk: SimDisk) -> None:
    """Its records do not wait a day for their table because the clock went back by a day."""
    log = open_log(disk.files(), LogConfig(segment_age_ms_max=1))
    log.append([raw_batch()], leader_epoch=EPOCH, now_us=86_400_010_000)
    assert not log.roll_if_due(86_400_009_001)
    assert log.roll_if_due(10_000)


def test_the_age_of_a_segment_survives_a_restart(disk: SimDisk) -> None:
    """A restart does not make a segment younger."""
    config = LogConfig(segment_age_ms_max=1)
    log = open_log(disk.files(), config)
    log.append([raw_batch()], leader_epoch=EPOCH, now_us=10_000)
    log.close()
    assert open_log(disk.files(), config).roll_if_due(11_000)


def test_sealing_on_demand(disk: SimDisk) -> None:
    """A segment with records can be sealed at once; an empty one cannot."""
    log = open_log(disk.files())
    assert not log.seal_active(1)
    fill(log, 1)
    assert log.seal_active(1)
    assert not log.seal_active(1)
    assert log.synced_end == 1


def test_reads_are_whole_batches_within_the_limits(disk: SimDisk) -> None:
    """One batch always comes, then as many as fit; edges may stick out."""
    log = open_log(disk.files())
    for _ in range(8):
        log.append([raw_batch(records=4)], leader_epoch=EPOCH, now_us=1)
    size = 88 + 128
    assert bases(log.read(Offset(5), Offset(32), bytes_max=0)) == [4]
    assert bases(log.read(Offset(5), Offset(32), bytes_max=2 * size)) == [4, 8]
    assert bases(log.read(Offset(5), Offset(32), bytes_max=3 * size - 1)) == [4, 8]
    assert bases(log.read(Offset(5), Offset(9), bytes_max=1 << 20)) == [4, 8]
    assert bases(log.read(Offset(0), Offset(32), bytes_max=1 << 20)) == list(range(0, 32, 4))


def test_a_read_has_some_hundreds_of_small_batches() -> None:
    """Each takes a kilobyte beside its bytes, in one segment or in many; the next read goes on."""
    for config in (SMALL, LogConfig()):
        log = open_log(SimDisk(random.Random(7)).files(), config)
        for _ in range(1_000):
            log.append([raw_batch(size=8)] * 5, leader_epoch=EPOCH, now_us=1)
        first = log.read(Offset(0), Offset(5_000), bytes_max=1 << 30)
        assert bases(first) == list(range(len(first)))
        assert 256 <= len(first) < 256 + 10  # the last segment's are whole
        assert bases(read_all(log, bytes_max=1 << 30)) == list(range(5_000))
        log.close()


def test_a_read_of_small_batches_keeps_little_more_than_their_bytes() -> None:
    """The bodies are parts of larger pieces of the file, which stay in memory with them."""
    log = open_log(SimDisk(random.Random(7)).files(), LogConfig())
    for _ in range(20):
        log.append([raw_batch(size=1024)] * 100, leader_epoch=EPOCH, now_us=1)
    read = log.read(Offset(0), Offset(2_000), bytes_max=1 << 30)
    pieces = {id(batch.body.obj): len(batch.body.obj) for batch in read}
    assert sum(pieces.values()) < 1.5 * sum(batch.header.size for batch in read)
    log.close()


def test_reads_agree_with_a_naive_walk(disk: SimDisk) -> None:
    """Every range gives exactly the batches that overlap it, whatever was read before."""
    rng = random.Random(3)
    log = open_log(disk.files())
    for _ in range(40):
        batch = raw_batch(size=8 * rng.randrange(1, 30), records=rng.randrange(1, 4))
        log.append([batch], leader_epoch=EPOCH, now_us=1)
    every = read_all(log, bytes_max=1 << 20)
    for start in range(log.log_end):
        for end in range(start + 1, log.log_end, 7):
            expected = [
                one.header.base_offset
                for one in every
                if one.header.end_offset > start and one.header.base_offset < end
            ]
            assert bases(log.read(Offset(start), Offset(end), bytes_max=1 << 20)) == expected


@pytest.mark.parametrize(("start", "end"), [(3, 9), (4, 21), (21, 21), (9, 8)])
def test_ranges_outside_the_log_are_refused(disk: SimDisk, start: int, end: int) -> None:
    """The error carries what the log has."""
    log = open_log(disk.files())
    fill(log, 20)
    log.free([Offset(0)])
    with pytest.raises(OffsetOutOfRangeError) as caught:
        log.read(Offset(start), Offset(end), bytes_max=1)
    assert (caught.value.start, caught.value.end) == (4, 20)


def test_time_leads_to_the_first_batch_that_reaches_it(disk: SimDisk) -> None:
    """Timestamps may go back; the first batch that reaches the time counts."""
    stamps = [5, 9, 3, 20, 11, 20, 40, 1, 2]
    log = open_log(disk.files())
    for stamp in stamps:
        log.append([raw_batch(stamp_us=stamp)], leader_epoch=EPOCH, now_us=1)
    for stamp in range(45):
        naive = next((at for at, one in enumerate(stamps) if one >= stamp), len(stamps))
        assert log.offset_at(stamp) == naive
    log.free([Offset(0)])
    assert log.offset_at(0) == 4


def test_a_time_is_looked_for_again_when_its_segment_is_freed_during_the_look(
    disk: SimDisk, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The segment's file is gone when it is opened: another record reaches the time first."""
    log = open_log(disk.files())
    for stamp in [5, 9, 3, 20, 11, 20, 40, 1, 2]:
        log.append([raw_batch(stamp_us=stamp)], leader_epoch=EPOCH, now_us=1)
    log.sync()
    index_of = LogReader._index

    def freeing(reader: LogReader, segment: Segment) -> SegmentIndex:
        index = index_of(reader, segment)
        if segment.base_offset == 0:
            log.free([Offset(0)])
        return index

    monkeypatch.setattr(LogReader, "_index", freeing)
    assert log.offset_at(20) == 5


def test_a_time_is_not_looked_for_past_a_segment_that_is_gone(disk: SimDisk) -> None:
    """A file that vanished without being freed is named: the answer may have been in it."""
    files = disk.files()
    log = open_log(files)
    fill(log, 20)
    log.close()
    log = open_log(files)
    first, third = log.segments()[1].base_offset, log.segments()[2].base_offset
    (second,) = [path for path in disk.paths() if path.endswith(f"{first:020}.log")]
    disk.delete(second)
    with pytest.raises(SegmentCorruptError) as caught:
        log.offset_at(10 * first)
    assert caught.value.path == second
    assert log.offset_at(10 * third) == third


@pytest.mark.parametrize("how", ["read", "offset_at"])
def test_a_sealed_segment_of_another_log_is_not_read_as_ours(disk: SimDisk, how: str) -> None:
    """It has the same name and good checksums; only its header names another log."""
    files = disk.files()
    for folder in (FOLDER, "streams/other/0"):
        other = PartitionId(StreamUuid("00000000-0000-4000-8000-00000000000b"), PARTITION.number)
        log = PartitionLog.open(files, folder, PARTITION if folder == FOLDER else other, SMALL)
        fill(log, 20)
        log.close()
    sealed = f"{0:020}.log"
    theirs = disk.peek(f"streams/other/0/{sealed}")
    disk.overwrite(f"{FOLDER}/{sealed}", 0, theirs)
    log = open_log(files)
    with pytest.raises(SegmentCorruptError, match="holds the segment 0 of"):
        _ = log.read(Offset(0), Offset(1), bytes_max=1) if how == "read" else log.offset_at(0)


def test_freeing_moves_the_start(disk: SimDisk) -> None:
    """Whole oldest segments go, durably, and never come back."""
    log = open_log(disk.files())
    fill(log, 20)
    log.free([])
    log.free([Offset(0), Offset(4)])
    assert (log.log_start, log.log_end) == (8, 20)
    assert bases(read_all(log)) == list(range(8, 20))
    disk.lose_power()
    log = open_log(disk.files())
    assert (log.log_start, log.log_end) == (8, 20)
    assert not [name for name in disk.files().list(FOLDER) if name < "00000000000000000008"]


@pytest.mark.parametrize("wanted", [[4], [0, 8], [16], [0, 4, 8, 12, 16]])
def test_freeing_only_an_oldest_sealed_prefix(disk: SimDisk, wanted: list[int]) -> None:
    """A gap, or the active segment, is the caller's mistake."""
    log = open_log(disk.files())
    fill(log, 20)
    with pytest.raises(AssertionError):
        log.free([Offset(base) for base in wanted])


def test_truncation_cuts_every_trace(disk: SimDisk) -> None:
    """After a cut, records, epochs and producer state from there on are gone, also on disk."""
    log = open_log(disk.files())
    fill(log, 10)
    log.write_producer_state(b"at 10")
    fill(log, 5)
    fill(log, 10, epoch=LeaderEpoch(2))
    log.write_producer_state(b"at 25")
    log.truncate(Offset(10))
    assert (log.log_end, log.synced_end, log.epochs.latest) == (10, 10, 1)
    assert log.read_producer_states().newest == (b"at 10", 10)
    assert log.append([raw_batch(9)], leader_epoch=LeaderEpoch(3), now_us=1) == [10]
    log.sync()
    disk.lose_power()
    log = open_log(disk.files())
    assert not log.recovery.damaged
    assert bases(read_all(log)) == list(range(11))
    assert log.epochs.epoch_of(Offset(10)) == 3


def test_epochs_only_grow(disk: SimDisk) -> None:
    """Each epoch's start is recorded before its first batch; an older leader is refused."""
    log = open_log(disk.files())
    fill(log, 3)
    fill(log, 2, epoch=LeaderEpoch(4))
    with pytest.raises(StaleLeaderEpochError) as caught:
        log.append([raw_batch()], leader_epoch=LeaderEpoch(3), now_us=1)
    assert (caught.value.got, caught.value.current) == (3, 4)
    assert "put the newest metadata back" in caught.value.message
    assert [(one.leader_epoch, one.start_offset) for one in log.epochs.starts] == [(1, 0), (4, 3)]
    disk.lose_power()
    assert open_log(disk.files()).epochs == log.epochs


def test_producer_state_is_the_newest_valid(disk: SimDisk) -> None:
    """Two snapshots are kept; when the newest is damaged the one before counts."""
    log = open_log(disk.files())
    for state in (b"one", b"two", b"three"):
        fill(log, 1)
        assert log.write_producer_state(state)
    assert log.read_producer_states().newest == (b"three", 3)
    names = [name for name in disk.files().list(FOLDER) if name.endswith("producers")]
    assert names == [f"{offset:020d}.producers" for offset in (2, 3)]
    disk.flip_bit(f"{FOLDER}/{names[-1]}", 30, 1)
    found = open_log(disk.files()).read_producer_states()
    assert [one[:2] for one in found.valid] == [(b"two", 2)]
    assert found.unreadable == (f"{FOLDER}/{names[-1]}",)


def test_a_follower_stores_the_leaders_bytes(disk: SimDisk) -> None:
    """Stored batches keep their headers, across epochs and segments."""
    leader = open_log(disk.files())
    fill(leader, 6)
    fill(leader, 6, epoch=LeaderEpoch(5))
    sent = read_all(leader)
    other = SimDisk(random.Random(1))
    follower = open_log(other.files())
    assert follower.append_stored(sent[:7]) == 7
    assert follower.append_stored(sent[7:]) == 12
    follower.sync()
    other.lose_power()
    follower = open_log(other.files())
    assert [(one.header, bytes(one.body)) for one in read_all(follower)] == [
        (one.header, bytes(one.body)) for one in sent
    ]
    assert follower.epochs == leader.epochs
    with pytest.raises(AssertionError):
        follower.append_stored(sent[:1])


def test_a_full_disk_refuses_and_heals(disk: SimDisk) -> None:
    """A group that does not fit leaves nothing, also across a roll; with room the log goes on."""
    log = open_log(disk.files())
    fill(log, 3)
    disk.capacity_bytes = disk.used_bytes() + 700
    before = [bytes(one.body) for one in read_all(log)]
    for _ in range(3):
        with pytest.raises(DiskFullError):
            log.append([raw_batch() for _ in range(30)], leader_epoch=EPOCH, now_us=1)
        assert (log.log_end, log.synced_end) == (3, 3)
        assert [bytes(one.body) for one in read_all(log)] == before
    disk.capacity_bytes = ROOMY
    fill(log, 30)
    assert bases(read_all(log)) == list(range(33))


def test_a_full_disk_can_be_freed(disk: SimDisk) -> None:
    """Freeing segments needs no room, so it is the way out of a full disk."""
    log = open_log(disk.files())
    fill(log, 20)
    disk.capacity_bytes = disk.used_bytes()
    log.free([Offset(0), Offset(4), Offset(8)])
    assert log.log_start == 12


def test_a_failed_fsync_ends_the_log(disk: SimDisk) -> None:
    """No further fsync is tried: the log refuses writes until it is reopened, and still reads."""
    log = open_log(disk.files())
    fill(log, 3)
    log.append([raw_batch()], leader_epoch=EPOCH, now_us=1)
    disk.datasync_failures = 1
    with pytest.raises(LogFailedError):
        log.sync()
    assert log.synced_end == 3
    for write in (log.sync, log.checkpoint, lambda: log.seal_active(1), lambda: fill(log, 1)):
        with pytest.raises(LogFailedError):
            write()
    assert bases(log.read(Offset(0), Offset(3), bytes_max=1 << 20)) == [0, 1, 2]
    log.close()
    disk.kill()
    log = open_log(disk.files())
    fill(log, 1)
    disk.lose_power()
    assert bases(read_all(open_log(disk.files()))) == list(range(log.log_end))


def test_a_closed_log_takes_no_writes(disk: SimDisk) -> None:
    """After close nothing is written; a second close is fine."""
    log = open_log(disk.files())
    fill(log, 2)
    log.close()
    with pytest.raises(LogFailedError, match="closed"):
        log.append([raw_batch()], leader_epoch=EPOCH, now_us=1)
    log.close()


def test_a_clean_restart_scans_nothing(disk: SimDisk) -> None:
    """After a clean close the log opens from its indexes and gives reserved disk back."""
    log = open_log(disk.files())
    fill(log, 30)
    log.close()
    log = open_log(disk.files())
    assert log.recovery.scanned_bytes == 0
    assert log.recovery.rewritten_bytes == 0
    assert bases(read_all(log)) == list(range(30))


def test_a_folder_of_another_partition_is_refused(disk: SimDisk) -> None:
    """A copied or swapped directory does not open as something else."""
    fill(open_log(disk.files()), 1)
    other = PartitionId(PARTITION.stream_uuid, PartitionNumber(1))
    with pytest.raises(MetadataCorruptError, match="holds the log of"):
        PartitionLog.open(disk.files(), FOLDER, other, SMALL)


def test_readers_beside_a_writer(tmp_path: Path) -> None:
    """Threads that read all the time see whole, checked batches while the log rolls and frees."""
    switch_s = sys.getswitchinterval()
    sys.setswitchinterval(switch_s / 20)  # else the writer waits 5 ms for a reader at every turn
    files = DiskFiles(tmp_path / "data")
    log = open_log(files)
    done = threading.Event()

    def reader(seed: int) -> int:
        rng = random.Random(seed)
        batches_count = 0
        while not done.is_set():
            start, end = log.log_start, log.log_end
            if start == end:
                continue
            first = Offset(rng.randrange(start, end))
            try:
                found = log.read(first, end, bytes_max=3000)
                assert found[0].header.base_offset <= first < found[0].header.end_offset
                batches_count += len(found)
                log.offset_at(rng.randrange(10 * end + 1))
            except OffsetOutOfRangeError as error:
                assert error.start > start, "refused although nothing was freed"  # noqa: PT017
        return batches_count

    with ThreadPoolExecutor(2) as threads:
        readers = [threads.submit(reader, seed) for seed in range(2)]
        try:
            for step in range(75):
                fill(log, 2)
                if step % 10 == 9:
                    log.free([one.base_offset for one in log.segments()[:-3]])
        finally:
            done.set()
            sys.setswitchinterval(switch_s)
        assert all(one.result(timeout=60) > 0 for one in readers)
    log.close()
    files.close()


def test_ticks_move_the_recovery_point(disk: SimDisk) -> None:
    """A while after the last write the point is at the log end, and a restart scans only zeros."""
    config = LogConfig(checkpoint_ms=5, preallocate_bytes=512)
    log = open_log(disk.files(), config)
    log.roll_if_due(1_000_000)
    fill(log, 8)
    log.roll_if_due(1_004_000)
    disk.kill()
    assert open_log(disk.files(), config).recovery.rewritten_bytes > 0
    log = open_log(disk.files(), config)
    fill(log, 8)
    log.roll_if_due(1_010_000)
    disk.kill()
    assert open_log(disk.files(), config).recovery.rewritten_bytes == 0
