"""A follower whose disk is full: a log that begins anew waits, and the log says so once."""

from __future__ import annotations

import random
from collections.abc import Callable
from dataclasses import replace

from structlog.testing import capture_logs

from broker.core.replication.effects import ProposeIsr
from broker.errors import HeadwaterError
from broker.model.epochs import BrokerEpoch, LeaderEpoch
from broker.model.ids import BrokerId
from broker.model.offsets import Offset
from broker.model.replica_messages import (
    EpochEndAnswer,
    EpochEndRequest,
    FetchAnswer,
    FetchRequest,
    LogPrefix,
    ReplicaMessage,
)
from simkit.brokers.driver_rig import ME, DriverRig, alone_view
from simkit.disk.disk import ROOMY, SimDisk

LEADER = BrokerId("leader")


class Links:
    """Keeps the sent messages."""

    def __init__(self) -> None:
        self.sent: list[ReplicaMessage] = []

    def send(self, to: BrokerId, message: ReplicaMessage) -> None:
        """Keep it."""
        assert to == LEADER
        self.sent.append(message)

    def propose_isr(self, wanted: ProposeIsr, answered: Callable[[bool], None]) -> None:
        """Say nothing."""

    def confirm_leader(self, leader_epoch: LeaderEpoch, log_end: Offset) -> None:
        """Say nothing."""

    def report_leader(self, leader_epoch: LeaderEpoch) -> None:
        """Say nothing."""

    def lease_until_ms(self) -> int:
        """Have none."""
        return 0

    def withdraw(self, reason: HeadwaterError) -> None:
        """Say nothing."""

    def lead_changed(self, *, leads: bool) -> None:
        """Say nothing."""


def _following(rig: DriverRig, links: Links) -> FetchRequest:
    """Let the rig follow the leader; return its first request for records."""
    view = replace(
        alone_view(),
        leader=LEADER,
        replicas=(LEADER, ME),
        isr=frozenset({LEADER}),
        broker_epochs={LEADER: BrokerEpoch(1), ME: BrokerEpoch(1)},
        joinable=frozenset({LEADER, ME}),
    )
    rig.view(view)
    request: ReplicaMessage = links.sent[-1]
    for _ in range(5):
        request = links.sent[-1]
        if isinstance(request, FetchRequest):
            break
        assert isinstance(request, EpochEndRequest)
        rig.driver.replication.deliver(
            EpochEndAnswer(
                leader_epoch=LeaderEpoch(1),
                request_id=request.request_id,
                epoch=request.epoch,
                known_epoch=LeaderEpoch(0),
                end=Offset(0),
                refusal=None,
            )
        )
        rig.turns.run()
    assert isinstance(request, FetchRequest)
    return request


def test_a_log_that_begins_anew_waits_for_room() -> None:
    """After ENOSPC in the middle, once there is room, the follower fetches from its new start."""
    disk = SimDisk(random.Random(1))
    links = Links()
    rig = DriverRig(disk.files(), links=links)
    request = _following(rig, links)
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
        rig.clock.advance(us=200_000)
        rig.driver.replication.tick()
        rig.turns.run()
    assert rig.driver.reads.log_end == 0
    assert rig.driver.health.failure is None
    disk.capacity_bytes = ROOMY
    rig.clock.advance(us=200_000)
    rig.driver.replication.tick()
    rig.turns.run()
    assert (rig.driver.reads.log_start, rig.driver.reads.log_end) == (10, 10)
    asked = [one for one in links.sent[sent:] if isinstance(one, FetchRequest)]
    assert asked[-1].fetch_from == 10


def test_an_answer_that_comes_after_the_close_leaves_the_log_alone() -> None:
    """The stop stays clean: nothing has failed, and the closed log has what it had."""
    links = Links()
    rig = DriverRig(SimDisk(random.Random(1)).files(), links=links)
    request = _following(rig, links)
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
    links = Links()
    rig = DriverRig(disk.files(), links=links)
    request = _following(rig, links)
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
            request = next(one for one in reversed(links.sent) if isinstance(one, FetchRequest))
    assert rig.driver.reads.log_end == 1
    told = [(one["event"], one["log_level"]) for one in lines if "disk_" in one["event"]]
    assert told == [("follower_disk_full", "warning"), ("disk_has_room", "warning")]
