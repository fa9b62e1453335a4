"""A replica's links to brokers that never answer; what was sent is kept."""

from __future__ import annotations

from collections.abc import Callable, Collection
from dataclasses import replace

from broker.core.replication.effects import ProposeIsr
from broker.core.replication.standing import StandingFetch, StandingReplica
from broker.errors import HeadwaterError
from broker.model.epochs import BrokerEpoch, LeaderEpoch
from broker.model.ids import BrokerId
from broker.model.offsets import Offset
from broker.model.replica_messages import (
    EpochEndAnswer,
    EpochEndRequest,
    FetchRequest,
    ReplicaMessage,
)
from simkit.brokers.driver_rig import ME, DriverRig, alone_view

OTHER = BrokerId("other")
LONG = 1 << 50


class QuietLinks:
    """Implements ``ReplicaLinks``."""

    def __init__(self, lease_until_ms: int = LONG) -> None:
        """Give this lease."""
        self._lease_until_ms = lease_until_ms
        self.sent: list[ReplicaMessage] = []
        self.confirmed: list[Offset] = []  # log ends of a candidate
        self.withdrawn: list[HeadwaterError] = []  # why the replica is to leave the ISR

    def send(self, to: BrokerId, message: ReplicaMessage) -> None:
        """Keep it."""
        assert to == OTHER
        self.sent.append(message)

    def propose_isr(self, wanted: ProposeIsr, answered: Callable[[bool], None]) -> None:
        """Nobody answers."""

    def confirm_leader(
        self, leader_epoch: LeaderEpoch, log_end: Offset, log_epoch: LeaderEpoch
    ) -> None:
        """Keep it."""
        self.confirmed.append(log_end)

    def report_leader(self, leader_epoch: LeaderEpoch) -> None:
        """Nobody hears it."""

    def lease_until_ms(self, leader_epoch: LeaderEpoch) -> int:
        """Return the lease."""
        return self._lease_until_ms

    def lease_lapses(self) -> int:
        """Tell of none."""
        return 0

    def keep(self, replica: StandingReplica, standing: Collection[StandingFetch]) -> None:
        """Nobody calls a roll."""

    def withdraw(self, reason: HeadwaterError) -> None:
        """Keep it."""
        self.withdrawn.append(reason)

    def lead_changed(self, *, leads: bool) -> None:
        """Nobody listens."""

    def asked_last(self) -> FetchRequest:
        """Return the newest request for records."""
        return next(one for one in reversed(self.sent) if isinstance(one, FetchRequest))


def following(rig: DriverRig, links: QuietLinks) -> FetchRequest:
    """Let the rig follow the other broker; return its first request for records."""
    both = {OTHER: BrokerEpoch(1), ME: BrokerEpoch(1)}
    rig.view(
        replace(
            alone_view(),
            leader=OTHER,
            replicas=(OTHER, ME),
            isr=frozenset({OTHER}),
            broker_epochs=both,
            joinable=frozenset(both),
        )
    )
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
    return links.asked_last()
