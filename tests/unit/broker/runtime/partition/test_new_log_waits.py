"""A replica whose disk is full: a log that begins anew waits, and the log says so once."""

from __future__ import annotations

import random
from dataclasses import replace
from typing import Any

import pytest
from structlog.testing import capture_logs

from broker.core.dedup import ProducerTable
from broker.core.replication.view import PartitionView
from broker.errors import OffsetOutOfRangeError
from broker.model.epochs import BrokerEpoch, LeaderEpoch, PartitionEpoch
from broker.model.ids import ProducerId
from broker.model.lineage import Leadership
from broker.model.offsets import Offset
from broker.model.records import AckPolicy
from broker.model.replica_messages import (
    EpochEndAnswer,
    EpochEndRequest,
    FetchAnswer,
    FetchRequest,
    LogPrefix,
)
from broker.storage.log.partition_log import PartitionLog
from broker.storage.promises.promises import Promises
from simkit.brokers.driver_rig import ME, DriverRig, alone_view
from simkit.brokers.quiet_links import OTHER, QuietLinks, following
from simkit.disk.disk import ROOMY, SimDisk


def _below_start(request: FetchRequest) -> FetchAnswer:
    """Refuse a fetch: the leader's log begins at 10, and so should the follower's."""
    return FetchAnswer(
        leader_epoch=request.leader_epoch,
        request_id=request.request_id,
        start=Offset(10),
        high_watermark=Offset(10),
        log_end=Offset(10),
        refusal="below_start",
        prefix=LogPrefix(
            epochs=((LeaderEpoch(1), Offset(0)),), producers=b'{"v":1,"producers":[]}'
        ),
    )


def test_a_log_that_begins_anew_waits_for_room() -> None:
    """After ENOSPC in the middle, once there is room, the follower fetches from its new start."""
    disk = SimDisk(random.Random(1))
    links = QuietLinks(lease_until_ms=0)
    rig = DriverRig(disk.files(), links=links)
    request = following(rig, links)
    disk.capacity_bytes = disk.used_bytes()
    rig.driver.replication.deliver(_below_start(request))
    disk.capacity_bytes = 0  # the old log's space is freed first, and other files use it
    rig.turns.run()
    sent = len(links.sent)
    for _ in range(3):
        rig.clock.advance(us=300_000)
        rig.driver.replication.tick()
        rig.driver.maintenance.tick()
        rig.turns.run()
    assert rig.driver.replication.synced_position == (0, 0)
    assert rig.driver.health.failure is None
    disk.capacity_bytes = ROOMY
    rig.clock.advance(us=300_000)
    rig.driver.replication.tick()
    rig.turns.run()
    assert (rig.driver.reads.log_start, rig.driver.reads.log_end) == (10, 10)
    asked = [one for one in links.sent[sent:] if isinstance(one, FetchRequest)]
    assert asked[-1].fetch_from == 10


@pytest.mark.parametrize("left", range(0, 520, 8))
def test_a_log_that_begins_anew_has_its_producers_on_the_disk(left: int) -> None:
    """There is room for the log, but perhaps not for the state by which it would know retries."""
    disk = SimDisk(random.Random(1))
    links = QuietLinks(lease_until_ms=0)
    rig = DriverRig(disk.files(), links=links)
    request = following(rig, links)
    disk.capacity_bytes = disk.used_bytes() + left
    rig.driver.replication.deliver(_below_start(request))
    rig.turns.run()
    disk.capacity_bytes = ROOMY
    for _ in range(3):
        rig.clock.advance(us=300_000)
        rig.driver.replication.tick()
        rig.turns.run()
    assert (rig.driver.reads.log_start, rig.driver.reads.log_end) == (10, 10)
    stored = rig.driver._local.log.read_producer_states().newest
    assert stored is not None
    assert stored[1] == 10


