"""Key compaction of a partition beside its turns: what it waits for, and what it leaves."""

from __future__ import annotations

import errno
import random
from collections.abc import Callable
from dataclasses import replace
from typing import Any

import pyarrow as pa
import pytest

from broker.codec.record_batch import prepare
from broker.core.dedup import ProducerTable
from broker.core.key_compaction import PassReport
from broker.model.ids import ProducerId
from broker.model.offsets import OFFSET_MAX, Offset
from broker.model.replica_messages import LogPrefix
from broker.model.replica_state import PassState
from broker.storage.key_compaction.rewriter import SegmentRewriter
from simkit.brokers.driver_rig import DriverRig
from simkit.disk.disk import SimDisk
from simkit.log.keyed import compacted, rows_of
from simkit.replacing import replaced

SETTINGS: dict[str, Any] = {
    "compact": True, "tiering": False, "segment_bytes_max": 4096, "dedup_window_ms": 0,
    "compact_dirty_percent": 1,
}  # fmt: skip
NO_PRODUCERS = b'{"v":1,"producers":[]}'
HEADERS = pa.list_(pa.struct([pa.field("key", pa.string()), pa.field("value", pa.binary())]))


def free() -> Offset:
    """No lease holds anything."""
    return Offset(OFFSET_MAX)


class Rig:
    """A partition whose compaction steps and turns the test takes."""

    def __init__(self, disk: SimDisk | None = None, **settings: Any) -> None:
        self.disk = disk or SimDisk(random.Random(1))
        self.rig = DriverRig(self.disk.files(), **{**SETTINGS, **settings})
        self.driver = self.rig.driver
        self.log = self.rig.log

    def put(self, *pairs: tuple[bytes | None, bytes | None], **producer: int) -> Any:
        """Publish one batch; return its answer."""
        answers: list[Any] = []
        keys, values = zip(*pairs, strict=True)
        columns = {"key": pa.array(keys, pa.binary()), "value": pa.array(values, pa.binary())}
        batch = prepare(
            pa.RecordBatch.from_pydict(columns),
            now_us=self.rig.clock.now_us(),
            producer_id=ProducerId(producer.get("producer", -1)),
            base_sequence=producer.get("sequence", -1),
        )
        self.driver.writes.submit([batch], lambda outcomes: answers.append(outcomes[0]))
        self.rig.turns.run()
        return answers[0]

    def fill(self, count: int = 120, keys: int = 5) -> None:
        """Publish batches of some keys."""
        for at in range(count):
            self.put((b"k%d" % (at % keys), b"v%d" % at * 20), (None, b"no key"))

    def work(self, floor: Callable[[], Offset] = free, *, steps: int = 100_000) -> int:
        """Take steps and turns until nothing is left to do; return how many worked."""
        for done in range(steps):
            worked = self.driver.compaction.step(floor)
            self.rig.turns.run()
            if not worked and not self.driver.compaction.has_begun:
                return done
        return steps


def test_a_pass_leaves_the_last_record_of_each_key() -> None:
    """Nothing is asked for: enough is new, so a pass begins by itself, once."""
    rig = Rig()
    rig.fill()
    rows = rows_of(rig.log)
    line = rig.log.segments()[-1].base_offset
    assert rig.work() > 0
    assert rows_of(rig.log) == compacted(rows, line)
    assert rig.driver.counters.compacted_segments > 2
    assert rig.driver.counters.compacted_records == len(rows) - len(compacted(rows, line))
    assert rig.driver.reads.whole_start == line
    assert rig.work() == 0


def test_a_stream_without_the_setting_is_left_alone() -> None:
    """Until it is switched on."""
    rig = Rig(compact=False)
    rig.fill()
    assert not rig.driver.compaction.is_wanted
    assert rig.work() == 0
    assert rig.driver.reads.whole_start == 0


