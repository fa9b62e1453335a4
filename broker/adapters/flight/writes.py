"""Serving one do_put: the threads around its session, which served_put.py describes.

If the client waits for each answer, a batch is stored and answered on the call's own thread. If the
client sends batches ahead, two threads work. The reader (the call's own thread) checks, encodes and
submits batches without waiting until one is durable, so that many batches form one group commit.
The acknowledger waits for outcomes and sends them. A client that does not read its answers blocks
only the acknowledger, never the commit thread. The batches that are received and not yet answered
are bounded in bytes and in number: above the bound the reader stops reading.

Under ack policy NONE only refusals are answered. The first frame then says that the call itself is
not refused: without this frame a producer would send batches to a broker that does not lead.
"""

from __future__ import annotations

import threading
import time
from collections.abc import Callable, Iterator
from queue import Empty, SimpleQueue
from typing import Protocol

import pyarrow as pa

from broker.adapters.flight.config import FlightServiceConfig
from broker.adapters.flight.served_put import News, Outcome, ServedPut
from broker.errors import CommitTimeoutError, HeadwaterError
from broker.model.records import AckPolicy
from broker.ports.partition import PartitionHandle
from broker.ports.system import Clock


class AckSink(Protocol):
    """Receives acknowledgements; ``write`` may block, and raises OSError or Arrow's errors."""

    def write(self, frame: bytes) -> None:
        """Send one frame."""


class PutStream:
    """One do_put from its schema to its last acknowledgement.

    Raises:
        SchemaMismatchError: a record does not have these columns; no batch was read.
    """

    def __init__(
        self,
        handle: PartitionHandle,
        schema: pa.Schema,
        sink: AckSink,
        *,
        clock: Clock,
        config: FlightServiceConfig,
        explain: Callable[[HeadwaterError], HeadwaterError] = lambda error: error,
        policy: AckPolicy = AckPolicy.ALL,
        placed_by: int | None = None,
    ) -> None:
        self._sink = sink
        self._sink_lock = threading.Lock()
        self._config = config
        self._news: SimpleQueue[News] = SimpleQueue()
        self._room = threading.Condition()  # notified after each answer
        self._session = ServedPut(
            handle,
            schema,
            write=self._write,
            tell=self._news.put,
            clock=clock,
            config=config,
            explain=explain,
            policy=policy,
            placed_by=placed_by,
        )
        self._acknowledger = threading.Thread(
            target=self._acknowledge, name="flight-acks", daemon=True
        )

    def run(self, chunks: Iterator[tuple[pa.RecordBatch | None, bytes | None]]) -> None:
        """Serve the stream until its client has finished it; blocks.

        Raises:
            CommitTimeoutError: the last outcomes did not come in time; whatever ended ``chunks``.
            Exception: an error of ``chunks``, after all outcomes are known.
        """
        session = self._session
        session.begin()
        self._acknowledger.start()
        try:
            asked_s = time.perf_counter()
            for batch, metadata in chunks:
                # A received batch has its own buffers: this sum is exact, and quicker than nbytes.
                size = batch.get_total_buffer_size() if batch is not None else 0
                waited_s = time.perf_counter() - asked_s
                if session.comes_alone(size, waited_s * 1e6):
                    self._take_alone(batch, metadata, size)
                else:
                    self._take(batch, metadata, size)
                asked_s = time.perf_counter()
        finally:
            session.finish()
            self._acknowledger.join(self._config.commit_timeout_ms / 1000)
            if self._acknowledger.is_alive():  # instead of an error that says "not stored"
                raise CommitTimeoutError(
                    f"{session.inflight_batches} batches were not durable within "
                    f"{self._config.commit_timeout_ms} ms",
                    timeout_ms=self._config.commit_timeout_ms,
                )

    def close(self) -> None:
        """Refuse further batches, and ask the client to finish its stream. Any thread."""
        self._session.close()

    # ------------------------------------------------------------------ the reader's thread

    def _take(self, batch: pa.RecordBatch | None, metadata: bytes | None, size: int) -> None:
        """Submit one batch; wait for room before, and for the partition's queue if it is full."""
        session = self._session
        with self._room:
            while not session.has_room(size):
                self._room.wait()
        if not session.take(batch, metadata, size):
            with self._room:
                self._room.wait_for(lambda: session.inflight_batches == 1)
            session.take_held()

    def _take_alone(self, batch: pa.RecordBatch | None, metadata: bytes | None, size: int) -> None:
        """Store and answer one batch on this thread."""
        outcomes: SimpleQueue[Outcome] = SimpleQueue()
        self._session.take_alone(batch, metadata, size, outcomes.put)
        try:
            outcome = outcomes.get(timeout=self._config.commit_timeout_ms / 1000)
        except Empty:
            outcome = CommitTimeoutError(
                f"the batch was not durable within {self._config.commit_timeout_ms} ms",
                timeout_ms=self._config.commit_timeout_ms,
            )
        self._session.answer(outcome)

    # ------------------------------------------------------------------ the acknowledger

    def _acknowledge(self) -> None:
        """Write outcomes in the order of their batches until the end is reached."""
        session = self._session
        while not session.is_over:
            session.heard(self._news.get())
            with self._room:
                self._room.notify()

    def _write(self, frame: bytes) -> None:
        """Send a frame; after the client has disconnected, drop it."""
        with self._sink_lock:
            try:
                self._sink.write(frame)
            except (OSError, pa.ArrowException):
                self._sink = _Nowhere()


class _Nowhere:
    """The sink for a client that has disconnected; the reader's thread notices it by itself."""

    def write(self, frame: bytes) -> None:
        """Drop the frame."""
