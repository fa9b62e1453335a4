"""A cluster's numbers for a scrape: elections counted once, waiting records seen to wait."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable
from dataclasses import replace
from types import SimpleNamespace
from typing import Any

import pytest

from broker.core.metadata.state import BrokerState, MetadataState, PartitionState
from broker.core.raft.member import Role
from broker.core.replication.isr import FollowerProgress
from broker.model.epochs import BrokerEpoch, LeaderEpoch
from broker.model.ids import BrokerId, PartitionId, PartitionNumber, StreamUuid
from broker.model.offsets import Offset
from broker.process.cluster_samples import ClusterSamples
from simkit.brokers.memory_broker import FakeClock

UUID = StreamUuid("00000000-0000-0000-0000-000000000001")
A, B, C = (BrokerId(name) for name in "abc")
LED = PartitionState(
    leader=A, leader_epoch=LeaderEpoch(1), cold_end=Offset(0), replicas=(A, B, C), isr=(A, B),
    min_isr=2,
)  # fmt: skip
OPEN = replace(LED, leader=None, status="election", leader_epoch=LeaderEpoch(2))


class Metadata:
    """Metadata with a state that the test sets, and one listener."""

    def __init__(self) -> None:
        brokers = {one: BrokerState(epoch=BrokerEpoch(1), fenced=one == C) for one in (A, B, C)}
        self.state = MetadataState(brokers=brokers, partitions={UUID: (LED,)})
        self.applied_index = 8
        self.known = SimpleNamespace(term=3, role=Role.LEADER, commit=9, is_voter=True)
        self.voters: tuple[str, ...] = (A, B, C)
        self.leader = A
        self._heard: list[Callable[[int, MetadataState], None]] = []

    def subscribe(self, subscriber: Callable[[int, MetadataState], None]) -> None:
        """Hear changes."""
        self._heard.append(subscriber)

    def become(self, row: PartitionState) -> None:
        """Show another state of the partition."""
        self.state = replace(self.state, partitions={UUID: (row,)})
        for subscriber in self._heard:
            subscriber(0, self.state)


class Rig:
    """A broker with one partition that it leads."""

    def __init__(self) -> None:
        self.clock = FakeClock()
        self.metadata = Metadata()
        progress = FollowerProgress(BrokerEpoch(1), synced_end=Offset(6), heard_ms=self.now_ms - 40)
        self.standing: dict[BrokerId, Any] = {}
        self.driver: Any = SimpleNamespace(
            stream=SimpleNamespace(name="s"),
            partition_id=PartitionId(UUID, PartitionNumber(0)),
            leads=True,
            reads=SimpleNamespace(high_watermark=Offset(6), log_end=Offset(9)),
            replication=SimpleNamespace(
                leader=SimpleNamespace(progress=lambda: {B: progress}, standing=self.standing)
            ),
        )
        node: Any = SimpleNamespace(
            metadata=self.metadata,
            member=SimpleNamespace(lease_until_ms=self.now_ms + 700),
            controller=SimpleNamespace(in_office=True),
            link=SimpleNamespace(
                connected=lambda: {B}, counters=dict, received_bytes=5, refused=Counter(tls=2)
            ),
        )
        broker: Any = SimpleNamespace(replicas=SimpleNamespace(all=lambda: [self.driver]))
        self.samples = ClusterSamples(broker, node, me=A, clock=self.clock)

    @property
    def now_ms(self) -> int:
        """The clock."""
        return self.clock.monotonic_ms()


@pytest.fixture
def rig() -> Rig:
    """Return a fresh rig."""
    return Rig()


def _elections(rig: Rig) -> int:
    (sample,) = rig.samples.cluster_samples()
    return sample.elections_total


def test_an_election_counts_once_a_new_leader_is_there(rig: Rig) -> None:
    """Its opening, a changed ISR and a leader's restart in place do not count."""
    rig.metadata.become(replace(LED, isr=(A, B, C)))
    rig.metadata.become(replace(LED, leader_epoch=LeaderEpoch(2)))
    assert _elections(rig) == 0
    rig.metadata.become(OPEN)
    assert _elections(rig) == 0
    rig.metadata.become(replace(LED, leader=B, leader_epoch=LeaderEpoch(3)))
    assert _elections(rig) == 1


def test_the_cluster_is_counted(rig: Rig) -> None:
    """Brokers, partitions in trouble, the lease, and the metadata log's own numbers."""
    (sample,) = rig.samples.cluster_samples()
    assert (sample.brokers_alive, sample.brokers_fenced) == (2, 1)
    assert (sample.partitions, sample.led_partitions) == (1, 1)
    assert (sample.under_replicated_partitions, sample.leaderless_partitions) == (1, 0)
    assert sample.lease_remaining_seconds == pytest.approx(0.7)
    assert (sample.raft_term, sample.raft_role, sample.raft_commit_index) == (3, "leader", 9)
    assert sample.refused_connections_total == 2
    rig.metadata.become(replace(OPEN, status="offline"))
    (sample,) = rig.samples.cluster_samples()
    assert (sample.offline_partitions, sample.leaderless_partitions) == (1, 1)


def test_the_controllers_are_counted_and_named(rig: Rig) -> None:
    """Their list is that of the metadata log. A fenced or never seen one counts as dead."""
    (sample,) = rig.samples.cluster_samples()
    assert (sample.controllers, sample.controllers_alive, sample.votes) == (3, 2, True)
    found = {one.controller: one for one in rig.samples.controller_samples()}
    assert {name: one.alive for name, one in found.items()} == {A: True, B: True, C: False}
    assert [name for name, one in found.items() if one.in_office] == [A]
    rig.metadata.voters = (B, "new")
    rig.metadata.known.is_voter = False
    (sample,) = rig.samples.cluster_samples()
    assert (sample.controllers, sample.controllers_alive, sample.votes) == (2, 1, False)


def test_waiting_records_grow_old(rig: Rig) -> None:
    """The age runs while the high watermark stands below the log's end, and begins anew."""

    def age() -> float:
        (sample,) = rig.samples.replica_samples()
        return sample.high_watermark_age_seconds

    assert age() == 0
    rig.clock.advance(us=2_000_000)
    assert age() == pytest.approx(2.0)
    rig.driver.reads.high_watermark = Offset(7)
    assert age() == 0
    rig.clock.advance(us=1_000_000)
    rig.driver.reads.high_watermark = Offset(9)
    assert age() == 0


def test_followers_are_told_by_their_leader(rig: Rig) -> None:
    """How far behind, and how long silent."""
    (one,) = rig.samples.follower_samples()
    assert (one.follower, one.lag_records) == ("b", 3)
    assert one.silent_seconds == pytest.approx(0.04)
    rig.standing[B] = SimpleNamespace(known_ms=rig.now_ms - 10)  # a roll call confirmed its fetch
    (one,) = rig.samples.follower_samples()
    assert one.silent_seconds == pytest.approx(0.01)