@pytest.mark.parametrize("by", ["cold end", "lease"])
def test_what_is_not_in_the_table_or_is_leased_stays(by: str) -> None:
    """The line moves with the recorded cold end, and is below what leases hold."""
    rig = Rig(tiering=by == "cold end")
    rig.fill()
    rows = rows_of(rig.log)
    segments = rig.log.segments()
    held = segments[2].end_offset
    floor = free if by == "cold end" else lambda: Offset(held + 1)
    if by == "cold end":
        assert rig.work() == 0, "nothing is in the table"
        rig.driver.tier.learn_cold_end(Offset(held + 1))
    rig.work(floor)
    assert rows_of(rig.log) == compacted(rows, held)


def test_a_lease_that_comes_during_a_pass_stops_it() -> None:
    """Before the next exchange."""
    rig = Rig()
    rig.fill()
    floors = [free()]
    while not rig.driver.counters.compacted_segments:
        rig.driver.compaction.step(lambda: floors[0])
        rig.rig.turns.run()
    before = rows_of(rig.log)
    floors[0] = Offset(0)
    rig.work(lambda: floors[0])
    assert rows_of(rig.log) == before
    assert not [path for path in rig.disk.paths() if path.endswith(".tmp")]


def test_segments_with_message_ids_of_the_window_wait() -> None:
    """A restart reads the ids there; after the window they are compacted."""
    rig = Rig(dedup_window_ms=10_000)
    headers = pa.array([[{"key": "Nats-Msg-Id", "value": b"id-1"}]], HEADERS)
    batch = pa.RecordBatch.from_pydict({"key": pa.array([b"k0"], pa.binary()), "headers": headers})
    answers: list[Any] = []
    rig.driver.writes.submit_records(batch, ["id-1"], answers.append)
    rig.rig.turns.run()
    rig.fill()
    rig.work(steps=50)
    assert rig.driver.counters.compacted_segments == 0
    rig.rig.clock.advance(us=30_000_000)
    rig.work()
    assert rig.driver.counters.compacted_segments > 0


def test_the_records_that_are_left_are_counted_also_after_a_restart() -> None:
    """From the indexes, and from the segments where an index is lost; a table has all."""
    disk = SimDisk(random.Random(1))
    rig = Rig(disk)
    rig.fill()
    assert rig.driver.records_left(rig.log.log_end) == rig.log.log_end
    rig.work()
    left = len(rows_of(rig.log))
    assert 0 < left < rig.log.log_end
    assert rig.driver.records_left(rig.log.log_end) == left
    disk.kill()
    assert Rig(disk).driver.records_left(rig.log.log_end) == left
    disk.kill()
    for path in [one for one in disk.paths() if one.endswith(".index")]:
        disk.delete(path)
    again = Rig(disk)
    assert again.driver.records_left(again.log.log_end) == left
    assert Rig(tiering=True).driver.records_left(Offset(0)) is None
    assert Rig(compact=False).driver.records_left(Offset(0)) is None


@pytest.mark.parametrize("stale", [False, True])
def test_a_retry_is_recognised_after_a_restart(stale: bool) -> None:
    """The batches that a producer may send again are gone as records, and known as batches.

    A table is stale after a copy that was interrupted.
    """
    disk = SimDisk(random.Random(1))
    rig = Rig(disk)
    for sequence in range(0, 100, 2):
        rig.put((b"k", b"x" * 80), (b"k", b"y" * 80), producer=7, sequence=sequence)
    first = rig.put((b"k", b"1"), (b"k", b"2"), producer=7, sequence=100)
    rig.fill()
    if stale:
        rig.driver._local._is_stale = True
        rig.driver._local.retries.producers = ProducerTable()
    rig.work()
    assert [row.offset for row in rows_of(rig.log) if row.key == b"k"] == [first.base_offset + 1]
    disk.kill()
    for path in [one for one in disk.paths() if one.endswith(".producers")]:
        disk.delete(path)  # a cache: the log has it all
    rig = Rig(disk)
    again = rig.put((b"k", b"1"), (b"k", b"2"), producer=7, sequence=100)
    assert (again.duplicate, again.base_offset) == (True, first.base_offset)
    assert rig.put((b"k", b"3"), producer=7, sequence=102).duplicate is False


