"""A pass leaves the last record of each key; whatever stops it, a segment is the old or the new."""

from __future__ import annotations

import random
import threading
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from unittest.mock import patch

import pytest

from broker.codec.record_batch import BatchHeader
from broker.errors import OffsetOutOfRangeError, SegmentCorruptError
from broker.model.epochs import LeaderEpoch
from broker.model.offsets import Offset
from broker.ports.partition import StoredBatch
from broker.storage.log.partition_log import LogConfig, PartitionLog
from broker.storage.promises.promises import Promises
from broker.storage.segments.log_reader import LogReader
from cases import seeds
from simkit.disk.disk import PowerLostError, SimDisk
from simkit.log.batches import FOLDER, PARTITION
from simkit.log.keyed import (
    Row,
    compacted,
    do_pass,
    fill,
    keyed_batch,
    pass_over,
    rows_of,
    sealed_below,
)

CONFIG = LogConfig(
    segment_bytes_max=6000, index_interval_bytes=300, preallocate_bytes=4096,
    checkpoint_bytes=1 << 30,
)  # fmt: skip
EPOCH = LeaderEpoch(1)


def opened(disk: SimDisk) -> PartitionLog:
    """Open the log as a broker does: with its promise."""
    files = disk.files()
    promises = Promises(files)
    log = PartitionLog.open(files, FOLDER, PARTITION, CONFIG, promise=promises.replica(PARTITION))
    promises.sync()
    return log


def filled(seed: int, batches: int = 80) -> tuple[SimDisk, PartitionLog, list[Row]]:
    """Return a log of some sealed segments, and its rows."""
    disk = SimDisk(random.Random(seed))
    log = opened(disk)
    fill(log, random.Random(seed), batches)
    return disk, log, rows_of(log)


def headers_of(log: PartitionLog) -> list[BatchHeader]:
    """Return the header of every batch."""
    found: list[BatchHeader] = []
    at = log.log_start
    while at < log.log_end:
        found += [one.header for one in log.read(at, log.log_end, bytes_max=4000)]
        at = found[-1].end_offset
    return found


@pytest.mark.parametrize("seed", seeds(4))
@pytest.mark.parametrize("drops", [False, True])
def test_a_pass_leaves_what_the_model_leaves(seed: int, drops: bool) -> None:
    """Below the line the last of each key and all without key; above it everything, untouched."""
    disk, log, rows = filled(seed)
    segments = [one for one in log.segments() if one.sealed]
    line = segments[random.Random(seed).randrange(1, len(segments))].end_offset
    above = [header for header in headers_of(log) if header.base_offset >= line]
    work = pass_over(log, line, drops=drops)
    assert do_pass(log, work)
    wanted = compacted(rows, line, dead=[range(line)] if drops else ())
    assert rows_of(log) == wanted
    assert work.counts.removed_count == len(rows) - len(wanted)
    assert [header for header in headers_of(log) if header.base_offset >= line] == above
    for start in range(0, log.log_end, 7):  # a read may begin at an offset that is gone
        assert rows_of(log, start) == [row for row in wanted if row.offset >= start]
    log.close()
    disk.kill()
    again = opened(disk)
    assert again.recovery.damaged == []
    assert again.recovery.rebuilt == [], "the new indexes were believed"
    assert rows_of(again) == wanted
    assert do_pass(again, pass_over(again, line, drops=drops)) == 0, "nothing is left to do"


def test_epochs_and_offsets_keep_their_places() -> None:
    """An epoch all of whose records go still begins where it began."""
    disk = SimDisk(random.Random(1))
    log = opened(disk)
    for epoch in (1, 2, 3, 4):
        for _ in range(3):
            log.append([keyed_batch([(b"k", b"v")])], leader_epoch=LeaderEpoch(epoch), now_us=1)
    log.sync()
    log.seal_active(2)
    before = log.epochs
    do_pass(log, pass_over(log, log.log_end))
    assert [(one.base_offset, one.end_offset, one.records_count) for one in headers_of(log)] == [
        (0, 3, 0), (3, 6, 0), (6, 9, 0), (9, 12, 1),
    ]  # fmt: skip
    log.close()
    disk.kill()
    disk.delete(f"{FOLDER}/epochs")
    again = opened(disk)
    assert again.epochs == before, "rebuilt from what is left"
    assert (again.log_start, again.log_end) == (0, 12)


