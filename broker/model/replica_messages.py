"""What replicas of a partition say to each other. A transport carries these and decides nothing.

Every message names the leader epoch that its sender is in, and every request the broker epoch of
its sender. A message of another epoch is refused or dropped, never guessed at.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any, Literal, Protocol

from broker.model.epochs import BrokerEpoch, LeaderEpoch
from broker.model.ids import BrokerId
from broker.model.offsets import Offset

# Why a leader does not answer a request with what it asked for.
Refusal = Literal[
    "not_leader", "fenced_epoch", "unknown_epoch", "fenced_broker", "diverged", "below_start"
]


class BatchFacts(Protocol):
    """What the machines look at in a stored batch; ``BatchHeader`` has it."""

    @property
    def base_offset(self) -> Offset:
        """First offset."""

    @property
    def end_offset(self) -> Offset:
        """First offset after it."""

    @property
    def leader_epoch(self) -> LeaderEpoch:
        """The epoch of the leader that wrote it."""


class CarriedBatch(Protocol):
    """A stored batch on its way; ``StoredBatch`` is one."""

    @property
    def header(self) -> BatchFacts:
        """Where it belongs."""


@dataclass(frozen=True, slots=True, kw_only=True)
class EpochEndRequest:
    """Where do the records of ``epoch`` end in your log? (KIP-101, KIP-279)."""

    follower: BrokerId
    broker_epoch: BrokerEpoch
    leader_epoch: LeaderEpoch
    request_id: int
    epoch: LeaderEpoch


@dataclass(frozen=True, slots=True, kw_only=True)
class EpochEndAnswer:
    """The newest epoch at or below the asked one that the leader's log has, and its end."""

    leader_epoch: LeaderEpoch
    request_id: int
    epoch: LeaderEpoch  # as asked
    known_epoch: LeaderEpoch = LeaderEpoch(0)  # noqa: RUF009 - a plain number
    end: Offset = Offset(0)  # noqa: RUF009 - a plain number
    refusal: Refusal | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class FetchRequest:
    """Send what follows ``fetch_from``; and: my log is durable below ``synced_end``."""

    follower: BrokerId
    broker_epoch: BrokerEpoch
    leader_epoch: LeaderEpoch
    request_id: int
    fetch_from: Offset
    last_epoch: LeaderEpoch  # of the record before ``fetch_from``; 0 at the start of the log
    synced_end: Offset
    wait_ms: int = 0  # park the request this long when there is nothing; 0: answer, notify later


@dataclass(frozen=True, slots=True, kw_only=True)
class LogPrefix:
    """What a follower has to know of records that are in the table and no log any more."""

    epochs: tuple[tuple[LeaderEpoch, Offset], ...]  # who wrote them, and from where on
    producers: bytes  # the newest batches of each producer among them


@dataclass(frozen=True, slots=True, kw_only=True)
class FetchAnswer:
    """Batches from ``start`` on, and how far the leader is.

    Refused with ``below_start``, ``start`` is where the leader's log begins and ``prefix`` what
    was before: the follower has to begin anew there.
    """

    leader_epoch: LeaderEpoch
    request_id: int
    start: Offset
    high_watermark: Offset
    log_end: Offset
    batches: Sequence[Any] = ()  # of CarriedBatch
    refusal: Refusal | None = None
    prefix: LogPrefix | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class NewDataNotice:
    """There is something to fetch again."""

    leader_epoch: LeaderEpoch


ReplicaMessage = EpochEndRequest | EpochEndAnswer | FetchRequest | FetchAnswer | NewDataNotice


def size_of(message: ReplicaMessage) -> int:
    """Return what a message costs whoever keeps it, about, in bytes."""
    return (
        sum(one.header.size for one in message.batches) if isinstance(message, FetchAnswer) else 0
    )
