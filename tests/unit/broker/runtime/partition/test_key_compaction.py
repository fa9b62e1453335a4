"""Key compaction of a partition beside its turns: what it waits for, and what it leaves."""

from __future__ import annotations

import errno
import random
from collections.abc import Callable
from typing import Any

import pyarrow as pa
import pytest

from broker.codec.record_batch import prepare
from broker.model.ids import ProducerId
from broker.model.offsets import OFFSET_MAX, Offset
from broker.storage.key_compaction.rewriter import SegmentRewriter
from simkit.brokers.driver_rig import DriverRig
from simkit.disk.disk import SimDisk
from simkit.log.keyed import compacted, rows_of
from simkit.replacing import replaced

SETTINGS: dict[str, Any] = {
    "compact": True, "tiering": False, "segment_bytes_max": 4096, "dedup_window_ms": 0,
    "compact_dirty_percent": 1,
}  # fmt: skip


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
    headers = pa.array(
        [[{"key": "Nats-Msg-Id", "value": b"id-1"}]],
        pa.list_(pa.struct([pa.field("key", pa.string()), pa.field("value", pa.binary())])),
    )
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


def test_a_retry_is_recognised_after_a_restart() -> None:
    """The batches that a producer may send again are gone as records, and known as batches."""
    disk = SimDisk(random.Random(1))
    rig = Rig(disk)
    for sequence in range(0, 100, 2):
        rig.put((b"k", b"x" * 80), (b"k", b"y" * 80), producer=7, sequence=sequence)
    first = rig.put((b"k", b"1"), (b"k", b"2"), producer=7, sequence=100)
    rig.fill()
    rig.work()
    assert [row.offset for row in rows_of(rig.log) if row.key == b"k"] == [first.base_offset + 1]
    disk.kill()
    for path in [one for one in disk.paths() if one.endswith(".producers")]:
        disk.delete(path)  # a cache: the log has it all
    rig = Rig(disk)
    again = rig.put((b"k", b"1"), (b"k", b"2"), producer=7, sequence=100)
    assert (again.duplicate, again.base_offset) == (True, first.base_offset)
    assert rig.put((b"k", b"3"), producer=7, sequence=102).duplicate is False


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


def test_a_forced_pass_does_not_wait_for_what_is_new() -> None:
    """Of a segment below the line, however little it is."""
    rig = Rig(compact_dirty_percent=100)
    rig.fill()
    rig.work()
    rig.fill(20)
    before = len(rows_of(rig.log))
    rig.work()
    assert len(rows_of(rig.log)) == before
    rig.driver.compaction.force()
    rig.work()
    assert len(rows_of(rig.log)) < before


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
