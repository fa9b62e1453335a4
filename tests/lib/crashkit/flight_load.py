"""A Flight producer that outlives its own crashes: same producer id, same numbers, same batches.

The client's Producer retries by itself. From time to time the whole producer is thrown away with
batches in flight, as a dying process would leave it, and a new one continues its numbers.
"""

from __future__ import annotations

import random
import threading
from collections import deque
from contextlib import suppress
from dataclasses import dataclass, field

import pyarrow as pa

from broker.codec.schema import HEADERS_TYPE
from broker.errors import CommitTimeoutError, HeadwaterError, SequenceGapError
from broker.model.ids import ProducerId, StreamUuid
from broker.model.records import AppendResult
from clusterkit.login import OPEN, Login
from crashkit.recorder import Recorder
from crashkit.records import RecordMaker, TestRecord
from headwater.client import Producer

_SCHEMA = pa.schema(
    [
        pa.field("key", pa.binary()),
        pa.field("value", pa.binary()),
        pa.field("headers", HEADERS_TYPE),
        pa.field("reply_subject", pa.string()),
        pa.field("correlation_id", pa.string()),
        pa.field("timestamp", pa.int64()),
    ]
)
_RETRY_MS_MAX = 300_000  # longer than a campaign waits for an answer
_WINDOW_BATCHES = 48


@dataclass(slots=True)
class _Batch:
    base_sequence: int
    records: list[TestRecord]
    settled: threading.Event = field(default_factory=threading.Event)


@dataclass(frozen=True, slots=True, kw_only=True)
class FlightLoadConfig:
    """How one producer behaves."""

    url: str
    stream: str
    partition: int
    batches_per_s: int
    batch_records_max: int
    login: Login = OPEN
    crash_share: float = 0.005  # of batches: the producer is thrown away after it
    away_s_max: float = 4.0  # and the next one comes this much later


