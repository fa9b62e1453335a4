"""One do_put without a network: order of answers, bounds, refusals, stalled and absent clients.

The file is not split: nearly every test feeds the same put stream chunk by chunk.
"""

from __future__ import annotations

import threading
from collections.abc import Iterator
from queue import SimpleQueue

import numpy as np
import pyarrow as pa
import pytest

from broker.adapters.flight.config import FlightServiceConfig
from broker.adapters.flight.writes import PutStream
from broker.codec.flight.protocol import decode_ack, encode_put_mark, is_ready
from broker.codec.record_batch import Preparer, prepare
from broker.codec.schema import HEADERS_TYPE
from broker.errors import (
    AccessDeniedError,
    CommitTimeoutError,
    DiskFullError,
    HeadwaterError,
    InvalidRequestError,
    OverloadedError,
    RecordTooLargeError,
    SchemaMismatchError,
    ShuttingDownError,
)
from broker.model.ids import ProducerId
from broker.model.offsets import Offset
from broker.model.records import AckPolicy, AppendResult
from broker.model.stream import StreamConfig
from simkit.brokers.memory_broker import MemoryBroker, numbered, records
from simkit.brokers.memory_partition import MemoryPartition

Chunk = tuple[pa.RecordBatch | None, bytes | None]
WAIT_S = 60
VALUES = pa.schema([("value", pa.binary())])


class Sink:
    """Collects frames; may be stalled, and may fail as a connection does."""

    def __init__(self) -> None:
        self.frames: SimpleQueue[bytes] = SimpleQueue()
        self.open = threading.Event()
        self.open.set()
        self.error: Exception | None = None

    def write(self, frame: bytes) -> None:
        """Take a frame, or wait, or fail."""
        assert self.open.wait(WAIT_S)
        if self.error is not None:
            raise self.error
        self.frames.put(frame)

    def answers(self, count: int) -> list[AppendResult | HeadwaterError | None]:
        """Return the next ``count`` answers."""
        return [decode_ack(self.frames.get(timeout=WAIT_S)) for _ in range(count)]


class Harness:
    """A put stream over a broker in memory, fed chunk by chunk."""

    def __init__(
        self,
        broker: MemoryBroker,
        config: FlightServiceConfig,
        stream: StreamConfig,
        schema: pa.Schema = VALUES,
        policy: AckPolicy = AckPolicy.ALL,
    ) -> None:
        broker.streams.create("s", stream)
        self.partition: MemoryPartition = broker.partitions.handle("s", 0)
        self.sink = Sink()
        self.put = PutStream(
            self.partition,
            schema,
            self.sink,
            clock=broker.clock,
            config=config,
            policy=policy,
        )
        self.taken = threading.Semaphore(0)  # released each time the reader asks for a chunk
        self.error: HeadwaterError | None = None
        self._chunks: SimpleQueue[Chunk | Exception | None] = SimpleQueue()
        self._thread = threading.Thread(target=self._run, daemon=True)
        self._thread.start()

    def send(self, *chunks: Chunk) -> None:
        """Let the client send chunks."""
        for chunk in chunks:
            self._chunks.put(chunk)

    def fail(self, error: Exception) -> None:
        """Let reading fail."""
        self._chunks.put(error)

    def finish(self) -> None:
        """Let the client finish, and wait for the end of the stream."""
        self._chunks.put(None)
        self._thread.join(WAIT_S)
        assert not self._thread.is_alive()

    def _run(self) -> None:
        try:
            self.put.run(self._read())
        except HeadwaterError as error:
            self.error = error

    def _read(self) -> Iterator[Chunk]:
        while True:
            self.taken.release()
            chunk = self._chunks.get()
            if chunk is None:
                return
            if isinstance(chunk, Exception):
                raise chunk
            yield chunk


@pytest.fixture
def broker() -> Iterator[MemoryBroker]:
    """Give an empty broker."""
    broker = MemoryBroker()
    yield broker
    broker.close()


@pytest.fixture
def harness(broker: MemoryBroker) -> Harness:
    """Give a put stream with default limits."""
    return Harness(broker, FlightServiceConfig(put_alone_bytes_max=0), StreamConfig(subject="s"))


