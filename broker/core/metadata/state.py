"""What the cluster knows: streams, leader epochs, cold ends, leases. Immutable values."""

from __future__ import annotations

import dataclasses
import json
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any, Final

from broker.errors import HeadwaterError, MetadataCorruptError
from broker.model.epochs import BrokerEpoch, LeaderEpoch
from broker.model.ids import BrokerId, LeaseId, StreamUuid
from broker.model.offsets import Offset
from broker.model.stream import Stream

STATE_VERSION: Final = 1


@dataclass(frozen=True, slots=True, kw_only=True)
class PartitionState:
    """The replicated facts of one partition."""

    leader: BrokerId
    leader_epoch: LeaderEpoch
    cold_end: Offset  # in the table, read back and in the ledger


@dataclass(frozen=True, slots=True, kw_only=True)
class LeaseState:
    """A reader's hold: no segment that ends above ``floors[p]`` is freed before it expires."""

    stream_uuid: StreamUuid
    owner: str
    expires_us: int
    floors: tuple[Offset, ...]  # by partition


@dataclass(frozen=True, slots=True, kw_only=True)
class MetadataState:
    """Everything that commands change. Copied on change, shared otherwise."""

    broker_epochs: Mapping[BrokerId, BrokerEpoch] = field(default_factory=dict)
    streams: Mapping[str, Stream] = field(default_factory=dict)  # by name
    partitions: Mapping[StreamUuid, tuple[PartitionState, ...]] = field(default_factory=dict)
    leases: Mapping[LeaseId, LeaseState] = field(default_factory=dict)

    def to_json(self) -> str:
        """Return canonical text: equal states give equal text on every node."""
        body = {"v": STATE_VERSION, **dataclasses.asdict(self)}
        return json.dumps(body, sort_keys=True, separators=(",", ":"))

    @classmethod
    def from_json(cls, text: str) -> MetadataState:
        """Rebuild from :meth:`to_json`; raises MetadataCorruptError for anything else."""
        try:
            body: dict[str, Any] = json.loads(text)
            if body["v"] != STATE_VERSION:
                raise MetadataCorruptError(f"metadata version {body['v']!r} is not known")
            return cls(
                broker_epochs=body["broker_epochs"],
                streams={name: Stream.from_dict(one) for name, one in body["streams"].items()},
                partitions={
                    uuid: tuple(PartitionState(**one) for one in rows)
                    for uuid, rows in body["partitions"].items()
                },
                leases={
                    lease: LeaseState(**{**one, "floors": tuple(one["floors"])})
                    for lease, one in body["leases"].items()
                },
            )
        except (ValueError, KeyError, TypeError, AttributeError, HeadwaterError) as cause:
            raise MetadataCorruptError(f"metadata is not readable: {cause}") from cause
