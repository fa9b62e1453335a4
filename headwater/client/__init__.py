"""The Python client: streams, producers, reads, leases and cuts over Arrow Flight."""

from headwater.client.client import Client, PartitionPosition, StreamDescription
from headwater.client.fetch import Fetch, Fetched
from headwater.client.producer import Producer

__all__ = [
    "Client",
    "Fetch",
    "Fetched",
    "PartitionPosition",
    "Producer",
    "StreamDescription",
]
