"""Epochs: counters that only grow. A request with an old epoch is refused (fenced)."""

from __future__ import annotations

from dataclasses import dataclass
from typing import NewType

from broker.model.offsets import Offset

LeaderEpoch = NewType("LeaderEpoch", int)  # grows only when a partition changes leader; first is 1
PartitionEpoch = NewType("PartitionEpoch", int)  # grows at every change of leader or ISR
BrokerEpoch = NewType("BrokerEpoch", int)  # grows at every start of a broker


@dataclass(frozen=True, slots=True, order=True)
class EpochStart:
    """The first offset that a leader epoch wrote. Source: KIP-101."""

    leader_epoch: LeaderEpoch
    start_offset: Offset
