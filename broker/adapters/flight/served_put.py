"""One do_put without its threads: batches go in, answers come out in the same order.

The session owns no thread and no lock, and never waits. Two sides call it, each from one thread at
a time. The receiving side passes batches (`take`, `take_alone`) and the end of the client's stream
(`finish`). The answering side passes outcomes (`heard`), and the session sends frames. An outcome
(`News`) arises on any thread: the session gives it to ``tell``, and the owner of the session passes
it to `heard` through a queue. `writes.py` has the threads of the product.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence

import pyarrow as pa

from broker.adapters.flight.config import FlightServiceConfig
from broker.codec.flight.protocol import (
    StreamPath,
    decode_put_mark,
    encode_ack,
    encode_closing,
    encode_ready,
)
from broker.codec.record_batch import PreparedBatch, Preparer
from broker.codec.record_sizes import check_record_sizes
from broker.errors import (
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

Outcome = AppendResult | HeadwaterError
# (place, size in bytes, outcome): of a batch, with its place in the order of batches.
# A size of -1 means no batch: the outcome is then None (the client has finished, and `place`
# batches were taken) or a frame to send.
News = tuple[int, int, Outcome | bytes | None]


class ServedPut:
    """One do_put from its schema to its last acknowledgement.

    Raises:
        SchemaMismatchError: the schema has columns that records do not have; no batch was taken.
    """

    def __init__(
        self,
        handle: PartitionHandle,
        schema: pa.Schema,
        *,
        write: Callable[[bytes], None],
        tell: Callable[[News], None],
        clock: Clock,
        config: FlightServiceConfig,
        explain: Callable[[HeadwaterError], HeadwaterError] = lambda error: error,
        policy: AckPolicy = AckPolicy.ALL,
        placed_by: int | None = None,
    ) -> None:
        """``write`` sends a frame to the client; ``explain`` adds to an error what a client needs.

        ``tell`` gets outcomes on any thread; its owner passes them to :meth:`heard`. With
        ``placed_by``, batches are refused once the stream has more partitions than that.
        """
        self._handle = handle
        self._schema = schema
        self._write = write
        self._tell = tell
        self._clock = clock
        self._config = config
        self._explain = explain
        self._policy = policy
        self._placed_by = placed_by
        self._stream_config = handle.config
        self._preparer = Preparer(schema, codec=self._stream_config.compression)
        self._closing = False
        # Of the receiving side.
        self._taken_batches = 0
        self._taken_bytes = 0
        self._alone_in_a_row = 0
        self._held: tuple[PreparedBatch, int, int] | None = None
        # Of the answering side.
        self._answered_batches = 0
        self._answered_bytes = 0
        self._early: dict[int, tuple[int, Outcome]] = {}
        self._end: int | None = None

    # ------------------------------------------------------------------ the receiving side

    def begin(self) -> None:
        """Begin. Under ack policy NONE, send the client the sign that the call is not refused."""
        if self._policy is AckPolicy.NONE:
            self._write(encode_ready())

    @property
    def inflight_batches(self) -> int:
        """How many batches were taken and are not answered yet; any thread may ask."""
        return self._taken_batches - self._answered_batches

    def has_room(self, size: int) -> bool:
        """Tell whether a batch of ``size`` bytes may be taken now."""
        inflight_bytes = self._taken_bytes - self._answered_bytes
        return self.inflight_batches == 0 or (
            self.inflight_batches < self._config.put_inflight_batches_max
            and inflight_bytes + size <= self._config.put_inflight_bytes_max
        )

    def comes_alone(self, size: int, waited_us: float) -> bool:
        """Tell whether the client seems to wait for the answer to the batch that just came.

        ``waited_us``: how long the receiving side waited for the batch. From a client that sends
        ahead, the batch would have been there already. Even such a client sometimes has one batch
        under way, but not many times in a row. If true, all earlier batches are answered.
        """
        alone = (
            self.inflight_batches == 0
            and size <= self._config.put_alone_bytes_max
            and waited_us >= self._config.put_alone_wait_us
        )
        self._alone_in_a_row = self._alone_in_a_row + 1 if alone else 0
        return self._alone_in_a_row > self._config.put_alone_after

    def take(self, batch: pa.RecordBatch | None, metadata: bytes | None, size: int) -> bool:
        """Check, encode and submit one batch; its outcome gets the next place in the answers.

        The caller has made sure of `has_room`. If the partition's queue is full, the batch is kept
        and the result is false: then the next call is `take_held`, once `inflight_batches` is 1.
        """
        place = self._taken_batches
        self._taken_batches += 1
        self._taken_bytes += size
        try:
            prepared = self._prepare(batch, metadata, size)
            try:
                self._submit(prepared, place, size)
            except OverloadedError:
                self._held = prepared, place, size
                return False
        except HeadwaterError as error:
            self._tell((place, size, error))
        return True

    def take_held(self) -> None:
        """Submit the batch that `take` has kept: the session's other batches are done by now."""
        assert self._held is not None, "take has kept a batch"
        (prepared, place, size), self._held = self._held, None
        try:
            self._submit(prepared, place, size)
        except HeadwaterError as error:
            self._tell((place, size, error))

    def take_alone(
        self,
        batch: pa.RecordBatch | None,
        metadata: bytes | None,
        size: int,
        told: Callable[[Outcome], None],
    ) -> None:
        """Check, encode and store one batch, perhaps on the caller's thread; `comes_alone` is true.

        ``told`` gets the outcome, from any thread. The caller waits for the outcome and gives it to
        `answer`, before anything else is taken; so the order of answers is kept.
        """
        try:
            prepared = self._prepare(batch, metadata, size)
            self._handle.writes.submit(
                [prepared],
                lambda outcomes: told(outcomes[0]),
                may_block=True,
                policy=self._policy,
            )
        except HeadwaterError as error:
            told(error)

    def finish(self) -> None:
        """Take no more: the client has finished, or is gone."""
        self._tell((self._taken_batches, -1, None))

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
            placed_by=self._placed_by,
        )

    def _follow_settings(self) -> None:
        """Apply the stream's present settings: they may have changed since the last batch."""
        config = self._handle.config
        if config is not self._stream_config:
            self._stream_config = config
            self._preparer = Preparer(self._schema, codec=config.compression)

    def _submit(self, prepared: PreparedBatch, place: int, size: int) -> None:
        self._handle.writes.submit([prepared], self._done(place, size), policy=self._policy)

    def _done(self, place: int, size: int) -> Callable[[Sequence[Outcome]], None]:
        def done(outcomes: Sequence[Outcome]) -> None:  # on the commit thread: must not block
            self._tell((place, size, outcomes[0]))

        return done

    # ------------------------------------------------------------------ the answering side

    @property
    def is_over(self) -> bool:
        """Whether the client has finished and every batch is answered."""
        return self._end is not None and self._answered_batches >= self._end

    def heard(self, news: News) -> None:
        """Take one piece of news; send what is known by now, in the order of the batches."""
        place, size, outcome = news
        if outcome is None:
            self._end = place
        elif isinstance(outcome, bytes):
            self._write(outcome)
        else:
            self._early[place] = (size, outcome)
        while self._answered_batches in self._early:
            size, answer = self._early.pop(self._answered_batches)
            self.answer(answer)
            self._answered_bytes += size
            self._answered_batches += 1

    def answer(self, outcome: Outcome) -> None:
        """Send the outcome of one batch; under ack policy NONE only a refusal."""
        if isinstance(outcome, HeadwaterError):
            outcome = self._explain(outcome)
        elif self._policy is AckPolicy.NONE:
            return  # the client expects no ack, and an ack would promise too much
        self._write(encode_ack(outcome))

    # ------------------------------------------------------------------ any thread

    def close(self) -> None:
        """Refuse further batches, and ask the client to finish its stream."""
        self._closing = True
        self._tell((-1, -1, encode_closing()))


def put_path(path: Sequence[bytes] | None) -> tuple[StreamPath, int]:
    """Return what the descriptor of a do_put names, and its partition.

    Raises:
        InvalidRequestError: it names no partition, or is not a path.
    """
    found = StreamPath.from_path(path, put=True)
    if found.partition is None:
        raise InvalidRequestError("do_put needs a partition in its path", field="path")
    return found, found.partition


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
