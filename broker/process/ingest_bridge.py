"""Passes the partitions that this broker leads from its threads to the ingest from NATS."""

from __future__ import annotations

import asyncio

import structlog

from broker.errors import UnavailableError
from broker.ports.partition import PartitionWriter
from broker.runtime.hosted_partitions import HostedPartitions
from broker.runtime.ingest.nats_ingest import NatsIngest
from broker.runtime.led import LedPartitions

_log = structlog.get_logger(__name__)


class IngestBridge:
    """Lets the broker's threads start and stop subscriptions that live on the event loop."""

    def __init__(
        self, ingest: NatsIngest, replicas: HostedPartitions, loop: asyncio.AbstractEventLoop
    ) -> None:
        self._ingest = ingest
        self._replicas = replicas
        self._loop = loop

    def led_changed(self, led: LedPartitions) -> None:
        """Subscribe to the partitions that this broker leads; blocks until that is done."""
        here = [self._replicas.find(one) for one in led.partition_ids()]
        logs: dict[int, PartitionWriter] = {
            one.partition_id.number: one.writes for one in here if one is not None
        }
        coroutine = self._ingest.serve(led.stream, logs)
        try:
            asyncio.run_coroutine_threadsafe(coroutine, self._loop).result()
        except UnavailableError as error:  # ingest subscribes by itself when NATS is back
            _log.warning("subscription_delayed", stream=led.stream.name, reason=error.message)

    def stop(self) -> None:
        """Stop ingest; messages that were read are stored and answered first. Blocks."""
        asyncio.run_coroutine_threadsafe(self._ingest.stop(drain=True), self._loop).result()
