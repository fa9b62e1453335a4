"""Addresses of brokers and brokers of partitions, from a state of the metadata. Pure."""

from __future__ import annotations

from broker.core.metadata.state import MetadataState
from broker.model.ids import BrokerId, StreamUuid
from broker.ports.api import BrokerPlace, PartitionPlace


def brokers_in(state: MetadataState) -> list[BrokerPlace]:
    """Return every registered broker, by name."""
    return [
        BrokerPlace(
            broker=BrokerId(name),
            flight=one.addresses.get("flight"),
            alive=not one.fenced,
            addresses=one.addresses,
        )
        for name, one in sorted(state.brokers.items())
    ]


def places_in(state: MetadataState, uuid: StreamUuid) -> list[PartitionPlace]:
    """Return the brokers of each partition of a stream, by number; empty if there is no stream."""
    return [
        PartitionPlace(
            partition=number,
            leader=one.leader,
            leader_epoch=one.leader_epoch,
            replicas=one.replicas,
            isr=one.isr,
            purged_end=one.purged_end,
            remote_start=one.remote_start,
            paused=one.paused,
            readonly=one.readonly,
            pause_us=(one.pause_first_us, one.pause_latest_us),
            readonly_us=(one.readonly_first_us, one.readonly_latest_us),
        )
        for number, one in enumerate(state.partitions.get(uuid, ()))
    ]
