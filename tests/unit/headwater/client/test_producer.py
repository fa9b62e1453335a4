"""The producer over a Flight call that the client's own side disturbs: memory, limits, Ctrl-C.

Only Flight's reader and writer are stand-ins; each answers as a leader that stores what it is sent.
"""

from __future__ import annotations

import threading
from collections import deque
from collections.abc import Iterator
from concurrent.futures import Future
from contextlib import suppress
from queue import SimpleQueue
from typing import Any

import numpy as np
import pyarrow as pa
import pytest
from pyarrow import flight

from broker.codec.flight.protocol import StreamPath, decode_put_mark, encode_ack, encode_ready
from broker.core.dedup import ProducerTable
from broker.errors import (
    CommitTimeoutError,
    HeadwaterError,
    InvalidRequestError,
    NoAnswerError,
    RecordTooLargeError,
    StreamRecreatedError,
    UnavailableError,
    to_wire,
)
from broker.model.epochs import LeaderEpoch
from broker.model.ids import NO_PRODUCER
from broker.model.offsets import Offset
from broker.model.records import AckPolicy, AppendResult
from headwater.client.address import Address
from headwater.client.flight_connection import Connection, PutCall
from headwater.client.producer import Producer
from headwater.client.put_session import PutSession
from headwater.client.records import BATCH_BYTES_MAX
from simkit.waiting import wait_until

WAIT_S = 20.0
AT = Address(host="127.0.0.1", port=1, tls=False)
POLICIES = [AckPolicy.ALL, AckPolicy.LEADER]


class Leader:
    """A leader in memory, and what goes wrong on the client's side of its calls."""

    def __init__(self) -> None:
        self.values: list[bytes] = []
        self.calls: list[Call] = []
        self.faults: deque[BaseException | None] = deque()  # of the next writes; None is no fault
        self.late_faults: deque[BaseException] = deque()  # raised once the batch was sent
        self._table = ProducerTable()

    def store(self, batch: pa.RecordBatch, mark: bytes) -> AppendResult | HeadwaterError:
        """Store a batch once, in order."""
        producer_id, sequence = decode_put_mark(mark)
        rows, base = batch.num_rows, Offset(len(self.values))
        if producer_id != NO_PRODUCER:
            try:
                known = self._table.find(producer_id, sequence, rows)
            except HeadwaterError as error:
                return error
            if known is not None:
                return AppendResult(known, rows, LeaderEpoch(1), duplicate=True)
            self._table.add(producer_id, sequence, rows, base)
        self.values += batch.column("value").to_pylist()
        return AppendResult(base, rows, LeaderEpoch(1))


class Call:
    """Flight's writer and reader of one do_put."""

    def __init__(self, leader: Leader, acks: AckPolicy) -> None:
        self._leader = leader
        self._acks = acks
        self._frames: SimpleQueue[bytes | BaseException | None] = SimpleQueue()
        if acks is AckPolicy.NONE:
            self._frames.put(encode_ready())

    def write_with_metadata(self, batch: pa.RecordBatch, mark: bytes) -> None:
        """Store a batch and answer, or fail as Flight does before or after it has sent a batch."""
        fault = self._leader.faults.popleft() if self._leader.faults else None
        if fault is not None:
            raise fault
        outcome = self._leader.store(batch, mark)
        if self._acks is not AckPolicy.NONE:
            self._frames.put(encode_ack(outcome))
        if self._leader.late_faults:
            raise self._leader.late_faults.popleft()

    def done_writing(self) -> None:
        """End the call, as the broker does once the client has finished."""
        self._frames.put(None)

    def breaks(self, error: BaseException) -> None:
        """End the call by an error."""
        self._frames.put(error)

    def read(self) -> bytes | None:
        """Return the next frame, or raise the error that ends the call."""
        frame = self._frames.get()
        if isinstance(frame, BaseException):
            raise frame
        return frame

    def close(self) -> None:
        """Nothing to do."""


class LeaderConnection(Connection):
    """A connection whose do_put is a :class:`Call`."""

    def __init__(self, leader: Leader) -> None:
        super().__init__(AT)
        self._leader = leader

    def put(self, path: StreamPath, schema: pa.Schema) -> PutCall:
        """Open a call."""
        call = Call(self._leader, path.acks)
        self._leader.calls.append(call)
        return PutCall(AT, call, call, lambda: None)

    def close(self) -> None:
        """No channel was opened."""


class LeaderRoute:
    """Connects to the leader, and is interrupted on the main thread if a test says so."""

    several = False

    def __init__(self, leader: Leader) -> None:
        self._leader = leader
        self.interrupts = 0

    def connect(self) -> Connection:
        """Connect; Ctrl-C interrupts nothing but the main thread."""
        if self.interrupts and threading.current_thread() is threading.main_thread():
            self.interrupts -= 1
            raise KeyboardInterrupt
        return LeaderConnection(self._leader)

    def failed(self, error: HeadwaterError) -> None:
        """Nothing to learn."""

    def succeeded(self, leader_epoch: LeaderEpoch) -> None:
        """Nothing to learn."""

    def leave(self) -> None:
        """There is no other broker."""


