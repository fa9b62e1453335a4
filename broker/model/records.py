"""A single record, the ack policies of publishers, and the result of an append."""

from __future__ import annotations

from dataclasses import dataclass
from enum import Enum

from broker.model.epochs import LeaderEpoch
from broker.model.offsets import Offset

Headers = tuple[tuple[str, bytes], ...]  # order kept; a name may occur more than once


class AckPolicy(Enum):
    """When a publisher gets its acknowledgement. Source: Liftbridge's AckPolicy."""

    NONE = "none"  # never
    LEADER = "leader"  # the leader's log has it on disk
    ALL = "all"  # every in-sync replica has it on disk


@dataclass(frozen=True, slots=True, kw_only=True)
class Record:
    """One record as a Python object, for people; fast paths use Arrow batches instead."""

    partition: int
    offset: Offset
    timestamp_us: int  # UTC, since 1970
    key: bytes | None
    value: bytes | None  # None is a tombstone
    headers: Headers
    subject: str
    reply_subject: str | None = None
    correlation_id: str | None = None
    leader_epoch: LeaderEpoch


@dataclass(frozen=True, slots=True)
class AppendResult:
    """The offsets of a stored batch, which is as durable as its ack policy says.

    Under ack policy NONE the offsets are not known: ``base_offset`` is -1.
    """

    base_offset: Offset
    records_count: int
    leader_epoch: LeaderEpoch
    duplicate: bool = False  # a retry: the batch was stored before, at these offsets
    acks: AckPolicy = AckPolicy.ALL  # as the client asked; the broker does not set this field
