"""The Python client: streams, producers, reads, leases and cuts over Arrow Flight."""

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