def test_keys_that_do_not_fit_are_taken_in_parts() -> None:
    """With a map for a few keys the result is the same."""
    disk = SimDisk(random.Random(1))
    log = opened(disk)
    rng = random.Random(5)
    for at in range(60):
        pairs = [(b"%d" % rng.randrange(2500), b"") for _ in range(100)]
        log.append([keyed_batch(pairs)], leader_epoch=EPOCH, now_us=at)
    log.sync()
    rows = rows_of(log)
    line = log.segments()[-1].base_offset
    work = pass_over(log, line, map_bytes_max=24 * 2048)
    do_pass(log, work)
    assert work.counts.parts > 2
    assert rows_of(log) == compacted(rows, line)


def test_a_batch_that_its_producer_may_send_again_keeps_its_place() -> None:
    """It is not joined with others; producer, sequence and span stay, also of an empty one."""
    disk = SimDisk(random.Random(1))
    log = opened(disk)
    for sequence in range(0, 12, 2):
        pairs = [(b"a", b"1"), (b"b", b"2")]
        batch = keyed_batch(pairs, producer=7, sequence=sequence)
        log.append([batch], leader_epoch=EPOCH, now_us=1)
    log.sync()
    log.seal_active(2)
    do_pass(log, pass_over(log, log.log_end, retried={6, 8}))
    assert [
        (one.base_offset, one.offset_span, one.records_count, one.producer_id, one.base_sequence)
        for one in headers_of(log)
    ] == [(0, 6, 0, -1, -1), (6, 2, 0, 7, 6), (8, 2, 0, 7, 8), (10, 2, 2, -1, -1)]
    assert [one.columns for one in headers_of(log)] == [0, 0, 0, 3]


def test_compressed_batches_stay_compressed() -> None:
    """The survivors of a compressed stream are compressed, too."""
    log = opened(SimDisk(random.Random(1)))
    for _ in range(3):
        batch = keyed_batch([(b"k", b"v" * 500)], codec="zstd")
        log.append([batch], leader_epoch=EPOCH, now_us=1)
    log.sync()
    log.seal_active(2)
    do_pass(log, pass_over(log, log.log_end))
    (header,) = headers_of(log)
    assert (header.codec, header.sparse, header.records_count) == ("zstd", True, 1)
    assert [row.value for row in rows_of(log)] == [b"v" * 500]


# ------------------------------------------------------------------------------ what may go wrong


@pytest.mark.parametrize("tear", [False, True])
def test_a_stop_at_any_disk_operation_leaves_old_or_new(tear: bool) -> None:
    """The power fails at each step of a pass in turn; then the pass is done, exactly."""
    stops, at = 0, 0
    while True:
        disk, log, rows = filled(3, 30)
        disk.tear_sectors = tear
        segments = sealed_below(log, log.log_end)
        line = segments[-1].end_offset
        wanted = compacted(rows, line, dead=[range(line)])
        disk.stop_after = at
        try:
            do_pass(log, pass_over(log, line, drops=True))
        except PowerLostError:
            stops += 1
        disk.stop_after = None
        disk.lose_power()
        log = opened(disk)
        assert log.recovery.damaged == []
        found = rows_of(log)
        for one in segments:
            inside = range(one.base_offset, one.end_offset)
            part = [row for row in found if row.offset in inside]
            old = [row for row in rows if row.offset in inside]
            assert part in (old, [row for row in wanted if row.offset in inside])
        assert not [path for path in disk.paths() if path.endswith(".tmp")]
        assert _last_values(found) == _last_values(rows), "no key rises from the dead"
        do_pass(log, pass_over(log, line, drops=True))
        assert rows_of(log) == wanted
        if stops == at:
            break
        at += 1
    assert stops > 20


def _last_values(rows: list[Row]) -> dict[bytes, bytes]:
    values: dict[bytes, bytes] = {}
    for row in rows:
        if row.key is not None and row.value is None:
            values.pop(row.key, None)
        elif row.key is not None and row.value is not None:
            values[row.key] = row.value
    return values


