"""The Python client: streams, producers, reads, leases and cuts over Arrow Flight.

A name is loaded when it is first used: a command that reads needs no producer and no asyncio.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from headwater.lazy_names import lazy_names

if TYPE_CHECKING:
    from headwater.client.async_client import AsyncClient, AsyncGroupConsumer, AsyncProducer
    from headwater.client.client import Client
    from headwater.client.consumer import Consumed, Consumer
    from headwater.client.descriptions import PartitionPosition, StreamDescription
    from headwater.client.fetch import Fetch, Fetched
    from headwater.client.group.consumer import GroupConsumer
    from headwater.client.group.records import AssignedPartition, GroupBatch, GroupRecord
    from headwater.client.partitioned_producer import PartitionedProducer
    from headwater.client.producer import Producer

__all__ = [
    "AssignedPartition",
    "AsyncClient",
    "AsyncGroupConsumer",
    "AsyncProducer",
    "Client",
    "Consumed",
    "Consumer",
    "Fetch",
    "Fetched",
    "GroupBatch",
    "GroupConsumer",
    "GroupRecord",
    "PartitionPosition",
    "PartitionedProducer",
    "Producer",
    "StreamDescription",
]

_HOMES = {
    "AssignedPartition": "headwater.client.group.records",
    "AsyncClient": "headwater.client.async_client",
    "AsyncGroupConsumer": "headwater.client.async_client",
    "AsyncProducer": "headwater.client.async_client",
    "Client": "headwater.client.client",
    "Consumed": "headwater.client.consumer",
    "Consumer": "headwater.client.consumer",
    "Fetch": "headwater.client.fetch",
    "Fetched": "headwater.client.fetch",
    "GroupBatch": "headwater.client.group.records",
    "GroupConsumer": "headwater.client.group.consumer",
    "GroupRecord": "headwater.client.group.records",
    "PartitionPosition": "headwater.client.descriptions",
    "PartitionedProducer": "headwater.client.partitioned_producer",
    "Producer": "headwater.client.producer",
    "StreamDescription": "headwater.client.descriptions",
}


if not TYPE_CHECKING:  # a checker would believe every name, misspelt ones too
    __getattr__, __dir__ = lazy_names(__name__, globals(), _HOMES)
