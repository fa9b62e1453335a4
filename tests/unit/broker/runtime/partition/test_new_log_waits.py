"""A replica whose disk is full: a log that begins anew waits, and the log says so once."""

from __future__ import annotations

import random
from dataclasses import replace

from structlog.testing import capture_logs

from broker.model.epochs import BrokerEpoch, LeaderEpoch, PartitionEpoch
from broker.model.offsets import Offset
from broker.model.records import AckPolicy
from broker.model.replica_messages import (
    FetchAnswer,
    FetchRequest,
    LogPrefix,
)
from simkit.brokers.driver_rig import ME, DriverRig, alone_view
from simkit.brokers.quiet_links import OTHER, QuietLinks, following
from simkit.disk.disk import ROOMY, SimDisk


def test_a_log_that_begins_anew_waits_for_room() -> None:
    """After ENOSPC in the middle, once there is room, the follower fetches from its new start."""
    disk = SimDisk(random.Random(1))
    links = QuietLinks(lease_until_ms=0)
    rig = DriverRig(disk.files(), links=links)
    request = following(rig, links)
    disk.capacity_bytes = disk.used_bytes()
    rig.driver.replication.deliver(
        FetchAnswer(
            leader_epoch=LeaderEpoch(1),
            request_id=request.request_id,
            start=Offset(10),
            high_watermark=Offset(10),
            log_end=Offset(10),
            refusal="below_start",
            prefix=LogPrefix(
                epochs=((LeaderEpoch(1), Offset(0)),), producers=b'{"v":1,"producers":[]}'
            ),
        )
    )
    disk.capacity_bytes = 0  # the old log's space is freed first, and other files use it
    rig.turns.run()
    sent = len(links.sent)
    for _ in range(3):
        rig.clock.advance(us=300_000)
        rig.driver.replication.tick()
        rig.driver.maintenance.tick()
        rig.turns.run()
    assert rig.driver.reads.log_end == 0
    assert rig.driver.health.failure is None
    disk.capacity_bytes = ROOMY
    rig.clock.advance(us=300_000)
    rig.driver.replication.tick()
    rig.turns.run()
    assert (rig.driver.reads.log_start, rig.driver.reads.log_end) == (10, 10)
    asked = [one for one in links.sent[sent:] if isinstance(one, FetchRequest)]
    assert asked[-1].fetch_from == 10


def test_a_candidate_shows_the_table_s_end_once_its_log_begins_there() -> None:
    """Its old log has another record at offset 0 than the table, and is there until then."""
    disk = SimDisk(random.Random(1))
    rig = DriverRig(disk.files(), links=QuietLinks())
    both = {OTHER: BrokerEpoch(1), ME: BrokerEpoch(1)}
    led = replace(
        alone_view(), replicas=(OTHER, ME), isr=frozenset(both), min_isr=2, broker_epochs=both,
        joinable=frozenset(both),
    )  # fmt: skip
    rig.view(led)
    rig.put(b"never committed", policy=AckPolicy.LEADER)
    rig.turns.run()
    elected_unclean = replace(
        led, status="candidate_found", leader=None, candidate=ME, leader_epoch=LeaderEpoch(2),
        partition_epoch=PartitionEpoch(2), isr=frozenset(), cold_end=Offset(10),
    )  # fmt: skip
    disk.capacity_bytes = 0
    rig.view(elected_unclean)
    reads = rig.driver.reads
    assert reads.high_watermark == 0
    disk.capacity_bytes = ROOMY
    rig.clock.advance(us=300_000)
    rig.driver.replication.tick()
    rig.turns.run()
    assert (reads.log_start, reads.log_end, reads.high_watermark) == (10, 10, 10)


def test_an_answer_that_comes_after_the_close_leaves_the_log_alone() -> None:
    """The stop stays clean: nothing has failed, and the closed log has what it had."""
    links = QuietLinks(lease_until_ms=0)
    rig = DriverRig(SimDisk(random.Random(1)).files(), links=links)
    request = following(rig, links)
    closing = rig.driver.begin_close()
    rig.driver.replication.deliver(
        FetchAnswer(
            leader_epoch=LeaderEpoch(1),
            request_id=request.request_id,
            start=Offset(10),
            high_watermark=Offset(10),
            log_end=Offset(10),
            refusal="below_start",
            prefix=LogPrefix(
                epochs=((LeaderEpoch(1), Offset(0)),), producers=b'{"v":1,"producers":[]}'
            ),
        )
    )
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
