"""Serving one do_put: batches in, acknowledgements out in the same order, pipelined.

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
from collections.abc import Callable, Iterator, Sequence
from queue import Empty, SimpleQueue
from typing import Protocol

import pyarrow as pa

from broker.adapters.flight.config import FlightServiceConfig
from broker.codec.flight.protocol import (
    decode_put_mark,
    encode_ack,
    encode_closing,
    encode_ready,
)
from broker.codec.record_batch import PreparedBatch, Preparer
from broker.codec.record_sizes import check_record_sizes
from broker.errors import (
    CommitTimeoutError,
    HeadwaterError,
    InvalidRequestError,
    OverloadedError,
    RecordTooLargeError,
    SchemaMismatchError,
    ShuttingDownError,
)
from broker.model.ids import NO_PRODUCER
from broker.model.records import AckPolicy, AppendResult
from broker.model.stream import StreamConfig
from broker.ports.partition import PartitionHandle
from broker.ports.system import Clock

_Outcome = AppendResult | HeadwaterError


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
    ) -> None:
        self._policy = policy
        self._explain = explain  # completes an error for the client
        self._schema = schema
        self._handle = handle
        self._stream_config = handle.config
        self._preparer = Preparer(schema, codec=self._stream_config.compression)
        self._sink = sink
        self._sink_lock = threading.Lock()
        self._clock = clock
        self._config = config
        # (place, size, outcome). A size of -1 means no batch: the outcome is then None (the end) or
        # a frame to send.
        self._outcomes: SimpleQueue[tuple[int, int, _Outcome | bytes | None]] = SimpleQueue()
        self._room = threading.Condition()
        self._inflight_bytes = 0
        self._inflight_batches = 0
        self._places = 0
        self._closing = False
        self._acknowledger = threading.Thread(
            target=self._acknowledge, name="flight-acks", daemon=True
        )

    def run(self, chunks: Iterator[tuple[pa.RecordBatch | None, bytes | None]]) -> None:
        """Serve the stream until its client has finished it; blocks.

        Raises:
            CommitTimeoutError: the last outcomes did not come in time.
            Exception: an error of ``chunks``, after all outcomes are known.
        """
        if self._policy is AckPolicy.NONE:
            self._write(encode_ready())
        self._acknowledger.start()
        try:
            in_a_row = 0
            asked_s = time.perf_counter()
            for batch, metadata in chunks:
                # A received batch has its own buffers: this sum is exact, and quicker than nbytes.
                size = batch.get_total_buffer_size() if batch is not None else 0
                waited_s = time.perf_counter() - asked_s
                alone = (
                    self._inflight_batches == 0
                    and size <= self._config.put_alone_bytes_max
                    and waited_s * 1e6 >= self._config.put_alone_wait_us
                )
                # A client that sends ahead may also have one batch alone, but not many in a row.
                in_a_row = in_a_row + 1 if alone else 0
                lone_client = in_a_row > self._config.put_alone_after
                take = self._take_alone if lone_client else self._take
                take(batch, metadata, size)
                asked_s = time.perf_counter()
        finally:
            self._outcomes.put((self._places, -1, None))
            self._acknowledger.join(self._config.commit_timeout_ms / 1000)
        if self._acknowledger.is_alive():
            raise CommitTimeoutError(
                f"{self._inflight_batches} batches were not durable within "
                f"{self._config.commit_timeout_ms} ms",
                timeout_ms=self._config.commit_timeout_ms,
            )

    def close(self) -> None:
        """Refuse further batches, and ask the client to finish its stream. Any thread."""
        self._closing = True
        self._outcomes.put((-1, -1, encode_closing()))

    # ------------------------------------------------------------------ the reader's thread

    def _take(self, batch: pa.RecordBatch | None, metadata: bytes | None, size: int) -> None:
        """Check, encode and submit one batch; its outcome gets the next place in the answers."""
        self._wait_for_room(size)
        place = self._places
        self._places += 1
        try:
            self._submit(self._prepare(batch, metadata, size), place, size)
        except HeadwaterError as error:
            self._outcomes.put((place, size, error))

    def _take_alone(self, batch: pa.RecordBatch | None, metadata: bytes | None, size: int) -> None:
        """Store and answer one batch on this thread: its client seems to wait for the answer.

        If the client sent ahead, its next batch would have arrived already, and its batches would
        form groups. All earlier batches are answered, so the order of answers is kept.
        """
        outcomes: SimpleQueue[Sequence[_Outcome]] = SimpleQueue()
        try:
            prepared = self._prepare(batch, metadata, size)
            self._handle.writes.submit(
                [prepared], outcomes.put, may_block=True, policy=self._policy
            )
            outcome = outcomes.get(timeout=self._config.commit_timeout_ms / 1000)[0]
        except HeadwaterError as error:
            outcome = error
        except Empty:
            outcome = CommitTimeoutError(
                f"the batch was not durable within {self._config.commit_timeout_ms} ms",
                timeout_ms=self._config.commit_timeout_ms,
            )
        self._answer(outcome)

    def _wait_for_room(self, size: int) -> None:
        with self._room:
            while not self._has_room(size):
                self._room.wait()
            self._inflight_bytes += size
            self._inflight_batches += 1

    def _has_room(self, size: int) -> bool:
        return self._inflight_batches == 0 or (
            self._inflight_batches < self._config.put_inflight_batches_max
            and self._inflight_bytes + size <= self._config.put_inflight_bytes_max
        )

    def _prepare(
        self, batch: pa.RecordBatch | None, metadata: bytes | None, size: int
    ) -> PreparedBatch:
        if self._closing:
            raise ShuttingDownError("the broker is closing")
        if batch is None:
            raise InvalidRequestError("a message of do_put must have records", field="data")
        if size > self._config.put_batch_bytes_max:
            raise RecordTooLargeError(
                f"a batch of {size} bytes exceeds {self._config.put_batch_bytes_max} bytes "
                "(put_batch_bytes_max)",
                size_bytes=size,
                limit_bytes=self._config.put_batch_bytes_max,
            )
        producer_id, base_sequence = decode_put_mark(metadata)
        if producer_id != NO_PRODUCER and self._policy is not AckPolicy.ALL:
            raise InvalidRequestError(
                f"a batch with a producer id cannot have ack policy {self._policy.value}: if the "
                "leader lost the batch, the producer's next batch would be refused as a gap",
                field="app_metadata",
            )
        self._follow_settings()
        validate(batch)
        check_subjects(batch, self._stream_config)
        if size > self._stream_config.record_bytes_max:
            check_record_sizes(batch, record_bytes_max=self._stream_config.record_bytes_max)
        return self._preparer.prepare(
            batch,
            now_us=self._clock.now_us(),
            producer_id=producer_id,
            base_sequence=base_sequence,
        )

    def _follow_settings(self) -> None:
        """Obey the stream's present settings: they may have been changed since the last batch."""
        config = self._handle.config
        if config is not self._stream_config:
            self._stream_config = config
            self._preparer = Preparer(self._schema, codec=config.compression)

    def _submit(self, prepared: PreparedBatch, place: int, size: int) -> None:
        done = self._done(place, size)
        try:
            self._handle.writes.submit([prepared], done, policy=self._policy)
        except OverloadedError:
            # Wait until this call's own batches are done: the queue drains. Then retry once.
            with self._room:
                self._room.wait_for(lambda: self._inflight_batches == 1)
            self._handle.writes.submit([prepared], done, policy=self._policy)

    def _done(self, place: int, size: int) -> Callable[[Sequence[_Outcome]], None]:
        def done(outcomes: Sequence[_Outcome]) -> None:  # on the commit thread: must not block
            self._outcomes.put((place, size, outcomes[0]))

        return done

    # ------------------------------------------------------------------ the acknowledger

    def _acknowledge(self) -> None:
        """Write outcomes in the order of their batches until the end is reached."""
        early: dict[int, tuple[int, _Outcome]] = {}
        place = 0
        end: int | None = None
        while end is None or place < end:
            came, size, outcome = self._outcomes.get()
            if outcome is None:
                end = came
            elif isinstance(outcome, bytes):
                self._write(outcome)
            else:
                early[came] = (size, outcome)
            while place in early:
                size, answer = early.pop(place)
                self._answer(answer)
                self._make_room(size)
                place += 1

    def _answer(self, outcome: _Outcome) -> None:
        if isinstance(outcome, HeadwaterError):
            outcome = self._explain(outcome)
        elif self._policy is AckPolicy.NONE:
            return  # under NONE the client expects no ack, and an ack would promise too much
        self._write(encode_ack(outcome))

    def _write(self, frame: bytes) -> None:
        """Send a frame; after the client has disconnected, drop it."""
        with self._sink_lock:
            try:
                self._sink.write(frame)
            except (OSError, pa.ArrowException):
                self._sink = _Nowhere()

    def _make_room(self, size: int) -> None:
        with self._room:
            self._inflight_bytes -= size
            self._inflight_batches -= 1
            self._room.notify()


class _Nowhere:
    """The sink for a client that has disconnected; the reader's thread notices it by itself."""

    def write(self, frame: bytes) -> None:
        """Drop the frame."""


def check_subjects(batch: pa.RecordBatch, config: StreamConfig) -> None:
    """Refuse records whose subject the stream does not record; a null subject is the partition's.

    Raises:
        InvalidRequestError: with the fact subject.
    """
    if "subject" not in batch.schema.names:
        return
    column = batch.column("subject")
    if pa.types.is_string(column.type):  # another type is refused by its name later
        for subject in column.unique().to_pylist():
            if subject is not None and config.partition_on(subject) is None:
                raise InvalidRequestError(
                    f"the stream records {config.subject!r}, so it takes no record with subject "
                    f"{subject[:255]!r}",
                    subject=subject[:255],
                )


def validate(batch: pa.RecordBatch) -> None:
    """Check every offset and every text of a batch from outside: Arrow does not check on reading.

    Raises:
        SchemaMismatchError: the buffers contradict each other.
    """
    try:
        batch.validate(full=True)
    except (pa.ArrowInvalid, pa.ArrowIndexError) as cause:
        raise SchemaMismatchError(f"the batch's Arrow buffers are damaged: {cause}") from cause