def batch(start: int, count: int = 10) -> Chunk:
    """Return a chunk of numbered records."""
    return numbered(start, count), None


def test_answers_come_in_the_order_of_the_batches(harness: Harness) -> None:
    """Each batch has its base offset, good ones and bad ones in their places."""
    harness.send(batch(0), (None, None), batch(10), (numbered(0, 1), b"short"), batch(20))
    answers = harness.sink.answers(5)
    kinds = [type(answer) for answer in answers]
    assert kinds == [
        AppendResult,
        InvalidRequestError,
        AppendResult,
        InvalidRequestError,
        AppendResult,
    ]
    assert [a.base_offset for a in answers if isinstance(a, AppendResult)] == [0, 10, 20]
    harness.finish()
    assert harness.partition.high_watermark == 30


@pytest.mark.parametrize("alone", [False, True])
def test_under_none_only_refusals_are_answered(broker: MemoryBroker, alone: bool) -> None:
    """A stored batch is not acknowledged; a refused one is."""
    config = FlightServiceConfig(put_alone_after=0 if alone else 99, put_alone_wait_us=0)
    harness = Harness(broker, config, StreamConfig(subject="s"), policy=AckPolicy.NONE)
    harness.send(batch(0), (None, None), batch(10))
    harness.finish()
    assert is_ready(harness.sink.frames.get(timeout=WAIT_S))
    (answer,) = harness.sink.answers(1)
    assert isinstance(answer, InvalidRequestError)
    assert harness.sink.frames.empty()
    assert harness.partition.high_watermark == 20


@pytest.mark.parametrize("policy", [AckPolicy.LEADER, AckPolicy.NONE])
def test_a_numbered_batch_goes_under_all_only(broker: MemoryBroker, policy: AckPolicy) -> None:
    """With another policy a failover may lose a batch, and the next one would be a sequence gap."""
    harness = Harness(broker, FlightServiceConfig(), StreamConfig(subject="s"), policy=policy)
    harness.send((numbered(0, 1), encode_put_mark(ProducerId(7), 0)))
    if policy is AckPolicy.NONE:
        assert is_ready(harness.sink.frames.get(timeout=WAIT_S))
    (answer,) = harness.sink.answers(1)
    harness.finish()
    assert isinstance(answer, InvalidRequestError)
    assert harness.partition.policies == []


@pytest.mark.parametrize("policy", list(AckPolicy))
def test_the_policy_reaches_the_log(broker: MemoryBroker, policy: AckPolicy) -> None:
    """Every batch of a put is submitted under the put's policy."""
    harness = Harness(broker, FlightServiceConfig(), StreamConfig(subject="s"), policy=policy)
    harness.send(batch(0), batch(10))
    harness.finish()
    assert harness.partition.policies == [policy] * 2


def test_a_refused_batch_waits_for_its_turn(harness: Harness) -> None:
    """A batch that fails at once is answered after the slower one before it."""
    harness.partition.hold()
    harness.send(batch(0), (None, None))
    assert harness.taken.acquire(timeout=WAIT_S)
    assert harness.taken.acquire(timeout=WAIT_S)
    assert harness.sink.frames.empty()
    harness.partition.release()
    first, second = harness.sink.answers(2)
    assert isinstance(first, AppendResult)
    assert isinstance(second, InvalidRequestError)
    harness.finish()


def test_a_batch_that_comes_alone_is_answered_before_the_next_is_read(
    broker: MemoryBroker,
) -> None:
    """A client that waits for each answer gets it from the call's own thread, in order."""
    harness = Harness(
        broker,
        FlightServiceConfig(put_alone_after=2, put_alone_wait_us=0),
        StreamConfig(subject="s"),
    )
    for number in range(5):
        assert harness.taken.acquire(timeout=WAIT_S)
        harness.send(batch(number * 10))
        (answer,) = harness.sink.answers(1)
        assert isinstance(answer, AppendResult)
        assert answer.base_offset == number * 10
    harness.send((None, None))
    assert isinstance(harness.sink.answers(1)[0], InvalidRequestError)
    harness.finish()


