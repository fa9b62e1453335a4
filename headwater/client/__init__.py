"""The Python client: streams, producers, reads, leases and cuts over Arrow Flight.

A name is loaded when it is first used: a command that reads needs no producer and no asyncio.
"""

from __future__ import annotations

import importlib
from typing import TYPE_CHECKING

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
    "AssignedPartition": "group.records",
    "AsyncClient": "async_client",
    "AsyncGroupConsumer": "async_client",
    "AsyncProducer": "async_client",
    "Client": "client",
    "Consumed": "consumer",
    "Consumer": "consumer",
    "Fetch": "fetch",
    "Fetched": "fetch",
    "GroupBatch": "group.records",
    "GroupConsumer": "group.consumer",
    "GroupRecord": "group.records",
    "PartitionPosition": "descriptions",
    "PartitionedProducer": "partitioned_producer",
    "Producer": "producer",
    "StreamDescription": "descriptions",
}


if not TYPE_CHECKING:  # a checker would believe every name, misspelt ones too

    def __getattr__(name: str) -> object:
        """Import the module that defines ``name`` and return it."""
        home = _HOMES.get(name)
        if home is None:
            raise AttributeError(f"module 'headwater.client' has no attribute {name!r}")
        return getattr(importlib.import_module(f"headwater.client.{home}"), name)

    def __dir__() -> list[str]:
        """Return the public names, too, although they are not loaded yet."""
        return sorted({*globals(), *__all__})
