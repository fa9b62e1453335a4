"""The pump that sends this broker's heartbeats and reports to the active controller.

Each granted heartbeat extends the lease. The lease counts from the time at which the heartbeat was
sent, on this broker's clock. Reports of silent leaders are repeated with the heartbeats until the
leader is heard again, or the metadata has a newer leader epoch.
"""

from __future__ import annotations

from collections.abc import Callable

from broker.core.election import ElectionTiming
from broker.model.control_messages import Heartbeat, HeartbeatAnswer, LeaderReport
from broker.model.epochs import BrokerEpoch, LeaderEpoch
from broker.model.ids import BrokerId, PartitionId
from broker.ports.cluster import ControlTransport
from broker.runtime.inbox import Inbox
from broker.runtime.metadata.metadata_log import SeenMetadata


class MemberBeats:
    """Any thread may report and take leases; one thread at a time runs turns."""

    def __init__(
        self,
        *,
        metadata: SeenMetadata,
        control: ControlTransport,
        timing: ElectionTiming,
        broker_epoch: Callable[[], BrokerEpoch],
        misses_leader: Callable[[PartitionId, LeaderEpoch], bool],
    ) -> None:
        """Prepare; the first turn or report sends. ``misses_leader``: asked before each repeat."""
        self._metadata = metadata
        self._control = control
        self._timing = timing
        self._broker_epoch = broker_epoch
        self._misses_leader = misses_leader
        self._new_reports = Inbox(waiting_max=0)
        self._reports: dict[PartitionId, LeaderEpoch] = {}
        self.lease_until_ms = 0  # this broker may lead until then, on its monotonic clock
        self.lapses_count = 0  # how often the lease had ended before it was extended

    def turn(self, now_ms: int) -> int:
        """Send a heartbeat, and repeat every report that is still true."""
        self._send_heartbeat(now_ms)
        while (new := self._new_reports.take()) is not None:
            partition_id, leader_epoch = new[1]
            self._reports[partition_id] = leader_epoch
        for partition_id, leader_epoch in list(self._reports.items()):
            still = self._misses_leader(partition_id, leader_epoch)
            if not (still and self._send_report(partition_id, leader_epoch)):
                del self._reports[partition_id]
        return now_ms + self._timing.beat_ms()

    def report(self, partition_id: PartitionId, leader_epoch: LeaderEpoch) -> None:
        """Report a silent leader, and repeat while the report is true. Any thread.

        It is repeated because the active controller itself may be down. A report that outlived the
        silence would count together with a report of another replica at any later time.
        """
        self._new_reports.put(partition_id, (partition_id, leader_epoch))
        self._send_report(partition_id, leader_epoch)

    def take_lease(self, answer: HeartbeatAnswer, now_ms: int) -> None:
        """Extend the lease, if a heartbeat of this process was granted. Any thread.

        A lapse is counted before the new lease can be seen: who reads the lease before the count
        never misses one.
        """
        if answer.granted and answer.broker_epoch == self._broker_epoch():
            if now_ms >= self.lease_until_ms:
                self.lapses_count += 1
            until_ms = answer.sent_ms + self._timing.lease_ms()
            self.lease_until_ms = max(self.lease_until_ms, until_ms)

    def _send_heartbeat(self, now_ms: int) -> None:
        controller = self._metadata.leader
        if controller is not None:
            heartbeat = Heartbeat(
                broker_epoch=self._broker_epoch(),
                sent_ms=now_ms,
                applied_index=self._metadata.applied_index,
            )
            self._control.send(BrokerId(controller), heartbeat)

    def _send_report(self, partition_id: PartitionId, leader_epoch: LeaderEpoch) -> bool:
        """Send a report if it is still true; return whether it is."""
        current = self._metadata.state.partition(partition_id)
        if current is None or current.leader_epoch != leader_epoch or current.leader is None:
            return False
        controller = self._metadata.leader
        if controller is not None:
            report = LeaderReport(
                partition_id=partition_id,
                broker_epoch=self._broker_epoch(),
                leader_epoch=leader_epoch,
            )
            self._control.send(BrokerId(controller), report)
        return True