def test_a_batch_that_comes_alone_is_not_waited_for_without_end(broker: MemoryBroker) -> None:
    """A commit that hangs is answered as an unknown outcome."""
    config = FlightServiceConfig(commit_timeout_ms=50, put_alone_after=0, put_alone_wait_us=0)
    harness = Harness(broker, config, StreamConfig(subject="s"))
    harness.partition.hold()
    harness.send(batch(0))
    assert isinstance(harness.sink.answers(1)[0], CommitTimeoutError)
    harness.partition.release()
    harness.finish()


def test_batches_are_submitted_before_earlier_ones_are_durable(harness: Harness) -> None:
    """A group commit can form: the reader never waits for a commit."""
    harness.partition.hold()
    harness.send(*(batch(n * 10) for n in range(20)))
    for _ in range(21):
        assert harness.taken.acquire(timeout=WAIT_S)
    assert harness.partition.submits_count == 20
    harness.partition.release()
    assert len(harness.sink.answers(20)) == 20
    harness.finish()


def test_a_stalled_client_does_not_block_the_commit_thread(harness: Harness) -> None:
    """While one client does not read its answers, others are served."""
    harness.sink.open.clear()
    harness.send(batch(0))
    other: SimpleQueue[int] = SimpleQueue()
    prepared = prepare(numbered(0, 1), now_us=1)
    harness.partition.submit([prepared], lambda _: other.put(1))
    assert other.get(timeout=WAIT_S) == 1
    harness.sink.open.set()
    harness.finish()


@pytest.mark.parametrize(
    "config",
    [
        FlightServiceConfig(put_alone_bytes_max=0, put_inflight_batches_max=3),
        FlightServiceConfig(
            put_alone_bytes_max=0, put_inflight_bytes_max=3_000, put_batch_bytes_max=3_000
        ),
    ],
)
def test_what_is_in_flight_is_bounded(broker: MemoryBroker, config: FlightServiceConfig) -> None:
    """A client that sends and does not read makes the reader stop, not the memory grow."""
    harness = Harness(broker, config, StreamConfig(subject="s"))
    harness.partition.hold()
    harness.send(*((numbered(n, 1, value_bytes=1_000 - 8), None) for n in range(10)))
    for _ in range(4):  # three are submitted, and the reader holds the fourth
        assert harness.taken.acquire(timeout=WAIT_S)
    assert not harness.taken.acquire(timeout=0.05)
    assert harness.partition.submits_count <= 3
    harness.partition.release()
    assert len(harness.sink.answers(10)) == 10
    harness.finish()


def test_an_outcome_of_the_log_reaches_its_batch(harness: Harness) -> None:
    """A failed commit is answered where it happened; the stream goes on."""
    harness.partition.fail_next(DiskFullError("no room", free_bytes=0))
    harness.send(batch(0))
    (answer,) = harness.sink.answers(1)
    assert isinstance(answer, DiskFullError)
    harness.send(batch(0))
    assert isinstance(harness.sink.answers(1)[0], AppendResult)
    harness.finish()


def test_a_producer_is_recognised(harness: Harness) -> None:
    """The same id and sequence again give the first offsets, and store nothing."""
    mark = encode_put_mark(ProducerId(5), 0)
    harness.send((numbered(0, 4), mark), (numbered(0, 4), mark))
    first, second = harness.sink.answers(2)
    assert isinstance(first, AppendResult)
    assert isinstance(second, AppendResult)
    assert (first.duplicate, second.duplicate) == (False, True)
    assert first.base_offset == second.base_offset
    harness.finish()
    assert harness.partition.high_watermark == 4


def test_a_record_beyond_the_limit_of_its_stream_is_refused(broker: MemoryBroker) -> None:
    """One record too large refuses its batch by row; what fits is taken."""
    harness = Harness(
        broker,
        FlightServiceConfig(put_alone_bytes_max=0),
        StreamConfig(subject="s", record_bytes_max=10),
    )
    harness.send((records([b"x", b"x" * 11]), None), (records([b"x" * 10] * 50), None))
    large, fits = harness.sink.answers(2)
    assert isinstance(large, RecordTooLargeError)
    assert (large.row, large.size_bytes, large.limit_bytes) == (1, 11, 10)
    assert isinstance(fits, AppendResult)
    harness.finish()