class FlightLoad:
    """One producer in a thread of its own."""

    def __init__(
        self, config: FlightLoadConfig, maker: RecordMaker, recorder: Recorder, *, seed: str
    ) -> None:
        self._config = config
        self._maker = maker
        self._recorder = recorder
        self._random = random.Random(seed)
        self._client = config.login.client(config.url)
        self._producer_id = ProducerId(self._random.getrandbits(63))
        self._next_sequence = 0
        self._unsettled: deque[_Batch] = deque()
        self._producing = threading.Event()
        self._producing.set()
        self._ending = threading.Event()
        self._gap_allowed = threading.Event()
        self.failure: str | None = None
        self.crashes = 0
        recorder.expect_order(maker.producer)
        self._thread = threading.Thread(target=self._run, name=maker.producer, daemon=True)

    @property
    def unanswered(self) -> int:
        """Batches whose fate is not known yet."""
        return sum(not batch.settled.is_set() for batch in list(self._unsettled))

    def start(self) -> None:
        """Begin to send."""
        self._thread.start()

    def pause(self) -> None:
        """Send nothing new; what is unanswered goes on being retried."""
        self._producing.clear()

    def resume(self) -> None:
        """Send again."""
        self._producing.set()

    def stop(self) -> None:
        """End the thread, whatever is unanswered. Blocks."""
        self._ending.set()
        self._thread.join(30)
        self._client.close()

    def allow_gap(self) -> None:
        """From now on a broker may have lost records of ours: then we begin under another id."""
        self._gap_allowed.set()

    def _begin_anew(self) -> None:
        """What is unsettled is refused: an earlier batch is missing, and cannot be sent again."""
        for batch in self._unsettled:
            batch.settled.set()
        self._unsettled.clear()
        self._producer_id, self._next_sequence = ProducerId(self._random.getrandbits(62) + 1), 0

    def _run(self) -> None:
        try:
            while not self._ending.is_set():
                try:
                    self._be_a_process()
                except SequenceGapError:
                    if not self._gap_allowed.is_set():
                        raise
                    self._begin_anew()
                self.crashes += 1
                self._ending.wait(self._random.uniform(0, self._config.away_s_max))
        except HeadwaterError as error:
            if not self._ending.is_set():
                self.failure = f"{self._maker.producer}: {type(error).__name__}: {error}"

    def _be_a_process(self) -> None:
        """Continue where the last one stopped; return when this one 'dies'."""
        self._forget_settled()
        sequence = self._unsettled[0].base_sequence if self._unsettled else self._next_sequence
        uuid = self._stream_uuid()
        if uuid is None:
            return
        producer = self._client.producer(
            self._config.stream,
            self._config.partition,
            window_batches=_WINDOW_BATCHES,
            retry_ms_max=_RETRY_MS_MAX,
            stream_uuid=uuid,
            producer_id=self._producer_id,
            sequence=sequence,
        )
        try:
            for batch in list(self._unsettled):
                for record in batch.records:
                    self._recorder.retry(record.name)
                self._submit(producer, batch)
            while not self._ending.wait(self._random.expovariate(self._config.batches_per_s)):
                if not self._producing.is_set():
                    self._forget_settled()
                    continue
                self._submit(producer, self._new_batch())
                if self._random.random() < self._config.crash_share:
                    return
        finally:
            with suppress(CommitTimeoutError):
                producer.close(timeout_ms=1)

    def _stream_uuid(self) -> StreamUuid | None:
        """Ask for the stream's identity until the broker answers; None when told to end."""
        while not self._ending.is_set():
            with suppress(HeadwaterError):
                return self._client.stream(self._config.stream).uuid
            self._ending.wait(0.1)
        return None

    def _new_batch(self) -> _Batch:
        self._forget_settled()
        count = self._random.randint(1, self._config.batch_records_max)
        records = [self._maker.for_flight() for _ in range(count)]
        batch = _Batch(self._next_sequence, records)
        self._next_sequence += count
        self._unsettled.append(batch)
        self._recorder.send(self._maker.producer, self._config.partition, records)
        return batch

    def _submit(self, producer: Producer, batch: _Batch) -> None:
        future = producer.send(to_arrow(batch.records))
        future.add_done_callback(
            lambda done: self._answered(batch, done.exception() or done.result())
        )

    def _answered(self, batch: _Batch, answer: AppendResult | BaseException) -> None:
        """Hear of a batch; on the producer's thread, or on ours when it has given up."""
        if isinstance(answer, CommitTimeoutError):
            return  # thrown away with its producer: not known, goes again
        if isinstance(answer, SequenceGapError) and self._gap_allowed.is_set():
            return  # the log that answers has lost records: it cannot say what was stored
        if isinstance(answer, BaseException):
            for record in batch.records:
                self._recorder.refuse(record.name, str(answer))
            self.failure = f"{self._maker.producer}: {type(answer).__name__}: {answer}"
        else:
            for place, record in enumerate(batch.records):
                if answer.duplicate:  # the producer's own retries are not seen here
                    self._recorder.retry(record.name)
                self._recorder.ack(
                    record.name,
                    partition=self._config.partition,
                    offset=answer.base_offset + place,
                    leader_epoch=answer.leader_epoch,
                    duplicate=answer.duplicate,
                )
        batch.settled.set()

    def _forget_settled(self) -> None:
        while self._unsettled and self._unsettled[0].settled.is_set():
            self._unsettled.popleft()


def to_arrow(records: list[TestRecord]) -> pa.RecordBatch:
    """Return the records as one batch of producer columns."""
    headers = [
        None
        if record.headers is None
        else [{"key": name, "value": text} for name, text in record.headers]
        for record in records
    ]
    return pa.RecordBatch.from_arrays(
        [
            pa.array([record.key for record in records], pa.binary()),
            pa.array([record.value for record in records], pa.binary()),
            pa.array(headers, HEADERS_TYPE),
            pa.array([record.reply_subject for record in records], pa.string()),
            pa.array([record.correlation_id for record in records], pa.string()),
            pa.array([record.timestamp_us for record in records], pa.int64()),
        ],
        schema=_SCHEMA,
    )