@pytest.mark.parametrize("steps", range(2, 12))
def test_a_log_that_is_replaced_during_a_pass_is_not_damaged(steps: int) -> None:
    """The files that the pass reads and writes are gone with the old log."""
    rig = Rig()
    rig.fill()
    rig.work(steps=steps)
    assert rig.driver.compaction.has_begun
    rig.driver._local.replace(rig.log.log_end, LogPrefix(epochs=(), producers=NO_PRODUCERS))
    rig.work()
    assert rig.driver.health.failure is None
    assert not rig.driver.compaction.has_begun


def test_a_full_disk_only_delays() -> None:
    """The pass is given up, its file removed; later there is room."""
    rig = Rig()
    rig.fill()
    rows = rows_of(rig.log)
    rig.disk.capacity_bytes = rig.disk.used_bytes()
    rig.work(steps=200)
    assert rows_of(rig.log) == rows
    assert rig.driver.health.failure is None
    assert not [path for path in rig.disk.paths() if path.endswith(".tmp")]
    rig.disk.capacity_bytes = 1 << 40
    rig.rig.clock.set_forward(us=-86_400_000_000)  # the delay is not of the time of day
    rig.rig.clock.advance(us=20_000_000)
    rig.work()
    assert len(rows_of(rig.log)) < len(rows)


def test_a_disk_that_fails_is_no_longer_trusted() -> None:
    """As after every failed write of the log's folder."""

    def finish(self: SegmentRewriter) -> Any:
        raise OSError(errno.EIO, "simulated")

    rig = Rig()
    rig.fill()
    with replaced(SegmentRewriter, "finish", finish):
        rig.work(steps=200)
    assert rig.driver.health.failure is not None


def test_damage_that_a_pass_meets_takes_the_replica_out() -> None:
    """As when a reader meets it."""
    rig = Rig()
    rig.fill()
    one = rig.log.segments()[1]
    rig.disk.flip_bit(f"log/{one.base_offset:020d}.log", one.size_bytes - 30, 1)
    rig.work(steps=500)
    assert rig.driver.health.failure is not None
    assert rig.driver.counters.compacted_segments == 0


def test_a_pass_ends_when_the_setting_is_switched_off() -> None:
    """Nothing more is exchanged."""
    rig = Rig(tiering=True)
    rig.driver.tier.learn_cold_end(Offset(10_000))
    rig.fill()
    while not rig.driver.counters.compacted_segments:
        rig.driver.compaction.step(free)
        rig.rig.turns.run()
    done = rig.driver.counters.compacted_segments
    off = rig.driver.stream.config.to_dict() | {"compact": False}
    rig.driver.compaction.configure(type(rig.driver.stream.config).from_dict(off))
    rig.work()
    assert rig.driver.counters.compacted_segments == done
    assert not rig.driver.compaction.is_wanted


def test_a_pass_that_is_asked_for_takes_all_that_is_committed() -> None:
    """However little is new, and the active segment, too: it is sealed first."""
    rig = Rig(compact_dirty_percent=100)
    rig.fill()
    rig.work()
    rig.fill(20)
    rows = rows_of(rig.log)
    rig.work()
    assert rows_of(rig.log) == rows, "too little is new"
    compaction = rig.driver.compaction
    assert compaction.ask("t").state is PassState.WAITING
    rig.driver.compaction.step(free)
    rig.rig.turns.run()
    rig.driver.compaction.step(free)
    assert compaction.ask("t").state is PassState.RUNNING
    rig.work()
    assert rows_of(rig.log) == compacted(rows, rig.log.log_end)
    report = compaction.ask("t")
    assert (report.state, report.reason, report.end) == (
        PassState.COMPACTED, None, rig.log.log_end,
    )  # fmt: skip
    assert report.removed_count == len(rows) - len(rows_of(rig.log))
    assert report.segments > 0
    assert report.freed_bytes > 0
    assert report.read_bytes > 0
    assert compaction.ask("t") == report
    assert rig.work() == 0, "a ticket that is over begins nothing"


