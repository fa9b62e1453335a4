"""Writes that one broker hands to the broker that leads the partition, and their outcome.

A publisher may write to any broker. The outcome of a write that was handed over may be lost on the
way. Then the publisher gets CommitTimeoutError, because the write may have been stored.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from broker.errors import HeadwaterError
from broker.model.ids import PartitionId
from broker.model.offsets import Offset
from broker.model.records import AckPolicy


@dataclass(frozen=True, slots=True, kw_only=True)
class WriteForwarded:
    """Rows of one partition for its leader. ``rows``: one Arrow IPC stream of one batch."""

    request_id: int
    partition_id: PartitionId
    policy: AckPolicy
    expected_end: Offset | None
    rows: bytes


@dataclass(frozen=True, slots=True, kw_only=True)
class WriteAnswered:
    """The outcome: an offset for each row, or why nothing was stored."""

    request_id: int
    offsets: Sequence[Offset] = ()
    leader_epoch: int = 0
    refused: HeadwaterError | None = None


ForwardingMessage = WriteForwarded | WriteAnswered