def test_a_batch_beyond_the_limit_of_the_service_is_refused(broker: MemoryBroker) -> None:
    """The size of a batch is bounded before anything is copied."""
    harness = Harness(
        broker, FlightServiceConfig(put_batch_bytes_max=1_000), StreamConfig(subject="s")
    )
    harness.send((records([b"x" * 500] * 3), None))
    (answer,) = harness.sink.answers(1)
    assert isinstance(answer, RecordTooLargeError)
    harness.finish()


def damaged_binary() -> pa.RecordBatch:
    """Return values whose offsets go backwards, which no cheap check sees."""
    offsets = pa.py_buffer(np.array([0, 90_000, 2, 5], dtype=np.int32).tobytes())
    values = pa.Array.from_buffers(pa.binary(), 3, [None, offsets, pa.py_buffer(b"short")])
    return pa.RecordBatch.from_arrays([values], ["value"])


def damaged_text() -> pa.RecordBatch:
    """Return a subject that is not UTF-8."""
    offsets = pa.py_buffer(np.array([0, 2], dtype=np.int32).tobytes())
    text = pa.Array.from_buffers(pa.string(), 1, [None, offsets, pa.py_buffer(b"\xff\xfe")])
    return pa.RecordBatch.from_arrays([text], ["subject"])


@pytest.mark.parametrize(
    ("damaged", "whole"),
    [
        (damaged_binary(), records([b"x"])),
        (damaged_text(), pa.RecordBatch.from_pydict({"subject": ["s"]})),
    ],
)
def test_damaged_buffers_are_never_stored(
    broker: MemoryBroker, damaged: pa.RecordBatch, whole: pa.RecordBatch
) -> None:
    """Arrow does not check the bytes that it reads, so a batch is checked before its first use."""
    harness = Harness(
        broker, FlightServiceConfig(put_alone_bytes_max=0), StreamConfig(subject="s"), whole.schema
    )
    harness.send((damaged, None), (whole, None))
    refused, stored = harness.sink.answers(2)
    assert isinstance(refused, SchemaMismatchError)
    assert isinstance(stored, AppendResult)
    harness.finish()


def test_an_overloaded_queue_is_waited_for(broker: MemoryBroker) -> None:
    """A full commit queue makes the reader wait for its own batches, then it tries again."""
    broker = MemoryBroker(queue_batches_max=2)
    harness = Harness(broker, FlightServiceConfig(put_alone_bytes_max=0), StreamConfig(subject="s"))
    harness.partition.hold()
    harness.send(*(batch(n * 10) for n in range(5)))
    for _ in range(3):
        assert harness.taken.acquire(timeout=WAIT_S)
    harness.partition.release()
    answers = harness.sink.answers(5)
    assert [type(answer) for answer in answers] == [AppendResult] * 5
    harness.finish()
    broker.close()


def test_overload_by_others_is_answered(broker: MemoryBroker) -> None:
    """With nothing of its own to wait for, a batch is refused with an error worth retrying."""
    broker = MemoryBroker(queue_batches_max=0)
    harness = Harness(broker, FlightServiceConfig(put_alone_bytes_max=0), StreamConfig(subject="s"))
    harness.send(batch(0))
    assert isinstance(harness.sink.answers(1)[0], OverloadedError)
    harness.finish()
    broker.close()


def test_a_closing_service_asks_for_the_end_and_refuses_batches(harness: Harness) -> None:
    """Accepted batches are still answered; later ones are refused."""
    harness.partition.hold()
    harness.send(batch(0))
    for _ in range(2):
        assert harness.taken.acquire(timeout=WAIT_S)
    harness.put.close()
    assert harness.sink.answers(1) == [None]
    harness.send(batch(10))
    harness.partition.release()
    stored, refused = harness.sink.answers(2)
    assert isinstance(stored, AppendResult)
    assert isinstance(refused, ShuttingDownError)
    harness.finish()