@pytest.mark.parametrize("ends", ["stops", "is killed"])
def test_a_log_that_begins_anew_knows_its_producers_after_a_restart(ends: str) -> None:
    """Wherever the room ended when it began: no later answer of a leader brings them again."""
    table = ProducerTable()
    table.add(ProducerId(7), 0, 5, Offset(3))
    outcomes = set()
    for room in range(0, 20_000, 250):  # of the whole disk
        disk = SimDisk(random.Random(1))
        links = QuietLinks(lease_until_ms=0)
        files = disk.files()
        rig = DriverRig(files, links=links, promises=Promises(files))
        request = following(rig, links)
        disk.capacity_bytes = room
        answer = _below_start(request)
        assert answer.prefix is not None
        prefix = replace(answer.prefix, producers=table.to_state())
        rig.driver.replication.deliver(replace(answer, prefix=prefix))
        rig.turns.run()
        if ends == "stops":
            rig.close()
        else:
            disk.kill()
        disk.capacity_bytes = ROOMY
        files = disk.files()
        rig = DriverRig(files, links=QuietLinks(), promises=Promises(files))
        end = rig.driver.reads.log_end
        outcomes.add(end)
        expected = rig.driver._local.retries.producers.expected(ProducerId(7))
        assert expected == (5 if end == 10 else 0), f"there were {room} bytes"
    assert outcomes == {0, 10}


def _led_alone(disk: SimDisk, links: QuietLinks | None = None) -> tuple[DriverRig, PartitionView]:
    """Lead, with one record that no other replica has."""
    rig = DriverRig(disk.files(), links=links or QuietLinks())
    both = {OTHER: BrokerEpoch(1), ME: BrokerEpoch(1)}
    led = replace(
        alone_view(), replicas=(OTHER, ME), isr=frozenset(both), min_isr=2, broker_epochs=both,
        joinable=frozenset(both),
    )  # fmt: skip
    rig.view(led)
    rig.put(b"never committed", policy=AckPolicy.LEADER)
    rig.turns.run()
    return rig, led


def _elected_unclean(led: PartitionView) -> PartitionView:
    """Return the view in which this replica is to lead from the table's end on, at 10."""
    return replace(
        led, status="candidate_found", leader=None, candidate=ME, leader_epoch=LeaderEpoch(2),
        partition_epoch=PartitionEpoch(2), isr=frozenset(), cold_end=Offset(10),
    )  # fmt: skip


def test_a_candidate_shows_the_table_s_end_once_its_log_begins_there() -> None:
    """Its old log has another record at offset 0 than the table, and is there until then."""
    disk = SimDisk(random.Random(1))
    rig, led = _led_alone(disk)
    reads = rig.driver.reads
    disk.capacity_bytes = 0
    rig.view(_elected_unclean(led))
    assert reads.high_watermark == 0
    disk.capacity_bytes = ROOMY
    rig.clock.advance(us=300_000)
    rig.driver.replication.tick()
    rig.turns.run()
    assert (reads.log_start, reads.log_end, reads.high_watermark) == (10, 10, 10)


def test_readers_find_the_records_below_a_log_that_waits_in_the_table() -> None:
    """The files of the old log are gone: that is no damage, so the replica goes on."""
    disk = SimDisk(random.Random(1))
    rig, led = _led_alone(disk)
    reads = rig.driver.reads
    disk.capacity_bytes = 0
    rig.view(_elected_unclean(led))
    assert (reads.log_start, reads.log_end) == (10, 10)
    with pytest.raises(OffsetOutOfRangeError, match="begins at 10 now"):
        reads.read(Offset(0), Offset(1), bytes_max=100)
    with pytest.raises(OffsetOutOfRangeError, match="begins at 10 now"):
        reads.offset_at(0)
    rig.turns.run()
    assert rig.driver.health.failure is None


