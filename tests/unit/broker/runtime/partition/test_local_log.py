"""A partition's log with the tables that are derived from it, as records come and go."""

from __future__ import annotations

import random
from collections.abc import Iterator, Sequence
from pathlib import Path

import pyarrow as pa
import pytest
from structlog.testing import capture_logs

from broker.adapters.disk.files import DiskFiles
from broker.codec.record_batch import prepare
from broker.core.dedup import ProducerTable
from broker.errors import DiskFullError, SequenceGapError
from broker.model.epochs import LeaderEpoch
from broker.model.ids import PartitionId, PartitionNumber, ProducerId, StreamUuid
from broker.model.offsets import OFFSET_MAX, Offset
from broker.model.stream import Stream, StreamConfig
from broker.ports.partition import StoredBatch
from broker.runtime.partition import dedup_recovery
from broker.runtime.partition.counters import PartitionCounters
from broker.runtime.partition.local_log import LocalLog
from broker.runtime.stream_keys import PartitionCipher
from broker.storage.log.partition_log import LogConfig, PartitionLog
from broker.storage.log.replacement import replace_log
from simkit.brokers.driver_rig import DriverRig
from simkit.brokers.memory_broker import FakeClock
from simkit.disk.disk import SimDisk

PRODUCER, GONE = ProducerId(7), ProducerId(8)
PARTITION = PartitionId(StreamUuid("00000000-0000-4000-8000-000000000001"), PartitionNumber(0))
CONFIG = StreamConfig(subject="s", local_retention_bytes=0, dedup_window_ms=0)
STREAM = Stream(name="s", uuid=PARTITION.stream_uuid, config=CONFIG, created_us=1, table_name="s")
CIPHER = PartitionCipher(STREAM, PARTITION, None)


@pytest.fixture
def unsaved(tmp_path: Path) -> Iterator[LocalLog]:
    """Give a log with a sealed segment of five records in the table, and three after it."""
    files = DiskFiles(tmp_path)
    log = PartitionLog.open(files, "log", PARTITION, LogConfig())
    local = LocalLog(
        log,
        cipher=CIPHER,
        partition_id=PARTITION,
        config=CONFIG,
        cold_end=Offset(0),
        record_cold_end=lambda *_: None,
        begin_log=lambda *_: log,
        clock=FakeClock(),
        counters=PartitionCounters(),
    )
    write(local, 0, 5)
    log.seal_active(1)
    write(local, 5, 8)
    local.learn_cold_end(Offset(5))
    yield local
    log.close()
    files.close()


@pytest.fixture
def local(unsaved: LocalLog) -> LocalLog:
    """Give that log with its first segment freed, and one more record."""
    unsaved.save_producers()  # the segment was sealed within a turn that wrote further records
    write(unsaved, 8, 9)
    unsaved.save_producers()
    free(unsaved)
    return unsaved


def free(local: LocalLog, segments_count: int = 1) -> None:
    """Free the sealed segments that are in the table."""
    plan = local.plan_frees(lambda: Offset(OFFSET_MAX))
    assert local.free(plan, leads=False) == segments_count


def write(local: LocalLog, first: int, end: int, producer: ProducerId = PRODUCER) -> None:
    """Append records of one producer, durably."""
    for sequence in range(first, end):
        record = pa.RecordBatch.from_pydict({"value": pa.array([b"v"], pa.binary())})
        batch = prepare(record, now_us=1, producer_id=producer, base_sequence=sequence)
        local.log.append([batch], leader_epoch=LeaderEpoch(1), now_us=1)
    local.log.sync()
    local.shrunk()


def test_a_log_that_is_cut_to_its_start_still_knows_the_producers_of_freed_records(
    local: LocalLog,
) -> None:
    """A follower frees what is shipped, and cuts its tail: it may lead next, and meet a retry.

    Found by the simulator (a mixed life with a lake, seed 25).
    """
    assert local.log.log_start == 5
    local.truncate(Offset(5))
    assert local.retries.producers.expected(PRODUCER) == 5
    assert dedup_recovery.rebuild_producers(local.log).expected(PRODUCER) == 5, "after a restart"
    write(local, 5, 7)
    local.truncate(Offset(6))
    assert local.retries.producers.expected(PRODUCER) == 6


