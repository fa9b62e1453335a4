"""A new leader reads the message ids of its window slice by slice, and takes no write before."""

from __future__ import annotations

import random
from collections.abc import Iterator
from dataclasses import replace
from typing import Any

import pytest

from broker.errors import (
    EncryptionKeyError,
    NotLeaderError,
    OverloadedError,
    ShuttingDownError,
)
from broker.model.epochs import BrokerEpoch
from broker.model.offsets import OFFSET_MAX, Offset
from broker.model.replica_state import ReplicaState
from broker.runtime.partition.dedup_recovery import WindowReading
from broker.runtime.partition.id_budget import IdBudget
from simkit.brokers.driver_rig import ME, DriverRig, alone_view
from simkit.disk.disk import SimDisk
from simkit.replacing import replaced

COUNT = 5  # batches, and so slices


class ReadingRig(DriverRig):
    """A leader whose log had records with ids before; one turn reads one batch."""

    def __init__(self, disk: SimDisk, **settings: Any) -> None:
        before = DriverRig(disk.files(), **settings)
        for number in range(COUNT):
            before.put_ids([b"v" * 3000], [f"id-{number}"])
            before.turns.run()
        before.close()
        super().__init__(
            disk.files(), epoch=2, id_budget=IdBudget(slice_bytes=1), clock=before.clock, **settings
        )

    def view(self, view: Any) -> None:
        """Show the driver a view; take the turn in which it begins to lead, and no other."""
        self.driver.replication.take_view(view)
        self.one_turn()

    def one_turn(self) -> None:
        """Take the next turn."""
        self.turns.run_here(self.turns._due.popleft())


@pytest.fixture
def rig() -> Iterator[ReadingRig]:
    """A leader that has read one slice of five."""
    rig = ReadingRig(SimDisk(random.Random(1)))
    yield rig
    rig.turns.run()
    rig.close()


def test_writes_wait_until_all_ids_are_known(rig: ReadingRig) -> None:
    """Then a retry gets its record's offset, and a new record the next one, in their order."""
    retry = rig.put_ids([b"v"], [f"id-{COUNT - 1}"])
    other = rig.put_ids([b"w"], ["other"])
    for _ in range(COUNT - 1):
        assert (retry, other, rig.driver.state) == ([], [], ReplicaState.READING_IDS)
        rig.one_turn()
    rig.turns.run()
    assert rig.driver.state is ReplicaState.LEADING
    assert (retry[0].offsets[0], retry[0].duplicates) == (COUNT - 1, {0})
    assert (other[0].offsets[0], other[0].duplicates) == (COUNT, frozenset())


@pytest.mark.parametrize("leads_anew", [False, True])
def test_a_retry_in_the_turn_in_which_the_reading_begins_is_recognised(
    rig: ReadingRig, leads_anew: bool
) -> None:
    """A call of that turn begins it: the stream has another window, or a leadership begins."""
    rig.turns.run()
    driver = rig.driver
    assert driver.state is ReplicaState.LEADING
    if leads_anew:
        view = replace(alone_view(leader_epoch=3), broker_epochs={ME: BrokerEpoch(2)})
        driver.replication.take_view(view)
    else:
        longer = replace(driver.config, dedup_window_ms=2 * driver.config.dedup_window_ms)
        driver.configure(replace(driver.stream, config=longer))
    retry = rig.put_ids([b"v"], [f"id-{COUNT - 1}"])
    rig.one_turn()
    assert (retry, driver.state) == ([], ReplicaState.READING_IDS)
    rig.turns.run()
    assert (retry[0].offsets[0], retry[0].duplicates) == (COUNT - 1, {0})
    assert rig.log.log_end == COUNT


def test_other_work_is_done_between_two_slices(rig: ReadingRig) -> None:
    """A call, and so a message of a follower, waits for one slice only."""
    done: list[ReplicaState] = []
    rig.driver._queue.post(lambda: done.append(rig.driver.state))
    rig.one_turn()
    assert done == [ReplicaState.READING_IDS]


def test_a_leadership_that_ends_reads_no_further(rig: ReadingRig) -> None:
    """Its waiting writes are refused; the next leadership begins with the first slice."""
    waiting = rig.put_ids([b"v"], ["id-0"])
    rig.driver.replication.take_view(None)
    rig.turns.run()
    assert isinstance(waiting[0], NotLeaderError)
    assert len(rig.driver._local.retries.window) == 0
    rig.view(replace(alone_view(leader_epoch=3), broker_epochs={ME: BrokerEpoch(2)}))
    assert len(rig.driver._local.retries.window) == 1
    assert rig.driver.state is ReplicaState.READING_IDS
    retry = rig.put_ids([b"v"], [f"id-{COUNT - 1}"])
    rig.turns.run()
    assert retry[0].duplicates == {0}


