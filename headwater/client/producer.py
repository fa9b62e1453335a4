"""Sends batches: pipelined, in order, each stored once, even if connections break.

Callers write to the connection on their own thread, which saves a change of threads per record. One
thread per connection reads the answers. If the connection ends before its batches are settled, that
thread opens the next one; a thread of its own opens the first one, because an interrupt (Ctrl-C)
only meets callers. An interrupted write ends the connection. Decisions are in window.py.

Batches have sequence numbers, by which a broker recognises them, only under ack policy ALL. Under
LEADER, a leader may fail after it acknowledged a batch; with numbers, the producer's next batch
would then be refused as a gap. Under NONE, a batch is settled once the connection has taken it;
``flush`` raises refusals.
"""

from __future__ import annotations

import secrets
import threading
import time
from concurrent.futures import Future
from dataclasses import replace
from types import TracebackType
from typing import Final, Self

import pyarrow as pa

from broker.codec.flight.protocol import StreamPath
from broker.errors import (
    CommitTimeoutError,
    HeadwaterError,
    InvalidRequestError,
    ShuttingDownError,
    UnavailableError,
)
from broker.model.epochs import LeaderEpoch
from broker.model.ids import NO_PRODUCER, ProducerId
from broker.model.offsets import Offset
from broker.model.records import AckPolicy, AppendResult
from headwater.client.leader_route import Route
from headwater.client.put_session import PutSession
from headwater.client.records import Records, sendable
from headwater.client.stall_watch import StallWatch
from headwater.client.throttle import throttle_ms
from headwater.client.window import (
    SendWindow,
    WindowEntry,
    of_all_refusals,
    outcome_of,
    worth_retrying,
)

WINDOW_BATCHES_MAX: Final = 64  # a broker recognises the last 64 batches of a producer
_WINDOW_BYTES_MAX: Final = 64 * 1024 * 1024
_BACKOFF_MS_MIN: Final = 20
_BACKOFF_MS_MAX: Final = 250  # a leader is found in seconds
_ENDED: Final = UnavailableError("the broker ended the stream")


