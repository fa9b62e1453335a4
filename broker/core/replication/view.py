"""One partition, according to the metadata that a broker has applied."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Literal

from broker.core.metadata.state import MetadataState, PartitionStatus
from broker.model.epochs import BrokerEpoch, LeaderEpoch, PartitionEpoch
from broker.model.ids import BrokerId, PartitionId
from broker.model.lineage import Lineage
from broker.model.offsets import Offset

Role = Literal["leader", "candidate", "follower", "waiting", "none"]


@dataclass(frozen=True, slots=True, kw_only=True)
class PartitionView:
    """One partition at some index of the metadata log. Acting on an old view is safe."""

    status: PartitionStatus
    leader: BrokerId | None
    candidate: BrokerId | None
    leader_epoch: LeaderEpoch
    partition_epoch: PartitionEpoch
    replicas: tuple[BrokerId, ...]
    isr: frozenset[BrokerId]
    min_isr: int
    broker_epochs: Mapping[BrokerId, BrokerEpoch]  # of the replicas
    joinable: frozenset[BrokerId]  # replicas that are neither fenced nor stopping
    eligible: frozenset[BrokerId] = frozenset()
    restarted: frozenset[BrokerId] = frozenset()  # of ISR and eligible; not yet compared
    cold_end: Offset = Offset(0)  # noqa: RUF009 - a plain number
    lineage: Lineage = ()
    purged_end: Offset = Offset(0)  # noqa: RUF009 - a plain number
    paused: bool = False
    resumes_all: bool = False
    readonly: bool = False

    @property
    def floor(self) -> Offset:
        """No log may end below this offset: what was there is in the table, or was purged."""
        return max(self.cold_end, self.purged_end)

    @property
    def is_unclean(self) -> bool:
        """Whether no replica is known to have all committed records: an operator gave some up."""
        return not self.isr and not self.eligible

    def role_of(self, me: BrokerId) -> Role:
        """Return the broker's role for the partition."""
        if me not in self.replicas:
            return "none"
        if self.leader == me:
            return "leader"
        if self.candidate == me:
            return "candidate"
        return "waiting" if self.leader is None else "follower"


def view_of(state: MetadataState, partition_id: PartitionId) -> PartitionView | None:
    """Return the partition's view; None when the stream is gone."""
    one = state.partition(partition_id)
    if one is None:
        return None
    known = {name: state.brokers[name] for name in one.replicas if name in state.brokers}
    return PartitionView(
        status=one.status,
        leader=one.leader,
        candidate=one.candidate,
        leader_epoch=one.leader_epoch,
        partition_epoch=one.partition_epoch,
        replicas=one.replicas,
        isr=frozenset(one.isr),
        min_isr=one.min_isr,
        broker_epochs={name: broker.epoch for name, broker in known.items()},
        joinable=frozenset(
            name for name, broker in known.items() if not broker.fenced and not broker.stopping
        ),
        eligible=frozenset(one.eligible),
        restarted=frozenset(one.restarted),
        cold_end=one.cold_end,
        lineage=one.lineage,
        purged_end=one.purged_end,
        paused=one.paused,
        resumes_all=one.resumes_all,
        readonly=one.readonly,
    )
