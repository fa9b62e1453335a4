"""A client of Liftbridge's API, for Liftbridge and for Headwater: synchronous and for asyncio."""

from broker.model.records import AckPolicy
from headwater.liftbridge.async_client import AsyncLiftbridge
from headwater.liftbridge.client import Liftbridge, LiftConsumer, Subscription
from headwater.liftbridge.groups import AsyncLiftConsumer
from headwater.liftbridge.partitioners import Partitioner, RoundRobin, by_key
from headwater.liftbridge.values import (
    Message,
    Metadata,
    PartitionDescription,
    PublishAck,
    Since,
    StreamInfo,
    StreamOptions,
    Tls,
    Until,
)

__all__ = [
    "AckPolicy",
    "AsyncLiftConsumer",
    "AsyncLiftbridge",
    "LiftConsumer",
    "Liftbridge",
    "Message",
    "Metadata",
    "PartitionDescription",
    "Partitioner",
    "PublishAck",
    "RoundRobin",
    "Since",
    "StreamInfo",
    "StreamOptions",
    "Subscription",
    "Tls",
    "Until",
    "by_key",
]