def test_damage_ends_a_pass_and_stays_damage() -> None:
    """A flipped bit in a segment is named; nothing is exchanged from that segment on."""
    disk, log, rows = filled(1)
    segments = sealed_below(log, log.log_end)
    path = f"{FOLDER}/{segments[2].base_offset:020d}.log"
    disk.flip_bit(path, segments[2].size_bytes - 20, 3)
    with pytest.raises(SegmentCorruptError, match="offsets"):
        do_pass(log, pass_over(log, log.log_end))
    assert not [one for one in disk.paths() if one.endswith(".tmp")]
    assert rows_of_segment(log, segments[3].base_offset) == [
        row for row in rows if row.offset in range(segments[3].base_offset, segments[3].end_offset)
    ]


def rows_of_segment(log: PartitionLog, base: int) -> list[Row]:
    """Return the rows of the segment at ``base``."""
    (one,) = [one for one in log.segments() if one.base_offset == base]
    return [row for row in rows_of(log, base) if row.offset < one.end_offset]


def test_damage_of_a_compacted_segment_is_named() -> None:
    """A bit of the new file flips: the read is refused by name, and so it stays after a restart."""
    disk, log, _ = filled(1)
    do_pass(log, pass_over(log, log.log_end))
    one = sealed_below(log, log.log_end)[0]
    disk.flip_bit(f"{FOLDER}/{one.base_offset:020d}.log", 200, 1)
    with pytest.raises(SegmentCorruptError):
        rows_of(log)
    log.mark_suspect()
    disk.kill()
    assert opened(disk).recovery.damaged


@pytest.mark.parametrize("what", ["free", "truncate"])
def test_a_segment_that_went_meanwhile_is_not_exchanged(what: str) -> None:
    """It was freed or cut while its replacement was written: the replacement is thrown away."""
    disk, log, _ = filled(2)
    segments = sealed_below(log, log.log_end)
    steps = pass_over(log, log.log_end).steps()
    made = next(made for made in steps if made is not None)
    gone: Callable[[], None] = {
        "free": lambda: log.free([segments[0].base_offset]),
        "truncate": lambda: log.truncate(segments[0].base_offset),
    }[what]
    gone()
    before = rows_of(log)
    assert not log.replace_segment(made)
    assert not disk.has_file(made.path)
    assert rows_of(log) == before
    if what == "truncate":
        with pytest.raises(OffsetOutOfRangeError):
            list(steps)
    steps.close()


def test_readers_meet_no_damage_while_segments_are_exchanged() -> None:
    """Readers on other threads see the old rows or the new ones, never an error."""
    disk, log, rows = filled(4, 200)
    line = log.segments()[-1].base_offset
    wanted = compacted(rows, line)
    stop = threading.Event()

    def read() -> None:
        may, must = set(rows), set(wanted)
        while not stop.is_set():
            found = set(rows_of(log))
            assert must <= found <= may

    with ThreadPoolExecutor(3) as readers:
        reads = [readers.submit(read) for _ in range(3)]
        do_pass(log, pass_over(log, line))
        stop.set()
        for one in reads:
            one.result()
    assert rows_of(log) == wanted
    del disk


def test_a_reader_that_met_an_exchange_reads_again() -> None:
    """It may have looked for a place in the old file and read the new one there."""
    _, log, rows = filled(4)
    line = log.segments()[-1].base_offset
    read, met = LogReader._read, set[Offset]()

    def meet(reader: LogReader, start: Offset, end: Offset, bytes_max: int) -> list[StoredBatch]:
        if not met:
            met.add(start)
            do_pass(log, pass_over(log, line))
            raise SegmentCorruptError("a batch of the other file")
        return read(reader, start, end, bytes_max)

    with patch.object(LogReader, "_read", meet):
        assert log.read(log.log_start, log.log_end, bytes_max=1 << 20)
    assert rows_of(log) == compacted(rows, line)


def test_dense_batches_after_sparse_ones_begin_a_segment() -> None:
    """A follower that gets a compacted range and then more never has both in one segment."""
    _, leader, _ = filled(6)
    line = leader.segments()[2].end_offset
    do_pass(leader, pass_over(leader, line))
    follower = opened(SimDisk(random.Random(9)))
    at = Offset(0)
    while at < leader.log_end:
        batches = leader.read(at, leader.log_end, bytes_max=900)
        at = follower.append_stored(batches, now_us=5)
        follower.sync()
    assert rows_of(follower) == rows_of(leader)
    kinds = {(one.sparse, one.base_offset < line) for one in follower.segments()}
    assert kinds == {(True, True), (False, False)}
    follower.append([keyed_batch([(b"k", b"v")])], leader_epoch=LeaderEpoch(9), now_us=6)