def producer_of(
    route: LeaderRoute, acks: AckPolicy, *, retry_ms_max: int = 30_000, window_batches: int = 8
) -> Producer:
    """Return a producer of partition 0."""
    return Producer(
        route,
        StreamPath(stream="s", partition=0, acks=acks),
        window_batches=window_batches,
        retry_ms_max=retry_ms_max,
        producer_id=None,
        sequence=0,
    )


@pytest.fixture
def leader() -> Leader:
    """Give a leader without records."""
    return Leader()


@pytest.fixture
def producer(leader: Leader, request: pytest.FixtureRequest) -> Iterator[Producer]:
    """Give a producer with the ack policy of the test."""
    made = producer_of(LeaderRoute(leader), request.param)
    yield made
    with suppress(HeadwaterError):
        made.close(1)


def value_at(leader: Leader, sent: Future[AppendResult]) -> bytes:
    """Return the value that stands where an acknowledgement says that the batch is."""
    return leader.values[sent.result(WAIT_S).base_offset]


# ------------------------------------------------------------------ a write that fails here


@pytest.mark.parametrize("producer", POLICIES, indirect=True)
def test_an_acknowledgement_is_never_that_of_the_next_batch(
    leader: Leader, producer: Producer
) -> None:
    """A batch that was not sent for want of memory is sent again, before the batch behind it."""
    first = producer.send([b"first"])
    assert value_at(leader, first) == b"first"
    leader.faults.append(pa.ArrowMemoryError("malloc of size 64 failed"))
    lost, next_one = producer.send([b"lost"]), producer.send([b"next"])
    assert value_at(leader, lost) == b"lost"
    assert value_at(leader, next_one) == b"next"
    producer.flush()
    assert leader.values == [b"first", b"lost", b"next"]


@pytest.mark.parametrize("producer", POLICIES, indirect=True)
def test_a_batch_that_flight_refuses_fails_at_once_and_alone(
    leader: Leader, producer: Producer
) -> None:
    """The connection goes on; the batches around it are stored."""
    assert value_at(leader, producer.send([b"first"])) == b"first"
    leader.faults += [None, pa.ArrowInvalid("Cannot send record batches exceeding 2GiB yet")]
    before, refused = producer.send([b"before"]), producer.send([b"refused"])
    with pytest.raises(InvalidRequestError, match="2GiB"):
        refused.result(WAIT_S)
    after = producer.send([b"after"])
    assert value_at(leader, before) == b"before"
    assert value_at(leader, after) == b"after"
    with pytest.raises(InvalidRequestError, match="2GiB"):
        producer.flush()
    producer.flush()
    assert leader.values == [b"first", b"before", b"after"]
    assert len(leader.calls) == 1


@pytest.mark.parametrize("producer", [*POLICIES, AckPolicy.NONE], indirect=True)
def test_the_first_batch_may_be_the_refused_one(leader: Leader, producer: Producer) -> None:
    """Then the thread that connects is told of it."""
    leader.faults.append(pa.ArrowInvalid("Cannot send record batches exceeding 2GiB yet"))
    refused = producer.send([b"refused"])
    with pytest.raises(InvalidRequestError, match="2GiB"):
        refused.result(WAIT_S)
    producer.send([b"after"]).result(WAIT_S)
    with pytest.raises(InvalidRequestError, match="2GiB"):
        producer.flush()
    assert leader.values == [b"after"]


def test_a_write_that_always_fails_ends_in_time_and_says_why(leader: Leader) -> None:
    """The error names the want of memory, not a broker that ended the stream."""
    leader.faults += [pa.ArrowMemoryError("malloc of size 64 failed")] * 1_000
    producer = producer_of(LeaderRoute(leader), AckPolicy.ALL, retry_ms_max=100)
    with pytest.raises(CommitTimeoutError, match="malloc"):
        producer.send([b"1"]).result(WAIT_S)
    with pytest.raises(CommitTimeoutError, match="malloc"):
        producer.close()


@pytest.mark.parametrize("producer", [*POLICIES, AckPolicy.NONE], indirect=True)
def test_a_batch_that_no_call_can_carry_is_refused_before_it_is_sent(
    leader: Leader, producer: Producer
) -> None:
    """Flight has a limit of 2 GiB; these pages are never touched."""
    half = BATCH_BYTES_MAX // 2 + 1
    offsets = pa.py_buffer(np.array([0, half], np.int32))
    column = pa.Array.from_buffers(
        pa.binary(), 1, [None, offsets, pa.py_buffer(np.zeros(half, np.uint8))]
    )
    batch = pa.RecordBatch.from_arrays([column, column], names=["key", "value"])
    with pytest.raises(RecordTooLargeError) as caught:
        producer.send(batch)
    assert caught.value.size_bytes > caught.value.limit_bytes == BATCH_BYTES_MAX
    producer.send([b"next"]).result(WAIT_S)
    producer.flush()
    assert leader.values == [b"next"]


