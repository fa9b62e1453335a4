"""The pump that shows the controllers that this broker lives, and what it reports to them.

Each heartbeat that is granted extends the lease: from when it was sent, on this broker's clock.
Reports of silent leaders are repeated with the heartbeats until the metadata has moved on.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Final, Protocol

from broker.core.election import ElectionTiming
from broker.core.metadata.state import MetadataState
from broker.model.control_messages import Heartbeat, HeartbeatAnswer, LeaderReport
from broker.model.epochs import BrokerEpoch, LeaderEpoch
from broker.model.ids import BrokerId, PartitionId
from broker.ports.cluster import ControlTransport
from broker.runtime.inbox import Inbox

_BEATS_A_SESSION: Final = 6


class SeenMetadata(Protocol):
    """What the pump looks at in the metadata log."""

    @property
    def state(self) -> MetadataState:
        """What is applied here."""

    @property
    def applied_index(self) -> int:
        """Index of the newest entry applied here."""

    @property
    def leader(self) -> str | None:
        """Who leads the metadata, as far as is known here: the broker of that name."""


class MemberBeats:
    """Any thread reports and takes leases; one at a time takes turns."""

    def __init__(
        self,
        *,
        metadata: SeenMetadata,
        control: ControlTransport,
        timing: ElectionTiming,
        broker_epoch: Callable[[], BrokerEpoch],
    ) -> None:
        """Nothing is sent before the first turn or report."""
        self._metadata = metadata
        self._control = control
        self._timing = timing
        self._broker_epoch = broker_epoch
        self._new_reports = Inbox(waiting_max=0)
        self._reports: dict[PartitionId, LeaderEpoch] = {}
        self.lease_until_ms = 0  # this broker may act until then, on its monotonic clock

    def turn(self, now_ms: int) -> int:
        """Send a heartbeat, and every report again that still stands."""
        self._send_heartbeat(now_ms)
        while (new := self._new_reports.take()) is not None:
            partition_id, leader_epoch = new[1]
            self._reports[partition_id] = leader_epoch
        for partition_id, leader_epoch in list(self._reports.items()):
            if not self._send_report(partition_id, leader_epoch):
                del self._reports[partition_id]
        return now_ms + self._timing.session_ms // _BEATS_A_SESSION

    def report(self, partition_id: PartitionId, leader_epoch: LeaderEpoch) -> None:
        """Report a silent leader, and again until the metadata has another epoch. Any thread.

        Whoever is in office now may be the one that is gone.
        """
        self._new_reports.put(partition_id, (partition_id, leader_epoch))
        self._send_report(partition_id, leader_epoch)

    def take_lease(self, answer: HeartbeatAnswer) -> None:
        """Extend the lease, if a heartbeat of this process was granted. Any thread."""
        if answer.granted and answer.broker_epoch == self._broker_epoch():
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
        """Send a report that still stands; tell whether it does."""
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
