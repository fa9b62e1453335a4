"""NATS ingest as the daemon wires it, over an in-memory broker, on an event loop of its own.

Tests stay plain blocking code: the loop runs in a thread, :meth:`IngestRig.run` waits for it.
"""

from __future__ import annotations

import asyncio
import threading
import time
from collections.abc import Callable, Coroutine
from dataclasses import replace
from types import TracebackType
from typing import Any, Self, TypeVar

from broker.adapters.clock import SystemClock
from broker.adapters.nats.liftbridge_messages import decode_publish, encode_ack
from broker.adapters.nats.transport import NatsTransport
from broker.codec.record_batch import decode_body
from broker.config import NatsConfig
from broker.model.offsets import Offset
from broker.model.stream import Stream, StreamConfig
from broker.runtime.ingest.nats_ingest import IngestLimits, NatsIngest
from broker.runtime.ingest.nats_partition import IngestStats
from simkit.brokers.memory_broker import MemoryBroker

_Result = TypeVar("_Result")

_RUN_TIMEOUT_S = 60.0


class IngestRig:
    """One broker's ingest with its connection. A context manager that starts and drains."""

    def __init__(
        self,
        config: NatsConfig,
        *,
        limits: IngestLimits | None = None,
        queue_batches_max: int = 10_000,
        later_timeout_ms: int | None = None,
    ) -> None:
        """Prepare; nothing runs before the ``with`` block.

        ``later_timeout_ms`` takes the place of ``connect_timeout_ms`` once there was a connection.
        """
        self.broker = MemoryBroker(queue_batches_max=queue_batches_max)
        self.crashes: list[BaseException] = []
        self.ingest = NatsIngest(
            clock=SystemClock(), decode_publish=decode_publish, encode_ack=encode_ack, limits=limits
        )
        self.transport = NatsTransport(
            config, client_name="rig", sink=self.ingest, on_crash=self.crashes.append
        )
        self.ingest.attach(self.transport)
        self._loop = asyncio.new_event_loop()
        self._thread = threading.Thread(target=self._loop.run_forever, name="rig", daemon=True)
        self._stopped = False
        self._later_timeout_ms = later_timeout_ms

    def run(self, coroutine: Coroutine[Any, Any, _Result]) -> _Result:
        """Run a coroutine on the rig's loop and return its result."""
        return asyncio.run_coroutine_threadsafe(coroutine, self._loop).result(_RUN_TIMEOUT_S)

    def add_stream(self, name: str, **config: Any) -> Stream:
        """Create a stream and listen for it; its subject is its name unless given."""
        stream = self.broker.streams.create(name, StreamConfig(**{"subject": name, **config}))
        handles = [
            self.broker.partitions.handle(name, number)
            for number in range(stream.config.partitions)
        ]
        self.run(self.ingest.serve(stream, dict(enumerate(handles))))
        return stream

    def rows(self, name: str, partition: int = 0) -> list[dict[str, Any]]:
        """Return every stored record's columns, absent ones left out."""
        handle = self.broker.partitions.handle(name, partition)
        batches = handle.read(Offset(0), handle.log_end, bytes_max=1 << 40)
        rows: list[dict[str, Any]] = []
        for batch in batches:
            rows += decode_body(batch.header, batch.body).to_pylist()
        return rows

    def values(self, name: str, partition: int = 0) -> list[bytes]:
        """Return every stored value."""
        return [row.get("value", b"") for row in self.rows(name, partition)]

    def stats(self, name: str, partition: int = 0) -> IngestStats:
        """Return one partition's counters."""
        return next(
            one for one in self.ingest.stats() if one.stream == name and one.partition == partition
        )

    def wait(self, condition: Callable[[], bool], what: str, *, timeout_s: float = 60.0) -> None:
        """Wait until a condition that other threads bring about holds."""
        end_s = time.monotonic() + timeout_s
        while not condition():
            assert time.monotonic() < end_s, f"waited {timeout_s} s for: {what}"
            time.sleep(0.005)

    def stop(self, *, drain: bool = True) -> None:
        """Stop ingest; the ``with`` block does it, too."""
        if not self._stopped:
            self._stopped = True
            self.run(self.ingest.stop(drain))

    def __enter__(self) -> Self:
        self._thread.start()
        try:
            self.run(self.ingest.start())
        except BaseException:
            self._stopped = True
            self._close()
            raise
        if self._later_timeout_ms is not None:
            config = replace(self.transport._config, connect_timeout_ms=self._later_timeout_ms)
            self.transport._config = config
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        try:
            self.stop(drain=kind is None)
        finally:
            self._close()
        if kind is None:
            assert self.crashes == []

    def _close(self) -> None:
        self._loop.call_soon_threadsafe(self._loop.stop)
        self._thread.join(timeout=10)
        self._loop.close()
        self.broker.close()