@pytest.mark.parametrize("error", [pa.ArrowInvalid("gone"), OSError("gone")])
def test_a_client_that_has_gone_costs_nothing(harness: Harness, error: Exception) -> None:
    """Its batches are committed, their answers dropped, and the stream ends."""
    harness.sink.error = error
    harness.send(batch(0), batch(10))
    harness.finish()
    assert harness.error is None
    assert harness.partition.high_watermark == 20


def test_a_commit_that_never_comes_ends_the_stream_with_an_error(broker: MemoryBroker) -> None:
    """The end of a stream waits for its outcomes, but not for ever."""
    harness = Harness(
        broker,
        FlightServiceConfig(put_alone_bytes_max=0, commit_timeout_ms=50),
        StreamConfig(subject="s"),
    )
    harness.partition.hold()
    harness.send(batch(0))
    harness.finish()
    assert isinstance(harness.error, CommitTimeoutError)


def test_a_call_whose_right_ends_does_not_say_that_its_batches_are_not_stored(
    broker: MemoryBroker,
) -> None:
    """A batch without an answer is stored later; AccessError would mean that nothing is."""
    config = FlightServiceConfig(put_alone_bytes_max=0, commit_timeout_ms=50)
    harness = Harness(broker, config, StreamConfig(subject="s"))
    harness.partition.hold()
    harness.send(batch(0))
    harness.fail(AccessDeniedError("the right was revoked"))
    harness.finish()
    assert isinstance(harness.error, CommitTimeoutError)
    harness.partition.release()
    assert isinstance(harness.sink.answers(1)[0], AppendResult)


def test_an_error_of_the_reader_comes_after_all_answers(harness: Harness) -> None:
    """A stream that breaks in the middle has settled its earlier batches."""
    harness.send(batch(0))
    harness.fail(InvalidRequestError("not Arrow"))
    assert isinstance(harness.sink.answers(1)[0], AppendResult)
    harness.finish()
    assert isinstance(harness.error, InvalidRequestError)


@pytest.mark.parametrize(
    "schema",
    [
        pa.schema([("value", pa.string())]),
        pa.schema([("offset", pa.int64())]),
        pa.schema([("value", pa.binary()), ("value", pa.binary())]),
        pa.schema([("timestamp", pa.timestamp("us"))]),
        pa.schema([("value", pa.large_binary())]),
        pa.schema([("value", pa.dictionary(pa.int32(), pa.binary()))]),
        pa.schema([("x" * 100_000, pa.int64())]),
    ],
)
def test_a_schema_that_no_record_has_is_refused(schema: pa.Schema) -> None:
    """A wrong schema is refused before a single batch is read, by the name of its column."""
    with pytest.raises(SchemaMismatchError) as caught:
        Preparer(schema)
    assert schema.names[0] in (caught.value.facts.get("column"), *caught.value.columns)


@pytest.mark.parametrize(
    "schema",
    [
        pa.schema([("value", pa.binary())]),
        pa.schema([pa.field("value", pa.binary(), nullable=False)]),
        pa.schema([("headers", HEADERS_TYPE), ("key", pa.binary()), ("timestamp", pa.int64())]),
        pa.schema([("value", pa.binary())], metadata={"any": "thing"}),
    ],
)
def test_any_subset_of_the_columns_is_taken(schema: pa.Schema) -> None:
    """Order, nullability and metadata do not matter."""
    Preparer(schema)


def test_a_producer_that_is_connected_obeys_changed_settings(broker: MemoryBroker) -> None:
    """Its next batch is checked by them, and stored as they say."""
    harness = Harness(
        broker, FlightServiceConfig(), StreamConfig(subject="s"), schema=records([b""]).schema
    )
    big = b"x" * 50_000
    harness.send((records([big]), None))
    assert isinstance(harness.sink.answers(1)[0], AppendResult)
    broker.streams.alter("s", {"record_bytes_max": 1000, "compression": "zstd"})
    harness.send((records([big]), None), (records([b"y" * 900]), None))
    refused, stored = harness.sink.answers(2)
    assert isinstance(refused, RecordTooLargeError)
    assert isinstance(stored, AppendResult)
    harness.finish()
    first, second = harness.partition.reads.read(Offset(0), Offset(2), bytes_max=1 << 30)
    assert first.header.codec == "none"
    assert second.header.codec == "zstd"