class Producer:
    """Sends batches to one partition. Thread-safe; batches keep the order of their ``send``.

    Batches of one schema are pipelined; a batch of another schema waits for all earlier batches.
    Use the producer in a ``with`` statement, or call :meth:`close`: without a flush, the last
    batches may not be stored. docs/client.md explains the ack policies.
    """

    def __init__(
        self,
        route: Route,
        path: StreamPath,
        *,
        window_batches: int,
        retry_ms_max: int,
        producer_id: ProducerId | None,
        sequence: int,
    ) -> None:
        numbered = path.acks is AckPolicy.ALL
        if not numbered and (producer_id is not None or sequence):
            raise InvalidRequestError(
                f"under acks={path.acks.value} batches have no producer id and no sequence: leave "
                "producer_id and sequence out, or use acks=all",
                field="producer_id",
            )
        if not 1 <= window_batches <= WINDOW_BATCHES_MAX:
            raise InvalidRequestError(f"window_batches must be 1 to {WINDOW_BATCHES_MAX}")
        self._route = route
        self._path = path
        self._retry_ms_max = retry_ms_max
        chosen = new_producer_id() if producer_id is None else producer_id
        self._window = SendWindow(
            producer_id=chosen if numbered else NO_PRODUCER,
            sequence=sequence,
            batches_max=window_batches,
            bytes_max=_WINDOW_BYTES_MAX,
            new_producer_id=new_producer_id,
        )
        self._changed = threading.Condition()  # guards the window and the fields below
        self._schema: pa.Schema | None = None
        self._session: PutSession | None = None
        self._connecting = False  # one thread opens the next session
        self._failed: HeadwaterError | None = None  # if set, the producer accepts no more batches
        self._refused: HeadwaterError | None = None  # first batch that failed since the last flush
        self._closed = False
        self._failing_since_ms: float | None = None  # the first failure since the last success
        self._backoff_ms = _BACKOFF_MS_MIN
        # Held while a batch gets its numbers and is written, so that numbers arrive in order. Never
        # acquired while holding `_changed`: a write under this lock may block until the other
        # thread reads answers.
        self._write_lock = threading.Lock()
        self._answers_count = 0
        self._watch = StallWatch(self._progress, route.leave)

    # ------------------------------------------------------------------ callers

    def send(self, records: Records) -> Future[AppendResult]:
        """Send records as one batch; the future gets the offsets once the batch is durable.

        Blocks while the window is full. After an interrupt (KeyboardInterrupt) the batch may be
        stored or not.

        Raises:
            InvalidRequestError, SchemaMismatchError: the argument is not a batch of records.
            RecordTooLargeError: the batch is larger than a message may be; send it in parts.
            CommitTimeoutError: the producer has given up; see :attr:`error`.
        """
        batch = sendable(records)
        while True:
            with self._write_lock:
                try:
                    entry, session = self._admit(batch)
                    if entry is not None and session is not None:
                        self._write(session, entry)
                except HeadwaterError:
                    raise  # of `_admit`, which has added nothing
                except BaseException:
                    self._break_off(None)
                    raise
            if session is None:
                self._connect_soon()
            if entry is not None:
                return entry.future
            with self._changed:
                self._changed.wait_for(lambda: self._failed or self._takes(batch.schema))

    def flush(self, timeout_ms: int = 60_000) -> None:
        """Wait until every batch sent before is settled.

        Under NONE, wait until the broker has processed every batch and ended the call. A broken
        connection counts as a refusal, because it is not known which batches were lost.

        Raises:
            HeadwaterError: the error of the first batch that failed since the last flush; a
                PartitionsAddedError only if no batch failed otherwise.
            CommitTimeoutError: the timeout was reached.
        """
        self._connect_soon()  # an interrupted `send` may have left a batch
        with self._changed:
            settled = self._changed.wait_for(lambda: not self._window, timeout_ms / 1000)
        if self._path.acks is AckPolicy.NONE and settled:
            with self._write_lock, self._changed:
                session = self._session
                self._retire_session()
            settled = session is None or session.join(timeout_ms)
        with self._changed:
            refused, self._refused = self._refused, None
            left = len(self._window)
        if refused is not None:
            raise refused
        if not settled:
            raise CommitTimeoutError(f"{left} batches are not settled after {timeout_ms} ms")

    def close(self, timeout_ms: int = 60_000) -> None:
        """Flush, then end the connection; a second call does nothing."""
        with self._changed:
            if self._closed:
                return
        try:
            self.flush(timeout_ms)
        finally:
            with self._changed:
                self._closed = True
                self._watch.end()
                self._failed = self._failed or ShuttingDownError("the producer is closed")
                session, unsettled = self._session, bool(self._window)
            if unsettled:
                self._give_up(
                    CommitTimeoutError(
                        "the producer was closed before the broker acknowledged the batch, which "
                        "may be stored"
                    )
                )
            if session is not None:
                session.finish()
                session.join(5_000)

    @property
    def producer_id(self) -> ProducerId:
        """The current producer id; 63 random bits unless the caller gave an id.

        Below ack policy ALL it is NO_PRODUCER: the broker does not recognise a repeated batch.
        """
        return self._window.producer_id

    @property
    def error(self) -> HeadwaterError | None:
        """The error after which the producer accepts no more batches; None if it accepts them."""
        return self._failed

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        self.close()

    def _takes(self, schema: pa.Schema) -> bool:
        """Tell whether a batch of this schema may be added now."""
        return self._window.has_room() and (not self._window or schema.equals(self._schema))

    def _admit(self, batch: pa.RecordBatch) -> tuple[WindowEntry | None, PutSession | None]:
        """Add a batch to the window; return it and the session that may take it now, if any."""
        with self._changed:
            if self._failed is not None:
                raise self._failed
            if not self._takes(batch.schema):
                return None, None
            if self._schema is None or not batch.schema.equals(self._schema):
                self._schema = batch.schema
                self._retire_session()
            entry = self._window.add(batch, records_count=batch.num_rows, size_bytes=batch.nbytes)
            if self._session is None:
                return entry, None
            due = self._window.next_to_send()
            assert due is entry or due is None, "a batch before this one was not sent"
            return entry, None if due is None else self._session

    def _write(self, session: PutSession, entry: WindowEntry) -> None:
        """Write a batch; under NONE the batch is then settled."""
        taken = False
        try:
            taken = session.write(entry)
        except InvalidRequestError as error:
            self._refused_here(session, entry, error)
        except HeadwaterError as error:
            self._break_off(error)
        if taken and self._path.acks is AckPolicy.NONE:
            with self._changed:
                handed_over = self._window.handed_over(entry)
                self._failing_since_ms = None
                session.progressed = True
                if session.over:  # `_ended` did not know of this batch
                    self._refused = self._refused or session.cause or _ENDED
                self._changed.notify_all()
            if handed_over:
                rows = entry.records_count  # their offset and leader epoch are not known
                _resolve(entry, AppendResult(Offset(-1), rows, LeaderEpoch(0), acks=AckPolicy.NONE))

    def _refused_here(
        self, session: PutSession, entry: WindowEntry, error: InvalidRequestError
    ) -> None:
        """Settle a batch that Flight has refused to send; the session goes on without it."""
        outcome = outcome_of(entry, error, by_client=True)
        with self._changed:
            if not self._window.refused_by_client(entry):
                return  # the producer has given up, and said so
            self._refused = of_all_refusals(self._refused, outcome, self._path.acks)
            draining = self._window.draining
            self._changed.notify_all()
        _resolve(entry, outcome)
        if draining:
            session.finish()

    def _break_off(self, error: HeadwaterError | None) -> None:
        """End the session: a batch counts as sent, and perhaps was not. Holds the write lock.

        Whatever has no answer then is sent again on the next connection.
        """
        with self._changed:
            session = self._session
            if session is None:
                return  # it is over already
            session.write_error = error
            self._window.draining = True
        session.finish()

    def _retire_session(self) -> None:
        """End the session, which has no unsettled batch: a do_put has only one schema."""
        if self._session is not None:
            self._session.finish()
            self._session = None

    def _connect_soon(self) -> None:
        """Have another thread connect if batches wait for it, and no thread does it yet."""
        thread = threading.Thread(target=self._connect, name="headwater-connect", daemon=True)
        with self._changed:
            if self._session is not None or self._connecting or not self._window:
                return
            failure: HeadwaterError | None = None
            try:
                thread.start()
            except RuntimeError as cause:
                failure = UnavailableError(f"a producer cannot connect: {cause}")
        if failure is not None:
            self._give_up(failure)

    # ------------------------------------------------------------------ connections

    def _connect(self) -> None:
        """Open a session, unless another thread does, or has done so; on a thread of its own."""
        with self._changed:
            if self._session is not None or self._connecting or not self._window:
                return
            self._connecting = True
        self._open_session()

    def _open_session(self, after: HeadwaterError | None = None) -> None:
        """Connect and send all unsettled batches; retry until the time limit.

        ``after``: the failure to recover from, if that needs a wait. Called only by the thread
        that set ``_connecting``, never by a caller's; meanwhile other threads add to the window.
        The new session's thread handles failures after the connection is made.
        """
        try:
            session: PutSession | None = None
            while session is None:
                if after is not None and not self._may_retry(after):
                    return
                try:
                    session = PutSession(self._route.connect(), self._path, self._schema)
                except HeadwaterError as error:
                    self._route.failed(error)
                    after = error
            self._begin(session)
        except HeadwaterError as error:  # the system has no thread left
            self._give_up(error)
        except BaseException as error:  # no other thread answers for what is left
            self._give_up(UnavailableError(f"a producer stopped: {error!r}"))
            raise

    def _begin(self, session: PutSession) -> None:
        """Send all unsettled batches on a new session."""
        with self._write_lock:
            with self._changed:
                session.start(self._answered, self._ended)  # they wait until this block is left
                self._window.connected()
                self._window.several = self._route.several
                self._session = session
                self._connecting = False
                closed = self._closed
            try:
                self._watch.start()
                if self._path.acks is AckPolicy.NONE:
                    session.wait_ready()  # send no batch to a broker that does not lead
                while True:
                    with self._changed:
                        self._changed.wait_for(lambda: session.over or not self._window.must_wait)
                        entry = None if session.over else self._window.next_to_send()
                    if entry is None:
                        break
                    self._write(session, entry)
            except BaseException:
                self._break_off(None)
                raise
        if closed:
            session.finish()

    def _progress(self) -> tuple[int, int] | None:
        """Return a value that changes with every answer; None while no answer is awaited."""
        with self._changed:
            if self._session is None or not self._window:
                return None
            return id(self._session), self._answers_count

    def _may_retry(self, error: HeadwaterError) -> bool:
        """Wait for the backoff and return True, or give up and return False."""
        now_ms = time.monotonic() * 1000
        if self._failing_since_ms is None:
            self._failing_since_ms, self._backoff_ms = now_ms, _BACKOFF_MS_MIN
        pause_ms = max(self._backoff_ms, throttle_ms(error))
        if not self._worth_retrying(error):
            self._give_up(error)
            return False
        if now_ms + pause_ms > self._failing_since_ms + self._retry_ms_max:
            self._give_up(
                CommitTimeoutError(
                    f"no acknowledgement after {self._retry_ms_max} ms, the batch may be stored: "
                    f"{error.message}",
                    timeout_ms=self._retry_ms_max,
                    cause=type(error).__name__,
                )
            )
            return False
        with self._changed:
            if self._changed.wait_for(lambda: self._closed, pause_ms / 1000):
                return False
        self._backoff_ms = min(2 * self._backoff_ms, _BACKOFF_MS_MAX)
        return True

    def _answered(self, session: PutSession, answer: AppendResult | HeadwaterError | None) -> None:
        """Apply one answer; on the session's thread."""
        if self._path.acks is AckPolicy.NONE:
            self._told(session, answer)
            return
        with self._changed:
            if session is not self._session:
                return  # retired: no answer is awaited on it
            self._answers_count += 1
            entry = None
            if answer is None:
                self._window.draining = True
            else:
                answer = self._window.judged(answer)
                entry = self._window.answered(answer)
            if entry is not None:
                session.progressed = True
                if isinstance(answer, AppendResult):
                    self._route.succeeded(answer.leader_epoch)
                    answer = replace(answer, acks=self._path.acks)
                self._failing_since_ms = None
                if isinstance(answer, HeadwaterError):
                    answer = outcome_of(entry, answer)
                    self._refused = of_all_refusals(self._refused, answer, self._path.acks)
            elif isinstance(answer, HeadwaterError) and self._worth_retrying(answer):
                session.refusal = answer  # more specific than the error that ends the call
            draining = self._window.draining
            self._changed.notify_all()
        if entry is not None and answer is not None:
            _resolve(entry, answer)
        if draining:
            session.finish()

    def _told(self, session: PutSession, answer: AppendResult | HeadwaterError | None) -> None:
        """Apply an answer under NONE: a refusal (the batch is lost), or None: the broker closes."""
        with self._changed:
            self._answers_count += 1
            leave = answer is None
            if isinstance(answer, HeadwaterError):
                self._refused = self._refused or answer
                leave = self._worth_retrying(answer)  # another broker may accept later batches
                session.refusal = answer if leave else session.refusal
            if leave and session is self._session:
                self._window.draining = True
        if leave:
            session.finish()

    def _ended(self, session: PutSession, cause: HeadwaterError | None) -> None:
        """Replace an ended session, unless nothing is left to send; on the session's thread."""
        unacked = self._path.acks is AckPolicy.NONE
        with self._changed:
            session.over, session.cause = True, cause
            self._changed.notify_all()
            if unacked and session.progressed:
                self._refused = self._refused or cause
            if session is not self._session:
                return  # retired
            self._session = None
            # A broker that refuses a call answers first what it took of it.
            self._window.ended(unread=isinstance(cause, InvalidRequestError))
            if self._closed or not (self._window or unacked):
                return
            self._connecting = True
        if cause is None or self._worth_retrying(cause):
            cause = session.refusal or cause or session.write_error or _ENDED
        self._route.failed(cause)
        worthwhile = self._worth_retrying(cause)
        with self._changed:
            if worthwhile and not self._window:
                self._connecting = False  # the next `send` connects
                return
        self._open_session(None if worthwhile and session.progressed else cause)

    def _worth_retrying(self, error: HeadwaterError) -> bool:
        return worth_retrying(error, several=self._window.several)

    def _give_up(self, error: HeadwaterError) -> None:
        """Settle all remaining batches with an error, and accept no more batches."""
        with self._changed:
            told = [(entry, outcome_of(entry, error)) for entry in self._window.abandon()]
            self._failed = self._failed or error
            first = told[0][1] if told else error
            self._refused = of_all_refusals(self._refused, first, self._path.acks)
            self._changed.notify_all()
        for entry, outcome in told:
            _resolve(entry, outcome)


def new_producer_id() -> ProducerId:
    """Return 63 random bits."""
    return ProducerId(secrets.randbits(63))


def _resolve(entry: WindowEntry, answer: AppendResult | HeadwaterError) -> None:
    if isinstance(answer, AppendResult):
        entry.future.set_result(answer)
    else:
        entry.future.set_exception(answer)
