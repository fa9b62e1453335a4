"""The rule that decides what is committed."""

from __future__ import annotations

from collections.abc import Mapping
from collections.abc import Set as AbstractSet

from broker.model.ids import BrokerId
from broker.model.offsets import Offset


def high_watermark(synced_ends: Mapping[BrokerId, Offset], isr: AbstractSet[BrokerId]) -> Offset:
    """Return the first offset that is not yet committed (exclusive bound).

    Invariant: every record below the result is on stable storage of every in-sync replica.
    Source: Kafka replication design; KIP-101 for what this bound must *not* decide.
    """
    assert isr, "a partition with an empty ISR has no leader to ask"
    assert isr <= synced_ends.keys(), "every in-sync replica must have reported once"
    return min(synced_ends[replica] for replica in isr)