def test_a_cut_waits_for_room_for_the_producers_of_freed_records(
    local: LocalLog, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Without room nothing is cut, and the caller tries again."""
    with monkeypatch.context() as patch:
        patch.setattr(PartitionLog, "write_producer_state", lambda *_, **__: False)
        with pytest.raises(DiskFullError):
            local.truncate(Offset(5))
    assert (local.log.log_end, local.retries.producers.expected(PRODUCER)) == (9, 9)


def test_a_cut_after_a_copy_in_part_writes_the_producers_of_that_part(
    local: LocalLog, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The table has none of the part yet, and the state that is written is believed later."""
    sent = local.log.read(Offset(5), Offset(9), bytes_max=1 << 20)
    local.truncate(Offset(5))
    whole = PartitionLog.append_stored

    def in_part(log: PartitionLog, batches: Sequence[StoredBatch], *, now_us: int) -> Offset:
        whole(log, batches[:3], now_us=now_us)
        raise DiskFullError("full")

    with monkeypatch.context() as patch:
        patch.setattr(PartitionLog, "append_stored", in_part)
        with pytest.raises(DiskFullError):
            local.copy(sent)
    assert (local.log.log_end, local.retries.producers.expected(PRODUCER)) == (8, 5)
    local.truncate(Offset(7))
    assert local.retries.producers.expected(PRODUCER) == 7
    assert dedup_recovery.rebuild_producers(local.log).expected(PRODUCER) == 7, "after a restart"


@pytest.mark.parametrize("full_until", ["sealed", "freed"])
def test_producers_of_freed_records_are_known_though_the_disk_was_full_when_they_were_sealed(
    unsaved: LocalLog, monkeypatch: pytest.MonkeyPatch, full_until: str
) -> None:
    """No state was written at the seal: it is written when the segment goes, or once it is gone."""
    write(unsaved, 0, 2, GONE)
    unsaved.log.seal_active(2)
    write(unsaved, 8, 9)
    unsaved.learn_cold_end(Offset(10))
    write_state = PartitionLog.write_producer_state
    with monkeypatch.context() as patch:
        if full_until == "freed":
            patch.setattr(
                PartitionLog,
                "write_producer_state",
                lambda log, state, **twice: log.log_start > 0 and write_state(log, state, **twice),
            )
        free(unsaved, segments_count=2)

    assert unsaved.log.log_start == 10
    found = dedup_recovery.rebuild_producers(unsaved.log)  # as a restart does
    assert (found.expected(GONE), found.expected(PRODUCER)) == (2, 9)


def test_the_oldest_segment_alone_makes_room_for_the_producers_of_the_others(
    unsaved: LocalLog, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A crash between the two steps forgets as few as possible."""
    write(unsaved, 0, 2, GONE)
    unsaved.log.seal_active(2)
    unsaved.learn_cold_end(Offset(10))
    write_state, starts = PartitionLog.write_producer_state, []

    def when_there_is_room(log: PartitionLog, state: bytes, *, twice: bool) -> bool:
        starts.append(log.log_start)
        return log.log_start > 0 and write_state(log, state, twice=twice)

    with monkeypatch.context() as patch:
        patch.setattr(PartitionLog, "write_producer_state", when_there_is_room)
        free(unsaved, segments_count=2)
    assert starts == [0, 5]
    assert unsaved.log.log_start == 10


def test_segments_without_producers_need_no_room_for_their_state(
    unsaved: LocalLog, monkeypatch: pytest.MonkeyPatch
) -> None:
    """What the state on the disk has, and what nobody sends again, is freed at once."""
    unsaved.save_producers()
    unsaved.log.seal_active(2)
    for number in range(4):
        record = pa.RecordBatch.from_pydict({"value": pa.array([b"v"], pa.binary())})
        unsaved.log.append([prepare(record, now_us=1)], leader_epoch=LeaderEpoch(1), now_us=1)
        unsaved.log.seal_active(number)
    write(unsaved, 8, 9)
    unsaved.log.seal_active(9)
    unsaved.learn_cold_end(Offset(12))
    tries: list[bytes] = []

    def refuse(_log: PartitionLog, state: bytes, **_twice: bool) -> bool:
        tries.append(state)
        return False

    with monkeypatch.context() as patch:
        patch.setattr(PartitionLog, "write_producer_state", refuse)
        free(unsaved, segments_count=6)
    assert 1 <= len(tries) <= 2, "before the segments go, and after"
    found = dedup_recovery.rebuild_producers(unsaved.log)
    assert found.expected(PRODUCER) == 9


def _states(folder: Path) -> list[Path]:
    """Return the files with producers' states."""
    return sorted(one for one in (folder / "log").iterdir() if ".producers" in one.name)


@pytest.mark.parametrize("damage", ["gone", "empty", "changed"])
@pytest.mark.parametrize("case", ["freed in the middle", "freed to the end", "cut", "begun anew"])
def test_one_damaged_producers_state_costs_no_producer_of_freed_records(
    unsaved: LocalLog, tmp_path: Path, case: str, damage: str
) -> None:
    """Whichever file is damaged, another one and the records after it know all producers.

    Found by a tester: a retry of a freed record was stored again.
    """
    files = unsaved.log._folder.files
    unsaved.save_producers()
    if case == "freed to the end":
        unsaved.log.seal_active(2)
        unsaved.save_producers()
        unsaved.learn_cold_end(Offset(8))
        free(unsaved, segments_count=2)
        expected = 8
    elif case == "begun anew":
        state = unsaved.producers_before(Offset(5))
        unsaved.log.close()
        replace_log(
            files, "log", PARTITION, start=Offset(5), epochs=unsaved.log.epochs, producers=state
        )
        expected = 5
    else:
        free(unsaved)
        expected = 8
        if case == "cut":
            unsaved.truncate(Offset(6))
            expected = 6
    unsaved.log.close()
    for path in _states(tmp_path):
        whole = path.read_bytes()
        if damage == "gone":
            path.unlink()
        else:
            path.write_bytes(b"" if damage == "empty" else whole[:-1] + b"?")
        log = PartitionLog.open(files, "log", PARTITION, LogConfig())
        assert log.log_start > 0
        with capture_logs() as logs:
            found = dedup_recovery.rebuild_producers(log)
        log.close()
        path.write_bytes(whole)
        assert found.expected(PRODUCER) == expected, path.name
        named = [one["files"] for one in logs if one["event"] == "producers_state_unreadable"]
        assert damage == "gone" or named == [[f"log/{path.name}"]]
        assert [one for one in logs if one["event"] == "producers_unknown"] == []


def test_producers_that_no_state_has_are_reported(local: LocalLog, tmp_path: Path) -> None:
    """Two damaged files are two faults: the broker says so, and goes on with what it knows."""
    for path in _states(tmp_path):
        path.write_bytes(b"")
    with capture_logs() as logs:
        local.shrunk()
    assert [(one["start"], one["end"]) for one in logs if one["event"] == "producers_unknown"] == [
        (0, 5)
    ]
    assert local.retries.counts().unknown_below == 5
    with pytest.raises(SequenceGapError):
        local.retries.producers.find(GONE, 3, 1)
    assert local.retries.producers.find(GONE, 0, 1) is None, "every new producer begins so"


def test_a_state_that_is_no_table_is_passed_over(local: LocalLog, tmp_path: Path) -> None:
    """Its checksum is right, but not its content: the state before it counts."""
    local.log.write_producer_state(b"{}")
    with capture_logs() as logs:
        found = dedup_recovery.rebuild_producers(local.log)
    assert found.expected(PRODUCER) == 9
    assert [one["event"] for one in logs] == ["producers_state_unreadable"]


def test_one_state_has_to_do_on_a_disk_without_room_for_two(
    unsaved: LocalLog, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A full disk frees what one state covers; the second is written once there is room."""
    write(unsaved, 8, 9)
    unsaved.save_producers()
    write_state = PartitionLog.write_producer_state

    def one_only(log: PartitionLog, state: bytes, *, twice: bool = False) -> bool:
        return (log.log_start > 0 or not twice) and write_state(log, state, twice=twice)

    with monkeypatch.context() as patch:
        patch.setattr(PartitionLog, "write_producer_state", one_only)
        free(unsaved)
    assert unsaved.log.read_producer_states().kept_end >= unsaved.log.log_start == 5


def test_producers_that_a_full_table_forgets_are_counted_and_logged() -> None:
    """A flood of other producers makes a retry unknown: found by a tester. One warning is told."""
    rig = DriverRig(SimDisk(random.Random(1)).files())
    rig.driver._local.retries.producers = ProducerTable(bytes_max=2_000)
    with capture_logs() as logs:
        for producer in range(10):
            rig.put(b"x", producer=producer, sequence=0)
            rig.driver.maintenance.tick()
            rig.turns.run()
    told = [one for one in logs if one["event"] == "producers_forgotten"]
    assert [(one["partition"], one["producers"]) for one in told] == [("s/0", 1)]
    assert rig.driver.message_ids.forgotten_producers == 7
    rig.driver._local.shrunk()
    assert rig.driver.message_ids.forgotten_producers == 7, "none is counted twice"
    rig.close()