def test_a_leader_frees_no_segment_whose_ids_it_has_not_read() -> None:
    """An id that is not in the window yet is needed all the same."""
    rig = ReadingRig(SimDisk(random.Random(1)), segment_bytes_max=4096, local_retention_bytes=0)
    assert rig.driver.state is ReplicaState.READING_IDS
    rig.driver._local.record_cold_end(Offset(COUNT))
    plan = rig.driver._local.plan_frees(lambda: Offset(OFFSET_MAX))
    assert plan, "retention would free them"
    assert rig.driver._local.free(plan, leads=True) == 0
    rig.turns.run()
    rig.clock.advance(us=rig.driver.config.dedup_window_ms * 1000 + 1)
    assert rig.driver._local.free(plan, leads=True) == len(plan)
    rig.close()


def test_a_partition_that_closes_takes_no_write_without_the_ids(rig: ReadingRig) -> None:
    """The publisher sends it again, and it is recognised then."""
    waiting = rig.put_ids([b"v"], ["id-4"])
    rig.driver._queue.close()
    rig.turns.run()
    assert isinstance(waiting[0], ShuttingDownError)
    assert rig.log.log_end == COUNT


@pytest.mark.parametrize("error", [OverloadedError, EncryptionKeyError])
def test_a_slice_that_cannot_be_read_is_read_later(
    rig: ReadingRig, error: type[OverloadedError | EncryptionKeyError]
) -> None:
    """Without memory or a descriptor writes wait; without a key they are refused."""
    lacks = True
    original = WindowReading.step

    def step(self: WindowReading, *arguments: Any, **named: Any) -> bool:
        if lacks:
            raise error("not now")
        return original(self, *arguments, **named)

    with replaced(WindowReading, "step", step):
        first = rig.put_ids([b"v"], ["id-4"])
        rig.turns.run()
        if error is EncryptionKeyError:
            assert isinstance(first[0], EncryptionKeyError)
        else:
            assert first == []
        lacks = False
        rig.clock.advance(us=1_000_000)
        rig.driver.replication.tick()
        rig.turns.run()
    second = rig.put_ids([b"v"], ["id-4"])
    rig.turns.run()
    assert second[0].duplicates == {0}
    assert rig.log.log_end == COUNT


def test_damage_that_the_reading_meets_fails_the_partition(rig: ReadingRig) -> None:
    """Waiting writes hear why, and nothing is stored."""
    rig.driver._local.log._reader.forget_places()
    waiting = rig.put_ids([b"v"], ["id-4"])
    (segment,) = [name for name in rig.files.list("log") if name.endswith(".log")]
    file = rig.files.open(f"log/{segment}")
    data = bytearray(file.read_at(0, file.size()))
    data[data.index(b"id-3")] ^= 1
    file.write_at(0, [bytes(data)])
    file.close()
    rig.turns.run()
    assert rig.driver.state is ReplicaState.FAILED
    assert "checksum" in str(waiting[0])
    assert rig.log.log_end == COUNT


def test_records_without_ids_take_no_place_in_the_window() -> None:
    """A stream's bound is a number of ids: a new leader knows as many as the one before."""
    disk = SimDisk(random.Random(1))
    before = DriverRig(disk.files(), dedup_ids_max=10)
    first = before.put_ids([b"v"], ["id"])
    before.put_ids([b"w"] * 20, [None] * 20)
    before.turns.run()
    before.close()
    rig = DriverRig(disk.files(), epoch=2, clock=before.clock, dedup_ids_max=10)
    again = rig.put_ids([b"v"], ["id"])
    rig.turns.run()
    assert (again[0].offsets[0], again[0].duplicates) == (first[0].offsets[0], {0})
    rig.close()


def test_a_reading_holds_no_more_ids_than_the_stream_allows() -> None:
    """The ids beyond the bound are counted, as those that leave while a leader runs."""
    disk = SimDisk(random.Random(1))
    before = DriverRig(disk.files())
    for number in range(COUNT):
        before.put_ids([b"v"] * 600, [f"id-{number}-{one}" for one in range(600)])
        before.turns.run()
    before.close()
    budget = IdBudget(slice_bytes=1)
    rig = DriverRig(disk.files(), epoch=2, id_budget=budget, clock=before.clock, dedup_ids_max=10)
    counts = rig.driver._local.retries.counts()
    assert (rig.driver.state, counts.ids) == (ReplicaState.LEADING, 10)
    assert counts.forgotten == COUNT * 600 - 10
    rig.close()


def test_a_close_in_the_middle_of_a_turn_takes_the_waiting_writes_first(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """Another thread closes just after the turn has seen that writes wait."""
    rig = ReadingRig(SimDisk(random.Random(1)))
    driver = rig.driver
    waiting = rig.put_ids([b"v"], ["other"])
    holds = driver._holds_writes

    def closed_meanwhile() -> bool:
        held = holds()
        if not driver._queue.closing:
            driver.begin_close()
        return held

    monkeypatch.setattr(driver, "_holds_writes", closed_meanwhile)
    rig.turns.run()
    assert [type(one) for one in waiting] == [ShuttingDownError]
    assert driver.health.failure is None
