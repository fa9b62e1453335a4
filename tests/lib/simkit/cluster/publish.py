"""What publishers and simulated brokers say to each other, and what all brokers of a seed share."""

from __future__ import annotations

from dataclasses import dataclass

from broker.core.election import ElectionTiming
from broker.core.isr import LagLimits
from broker.core.replication.follower import FollowerTiming
from broker.errors import HeadwaterError
from broker.model.epochs import LeaderEpoch
from broker.model.ids import PartitionId
from broker.model.offsets import Offset
from broker.model.records import AckPolicy
from simkit.cluster.table import Table


@dataclass(frozen=True, slots=True)
class Publish:
    """A record on its way in."""

    client: str
    number: int
    producer: int
    sequence: int
    value: bytes
    policy: AckPolicy


@dataclass(frozen=True, slots=True)
class PublishAnswer:
    """An ack, or an error after which the outcome may be unknown."""

    number: int
    base: Offset
    leader_epoch: LeaderEpoch
    duplicate: bool
    error: HeadwaterError | None = None


@dataclass(frozen=True, slots=True)
class Waiting:
    """A publisher that waits for its ack."""

    publish: Publish
    base: Offset
    leader_epoch: LeaderEpoch
    duplicate: bool


@dataclass(frozen=True, slots=True, kw_only=True)
class Setting:
    """What all brokers of one seed share."""

    partition_id: PartitionId
    limits: LagLimits
    timing: FollowerTiming
    election: ElectionTiming
    sync_ms_max: int
    fetch_count: int
    table: Table | None = None
