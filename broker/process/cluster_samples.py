"""A cluster's metrics: replicas, followers, elections, Raft, connections."""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping
from typing import Final, Protocol

from broker.adapters.peer.link import PeerLink
from broker.core.metadata.changes import partition_changes
from broker.core.metadata.state import MetadataState, PartitionState
from broker.model.ids import BrokerId, PartitionId
from broker.model.offsets import Offset
from broker.ports.system import Clock
from broker.process.metrics import (
    ClusterSample,
    ControllerSample,
    FollowerSample,
    PeerSample,
    ReplicaSample,
)
from broker.runtime.broker import Broker
from broker.runtime.cluster.controller import Controller
from broker.runtime.cluster.member import ClusterMember
from broker.runtime.metadata.raft_metadata_log import RaftMetadataLog
from broker.runtime.operations import followers_of
from broker.runtime.partition.driver import PartitionDriver

_MS: Final = 1000


class SampledNode(Protocol):
    """The parts that a scrape looks at."""

    link: PeerLink
    metadata: RaftMetadataLog
    controller: Controller
    member: ClusterMember


class ClusterSamples:
    """Reads plain numbers; counts elections as the metadata shows them."""

    def __init__(self, broker: Broker, node: SampledNode, *, me: BrokerId, clock: Clock) -> None:
        """Read from a broker of a cluster; elections are counted from now on."""
        self._broker = broker
        self._node = node
        self._me = me
        self._clock = clock
        self.nats_errors: dict[str, Mapping[str, int]] = {}  # by connection, by kind
        self._elections_total = 0
        self._seen = node.metadata.state
        self._waiting: dict[PartitionId, tuple[Offset, int]] = {}  # high watermark, since when
        node.metadata.subscribe(self._changed)

    def _changed(self, _index: int, state: MetadataState) -> None:
        """Count new leaders; on the metadata's thread."""
        for change in partition_changes(self._seen, state):
            before, after = change.before, change.after
            if before is None or after is None or after.leader is None:
                continue
            if after.leader_epoch > before.leader_epoch or before.leader is None:
                self._elections_total += after.leader != before.leader
        self._seen = state

    def replica_samples(self) -> list[ReplicaSample]:
        """Return one sample per replica on this broker."""
        state, now_ms = self._node.metadata.state, self._clock.monotonic_ms()
        found = []
        for driver in self._broker.replicas.all():
            row = state.partition(driver.partition_id)
            if row is not None:
                found.append(
                    ReplicaSample(
                        stream=driver.stream.name,
                        partition=driver.partition_id.number,
                        leads=driver.leads,
                        leader_epoch=row.leader_epoch,
                        replicas=len(row.replicas),
                        isr=len(row.isr),
                        under_replicated=_is_under_replicated(row),
                        below_min_isr=len(row.isr) < row.min_isr,
                        high_watermark_age_seconds=self._age_ms(driver, now_ms) / _MS,
                    )
                )
        return found

    def _age_ms(self, driver: PartitionDriver, now_ms: int) -> int:
        """Return for how long, between scrapes, records have waited for the high watermark."""
        mark = driver.reads.high_watermark
        before = self._waiting.get(driver.partition_id)
        if not driver.leads or mark >= driver.reads.log_end:
            self._waiting.pop(driver.partition_id, None)
            return 0
        if before is None or before[0] != mark:
            self._waiting[driver.partition_id] = before = (mark, now_ms)
        return now_ms - before[1]

    def follower_samples(self) -> list[FollowerSample]:
        """Return one sample per follower that has sent a message to a leader on this broker."""
        now_ms = self._clock.monotonic_ms()
        return [
            FollowerSample(
                stream=driver.stream.name,
                partition=driver.partition_id.number,
                follower=one.broker,
                lag_records=one.lag_records,
                silent_seconds=one.silent_ms / _MS,
            )
            for driver in self._broker.replicas.all()
            for one in followers_of(driver, now_ms)
            if one.lag_records is not None and one.silent_ms is not None
        ]

    def cluster_samples(self) -> list[ClusterSample]:
        """Return the one sample of this broker."""
        node, state = self._node, self._node.metadata.state
        rows = [one for rows in state.partitions.values() for one in rows]
        statuses = Counter(one.status for one in rows)
        fenced = sum(one.fenced for one in state.brokers.values())
        raft = node.metadata.known
        controllers = node.metadata.voters
        lease_ms = max(0, node.member.lease_until_ms - self._clock.monotonic_ms())
        return [
            ClusterSample(
                brokers_alive=len(state.brokers) - fenced,
                brokers_fenced=fenced,
                partitions=len(rows),
                offline_partitions=statuses["offline"],
                leaderless_partitions=len(rows) - statuses["online"],
                under_replicated_partitions=sum(map(_is_under_replicated, rows)),
                led_partitions=sum(one.leader == self._me for one in rows),
                in_office=node.controller.in_office,
                controllers=len(controllers),
                controllers_alive=sum(_is_alive(state, one) for one in controllers),
                votes=raft.is_voter,
                elections_total=self._elections_total,
                lease_remaining_seconds=lease_ms / _MS,
                raft_term=raft.term,
                raft_role=raft.role.value,
                raft_commit_index=raft.commit,
                raft_applied_index=node.metadata.applied_index,
                received_bytes_total=node.link.received_bytes,
                refused_connections_total=sum(node.link.refused.values()),
            )
        ]

    def controller_samples(self) -> list[ControllerSample]:
        """Return one sample per broker that votes on the metadata."""
        metadata = self._node.metadata
        state, leader = metadata.state, metadata.leader
        return [
            ControllerSample(controller=one, alive=_is_alive(state, one), in_office=one == leader)
            for one in metadata.voters
        ]

    def peer_samples(self) -> list[PeerSample]:
        """Return one sample per other broker that is known."""
        connected = self._node.link.connected()
        return [
            PeerSample(
                peer=peer,
                connected=peer in connected,
                sent_messages_total=one.messages,
                sent_bytes_total=one.bytes,
                connects_total=one.connects,
                dropped_messages_total=one.dropped_full + one.dropped_old,
                impostors_total=one.impostors,
            )
            for peer, one in sorted(self._node.link.counters().items())
        ]


def _is_alive(state: MetadataState, broker: str) -> bool:
    one = state.brokers.get(BrokerId(broker))
    return one is not None and not one.fenced


def _is_under_replicated(one: PartitionState) -> bool:
    return not set(one.replicas) <= set(one.isr)