def test_a_pass_that_is_asked_for_says_why_it_went_no_further() -> None:
    """A lease, the table, the window of message ids; and an empty log has nothing."""
    empty = Rig()
    assert asked(empty).reason == "the log is empty"
    leased = Rig()
    leased.fill()
    line, count = leased.log.segments()[2].end_offset, len(leased.log.segments())
    report = asked(leased, lambda: Offset(line))
    assert len(leased.log.segments()) == count, "the active segment was not sealed for nothing"
    assert (report.state, report.end) == (PassState.COMPACTED, line)
    assert "lease" in str(report.reason)
    unshipped = Rig(tiering=True)
    unshipped.fill()
    report = asked(unshipped)
    assert report.state is PassState.NOTHING
    assert "tier flush" in str(report.reason)
    known = Rig(dedup_window_ms=10_000)
    headers = pa.array([[{"key": "Nats-Msg-Id", "value": b"id-1"}]], HEADERS)
    batch = pa.RecordBatch.from_pydict({"key": pa.array([b"k0"], pa.binary()), "headers": headers})
    known.driver.writes.submit_records(batch, ["id-1"], lambda _: None)
    known.rig.turns.run()
    known.fill()
    report = asked(known)
    assert report.state is PassState.NOTHING
    assert "message ids" in str(report.reason)


def asked(rig: Rig, floor: Callable[[], Offset] = free) -> PassReport:
    """Ask for a pass, and work until it is over."""
    rig.driver.compaction.ask("a")
    rig.work(floor)
    report = rig.driver.compaction.ask("a")
    assert report.state in (PassState.COMPACTED, PassState.NOTHING, PassState.FAILED)
    return report


def test_who_asks_during_a_pass_waits_for_the_next_one() -> None:
    """The pass that runs may have begun before his last record."""
    rig = Rig()
    rig.fill()
    compaction = rig.driver.compaction
    compaction.ask("first")
    while compaction.ask("first").state is PassState.WAITING:
        compaction.step(free)
        rig.rig.turns.run()
    rig.fill(20)
    rows = rows_of(rig.log)
    assert compaction.ask("second").state is PassState.WAITING
    rig.work()
    assert compaction.ask("first").end < compaction.ask("second").end == rig.log.log_end
    assert rows_of(rig.log) == compacted(rows, rig.log.log_end)


def test_a_pass_that_is_given_up_begins_again_for_who_has_asked() -> None:
    """A lease came: the next pass keeps below it."""
    rig = Rig()
    rig.fill()
    floors = [free()]
    rig.driver.compaction.ask("t")
    while not rig.driver.counters.compacted_segments:
        rig.driver.compaction.step(lambda: floors[0])
        rig.rig.turns.run()
    floors[0] = rig.log.segments()[1].end_offset
    rig.work(lambda: floors[0])
    report = rig.driver.compaction.ask("t")
    assert (report.state, report.end) == (PassState.COMPACTED, floors[0])


def test_who_has_asked_hears_of_a_failure_and_of_a_changed_setting() -> None:
    """And a pass is not wanted any more."""
    rig = Rig()
    rig.fill()
    rig.driver.compaction.ask("t")
    rig.driver.compaction.configure(replace(rig.driver.config, compact=False))
    assert rig.driver.compaction.is_wanted
    rig.work()
    report = rig.driver.compaction.ask("t")
    assert report.state is PassState.FAILED
    assert "setting compact is off" in str(report.reason)
    assert not rig.driver.compaction.is_wanted


def test_closing_in_the_middle_leaves_no_file_behind() -> None:
    """The next step sees that the partition closes, and gives up."""
    rig = Rig()
    rig.fill()
    for _ in range(8):
        rig.driver.compaction.step(free)
        rig.rig.turns.run()
    rig.rig.close()
    assert rig.driver.compaction.step(free) is False
    assert not rig.driver.compaction.has_begun
