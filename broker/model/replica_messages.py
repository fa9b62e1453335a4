"""Messages between replicas of a partition. A transport carries them and decides nothing.

Every message names the leader epoch of its sender, and every request the broker epoch of its
sender. A message of another epoch is refused or dropped.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any, Final, Literal

from broker.model.epochs import BrokerEpoch, LeaderEpoch
from broker.model.ids import BrokerId
from broker.model.offsets import Offset

STANDING_MS_MIN: Final = 60_000

# Why a leader refuses a request.
Refusal = Literal[
    "not_leader", "fenced_epoch", "unknown_epoch", "fenced_broker", "diverged", "below_start"
]


@dataclass(frozen=True, slots=True, kw_only=True)
class EpochEndRequest:
    """A follower asks where the records of ``epoch`` end in the leader's log (KIP-101, KIP-279)."""

    follower: BrokerId
    broker_epoch: BrokerEpoch
    leader_epoch: LeaderEpoch
    request_id: int
    epoch: LeaderEpoch


@dataclass(frozen=True, slots=True, kw_only=True)
class EpochEndAnswer:
    """The newest epoch of the leader's log that is not above the asked epoch, and its end."""

    leader_epoch: LeaderEpoch
    request_id: int
    epoch: LeaderEpoch  # as in the request
    known_epoch: LeaderEpoch = LeaderEpoch(0)  # noqa: RUF009 - a plain number
    end: Offset = Offset(0)  # noqa: RUF009 - a plain number
    refusal: Refusal | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class FetchRequest:
    """A follower asks for records from ``fetch_from``; it has synced its log to ``synced_end``."""

    follower: BrokerId
    broker_epoch: BrokerEpoch
    leader_epoch: LeaderEpoch
    request_id: int
    fetch_from: Offset
    last_epoch: LeaderEpoch  # of the record before ``fetch_from``; 0 at the start of the log
    synced_end: Offset
    # If there is nothing to send, the leader keeps the request this long; with 0 it answers at
    # once and sends a NewDataNotice later.
    wait_ms: int = 0

    @property
    def stands(self) -> bool:
        """Whether it waits so long that roll calls have to show that its sender lives."""
        return self.wait_ms >= STANDING_MS_MIN


@dataclass(frozen=True, slots=True, kw_only=True)
class LogPrefix:
    """The facts about records that are only in the table, which a follower must know."""

    epochs: tuple[tuple[LeaderEpoch, Offset], ...]  # epoch history of these records
    producers: bytes  # each producer's newest batches among these records


@dataclass(frozen=True, slots=True, kw_only=True)
class FetchAnswer:
    """Batches from ``start`` on, and the leader's high watermark and log end.

    If ``refusal`` is ``below_start``, the leader's log begins above the requested offset: ``start``
    is its log start and ``prefix`` describes the records before. The follower must begin a new log
    at ``start``. With ``start`` 0, key compaction has removed tombstones from the leader's log that
    the follower might need: it copies the whole log again.
    """

    leader_epoch: LeaderEpoch
    request_id: int
    start: Offset
    high_watermark: Offset
    log_end: Offset
    batches: Sequence[Any] = ()  # of ports.partition.StoredBatch
    refusal: Refusal | None = None
    prefix: LogPrefix | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class NewDataNotice:
    """The leader tells a follower that there are new records to fetch."""

    leader_epoch: LeaderEpoch


ReplicaMessage = EpochEndRequest | EpochEndAnswer | FetchRequest | FetchAnswer | NewDataNotice


def size_of(message: ReplicaMessage) -> int:
    """Return about how many bytes of memory a queued message takes."""
    return (
        sum(one.header.size for one in message.batches) if isinstance(message, FetchAnswer) else 0
    )