def test_a_log_that_is_replaced_during_a_read_is_not_damaged(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """The reader has the old log in hand, and its files are gone."""
    rig, led = _led_alone(SimDisk(random.Random(1)))
    reads, original = rig.driver.reads, PartitionLog.read

    def read(self: PartitionLog, *given: Any, **how: Any) -> Any:
        monkeypatch.undo()
        rig.view(_elected_unclean(led))
        return original(self, *given, **how)

    monkeypatch.setattr(PartitionLog, "read", read)
    with pytest.raises(OffsetOutOfRangeError):
        reads.read(Offset(0), Offset(1), bytes_max=100)
    rig.turns.run()
    assert rig.driver.health.failure is None
    assert (reads.log_start, reads.log_end, reads.high_watermark) == (10, 10, 10)


def test_a_truncation_that_waited_too_leaves_a_log_that_waits_alone() -> None:
    """An earlier leader wanted the truncation; the next one has the whole log replaced."""
    disk = SimDisk(random.Random(1))
    links = QuietLinks()
    rig, led = _led_alone(disk, links)

    def followed(epoch: int) -> EpochEndRequest:
        """Follow the other broker in an epoch; return the question."""
        rig.view(
            replace(
                led, leader=OTHER, leader_epoch=LeaderEpoch(epoch),
                partition_epoch=PartitionEpoch(epoch),
            )
        )  # fmt: skip
        request = links.sent[-1]
        assert isinstance(request, EpochEndRequest)
        return request

    def answer(request: EpochEndRequest, end: int) -> None:
        rig.driver.replication.deliver(
            EpochEndAnswer(
                leader_epoch=request.leader_epoch, request_id=request.request_id,
                epoch=request.epoch, known_epoch=LeaderEpoch(1), end=Offset(end),
            )
        )  # fmt: skip
        rig.turns.run()

    disk.capacity_bytes = 0
    answer(followed(2), 0)
    answer(followed(3), 1)
    rig.driver.replication.deliver(_below_start(links.asked_last()))
    rig.turns.run()
    rig.clock.advance(us=300_000)
    rig.driver.replication.tick()
    rig.turns.run()
    assert rig.driver.health.failure is None
    disk.capacity_bytes = ROOMY
    rig.driver.replication.tick()
    rig.turns.run()
    assert (rig.driver.reads.log_start, rig.driver.reads.log_end) == (10, 10)


def _cut_waits(disk: SimDisk) -> tuple[DriverRig, PartitionView]:
    """Name a candidate whose log another leader replaced; there is no room to cut it."""
    rig, led = _led_alone(disk)
    later = Leadership(leader_epoch=LeaderEpoch(2), lineage_id="2" * 32, start=Offset(0))
    first = Leadership(leader_epoch=LeaderEpoch(1), lineage_id="1" * 32, start=Offset(0))
    named = replace(_elected_unclean(led), cold_end=Offset(0), lineage=(first, later))
    disk.capacity_bytes = 0
    rig.view(replace(named, leader_epoch=LeaderEpoch(3)))
    assert rig.driver.reads.log_end == 1, "the cut waits"
    return rig, named


@pytest.mark.parametrize(("replaced_from", "known"), [(0, 0), (1, 0), (2, 1)])
def test_a_log_that_begins_anew_knows_no_batch_that_another_leader_replaced(
    replaced_from: int, known: int
) -> None:
    """A repeat of such a batch would be acknowledged, and be nowhere."""
    rig, led = _led_alone(SimDisk(random.Random(1)))
    rig.put(b"of a producer", producer=7, sequence=0, policy=AckPolicy.LEADER)
    rig.turns.run()
    first = Leadership(leader_epoch=LeaderEpoch(1), lineage_id="1" * 32, start=Offset(0))
    later = replace(first, leader_epoch=LeaderEpoch(2), start=Offset(replaced_from))
    named = replace(_elected_unclean(led), leader_epoch=LeaderEpoch(3))
    rig.view(replace(named, lineage=(first, replace(later, lineage_id="2" * 32))))
    assert (rig.driver.reads.log_start, rig.driver.reads.log_end) == (10, 10)
    assert rig.driver._local.retries.producers.expected(ProducerId(7)) == known


def test_a_cut_that_waits_is_tried_as_often_as_the_candidate_confirms() -> None:
    """Each try would else go on by itself, and there would be more with each confirmation."""
    rig, _ = _cut_waits(SimDisk(random.Random(1)))
    with capture_logs() as logs:
        for _ in range(60):
            rig.clock.advance(us=100_000)
            rig.driver.replication.tick()
            rig.turns.run()
    assert 10 <= sum(one["event"] == "truncation_waits" for one in logs) <= 30


def test_a_cut_that_waited_leaves_alone_what_the_leader_wrote_since() -> None:
    """The next view asked for the same cut, when there was room; the first one comes late."""
    disk = SimDisk(random.Random(1))
    rig, named = _cut_waits(disk)
    disk.capacity_bytes = ROOMY
    named = replace(named, leader_epoch=LeaderEpoch(4), partition_epoch=PartitionEpoch(4))
    rig.view(named)
    assert rig.driver.reads.log_end == 0
    rig.view(
        replace(
            named, status="online", candidate=None, leader=ME, isr=frozenset({ME, OTHER}),
            partition_epoch=PartitionEpoch(5),
        )
    )  # fmt: skip
    answers = rig.put(b"of the new leader", policy=AckPolicy.LEADER)
    rig.turns.run()
    rig.clock.advance(us=150_000)
    rig.driver.replication.tick()
    rig.turns.run()
    assert answers[0].leader_epoch == 4
    assert rig.driver.reads.log_end == 1


def test_a_cut_that_waited_leaves_a_log_that_is_replaced_alone() -> None:
    """The table has reached further since, so the whole log is to begin there."""
    disk = SimDisk(random.Random(1))
    rig, named = _cut_waits(disk)
    rig.view(
        replace(
            named, leader_epoch=LeaderEpoch(4), partition_epoch=PartitionEpoch(4),
            cold_end=Offset(10),
        )
    )  # fmt: skip
    assert rig.driver.replication.synced_position == (0, 0), "the new log waits"
    assert rig.driver.replication.undisputed_end(named.lineage, Offset(10)) == 10
    rig.clock.advance(us=150_000)
    rig.driver.replication.tick()
    rig.turns.run()
    assert rig.driver.health.failure is None
    disk.capacity_bytes = ROOMY
    rig.clock.advance(us=300_000)
    rig.driver.replication.tick()
    rig.turns.run()
    assert (rig.driver.reads.log_start, rig.driver.reads.log_end) == (10, 10)


def test_an_answer_that_comes_after_the_close_leaves_the_log_alone() -> None:
    """The stop stays clean: nothing has failed, and the closed log has what it had."""
    links = QuietLinks(lease_until_ms=0)
    rig = DriverRig(SimDisk(random.Random(1)).files(), links=links)
    request = following(rig, links)
    closing = rig.driver.begin_close()
    rig.driver.replication.deliver(_below_start(request))
    rig.turns.run()
    rig.driver.closed(closing)
    assert rig.driver.health.failure is None
    assert rig.driver.reads.log_end == 0


def test_a_full_disk_of_a_follower_is_logged_once_until_there_is_room() -> None:
    """It fetches again every second, for as long as the disk is full."""
    leader = DriverRig(SimDisk(random.Random(1)).files())
    leader.put(b"x" * 5_000)
    leader.turns.run()
    batches = tuple(leader.driver.reads.read(Offset(0), Offset(1), bytes_max=1 << 20))
    disk = SimDisk(random.Random(2))
    links = QuietLinks(lease_until_ms=0)
    rig = DriverRig(disk.files(), links=links)
    request = following(rig, links)
    disk.capacity_bytes = disk.used_bytes()
    with capture_logs() as lines:
        for number in range(5):
            if number == 4:
                disk.capacity_bytes = ROOMY
            rig.driver.replication.deliver(
                FetchAnswer(
                    leader_epoch=LeaderEpoch(1), request_id=request.request_id, start=Offset(0),
                    high_watermark=Offset(1), log_end=Offset(1), batches=batches,
                )
            )  # fmt: skip
            rig.turns.run()
            rig.clock.advance(us=5_000_000)
            rig.driver.replication.tick()
            rig.turns.run()
            request = links.asked_last()
    assert rig.driver.reads.log_end == 1
    told = [(one["event"], one["log_level"]) for one in lines if "disk_" in one["event"]]
    assert told == [("follower_disk_full", "warning"), ("disk_has_room", "warning")]