# ------------------------------------------------------------------ interrupts


@pytest.mark.parametrize("producer", POLICIES, indirect=True)
def test_an_interrupt_before_the_write_leaves_no_batch_that_counts_as_sent(
    leader: Leader, producer: Producer
) -> None:
    """Ctrl-C in ``send``; the next batch has its own acknowledgement."""
    assert value_at(leader, producer.send([b"first"])) == b"first"
    leader.faults.append(KeyboardInterrupt())
    with pytest.raises(KeyboardInterrupt):
        producer.send([b"interrupted"])
    assert value_at(leader, producer.send([b"next"])) == b"next"
    producer.flush()
    assert leader.values == [b"first", b"interrupted", b"next"]


@pytest.mark.parametrize("producer", [AckPolicy.ALL], indirect=True)
def test_an_interrupt_behind_the_write_doubles_nothing(leader: Leader, producer: Producer) -> None:
    """The batch is sent again with its numbers."""
    assert value_at(leader, producer.send([b"first"])) == b"first"
    leader.late_faults.append(KeyboardInterrupt())
    with pytest.raises(KeyboardInterrupt):
        producer.send([b"interrupted"])
    assert value_at(leader, producer.send([b"next"])) == b"next"
    producer.flush()
    assert leader.values == [b"first", b"interrupted", b"next"]


@pytest.mark.parametrize("acks", [*POLICIES, AckPolicy.NONE])
def test_an_interrupt_while_it_connects_does_not_stop_a_producer(
    leader: Leader, acks: AckPolicy
) -> None:
    """The interrupted batch and the next one are stored."""
    route = LeaderRoute(leader)
    route.interrupts = 1
    producer = producer_of(route, acks)
    with suppress(KeyboardInterrupt):
        producer.send([b"first"])
    producer.send([b"next"]).result(WAIT_S)
    producer.close()
    assert leader.values == [b"first", b"next"]


def test_an_interrupt_before_anybody_connects_is_made_good_by_a_flush(
    leader: Leader, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The batch is in the window already; ``with`` flushes at its end."""
    begin = threading.Thread.start

    def interrupted(thread: threading.Thread) -> None:
        monkeypatch.setattr(threading.Thread, "start", begin)
        raise KeyboardInterrupt

    monkeypatch.setattr(threading.Thread, "start", interrupted)
    producer = producer_of(LeaderRoute(leader), AckPolicy.ALL)
    with pytest.raises(KeyboardInterrupt):
        producer.send([b"first"])
    producer.flush(int(WAIT_S * 1000))
    producer.close()
    assert leader.values == [b"first"]


@pytest.mark.parametrize("name", ["headwater-connect", "headwater-acks"])
def test_a_producer_without_a_thread_gives_up(
    leader: Leader, monkeypatch: pytest.MonkeyPatch, name: str
) -> None:
    """A system may have no thread left; nobody would answer for the batch."""
    begin = threading.Thread.start

    def start(thread: threading.Thread) -> None:
        if thread.name == name:
            raise RuntimeError("can't start new thread")
        begin(thread)

    monkeypatch.setattr(threading.Thread, "start", start)
    producer = producer_of(LeaderRoute(leader), AckPolicy.ALL)
    with pytest.raises(UnavailableError, match="can't start new thread"):
        producer.send([b"first"]).result(WAIT_S)
    with pytest.raises(UnavailableError, match="can't start new thread"):
        producer.close()


# ------------------------------------------------------------------ without answers


@pytest.mark.parametrize(
    ("error", "told"),
    [
        (flight.FlightInternalError("the wire broke"), NoAnswerError),
        (
            flight.FlightInternalError(
                "gone", to_wire(StreamRecreatedError("another stream")).encode()
            ),
            StreamRecreatedError,
        ),
    ],
)
def test_the_first_batch_of_a_broken_connection_counts_as_lost(
    leader: Leader,
    monkeypatch: pytest.MonkeyPatch,
    error: Exception,
    told: type[HeadwaterError],
) -> None:
    """The connection ends after it took the batch, and before the sender knows that it did."""
    write = PutSession.write

    def written_and_over(session: PutSession, entry: Any) -> bool:
        taken = write(session, entry)
        if len(leader.calls) == 1:
            leader.calls[0].breaks(error)
            wait_until(lambda: session.over, "the end of the call")
            wait_until(lambda: told is NoAnswerError or made.error, "the producer's end")
        return taken

    made = producer_of(LeaderRoute(leader), AckPolicy.NONE)
    monkeypatch.setattr(PutSession, "write", written_and_over)
    sent = made.send([b"first"])
    wait_until(sent.done, "the batch is given to the connection")
    with pytest.raises(told):
        made.flush()
    made.close()
