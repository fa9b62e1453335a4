"""Ingest from NATS: subscriptions of every partition, batches to the log, answers to publishers.

Runs on one event loop. A batch is submitted to the log as soon as it is parsed. Its answers come
from the commit thread when it is durable, and many answers are sent in one write. When a
partition's queue is full, or too many of its bytes wait for their commit, the socket is not read
for a while. If that lasts, the partition loses messages, so that it cannot delay the other
partitions. A partition that cannot commit holds its share of the bytes that may wait, and leaves
the rest to the others. Lost messages are counted, logged and answered with an error. A message that
was acknowledged is never lost.
"""

from __future__ import annotations

import asyncio
import itertools
from collections import deque
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Final, Protocol

import structlog

from broker.codec.nats.envelope import Ack
from broker.codec.nats.records import DecodePublish, Records, to_records
from broker.codec.nats.stream import MessageBatch
from broker.errors import (
    HeadwaterError,
    InvalidStreamError,
    OverloadedError,
    RecordTooLargeError,
    ShuttingDownError,
)
from broker.model.ids import StreamUuid
from broker.model.stream import Stream
from broker.ports.partition import PartitionWriter, RecordsOutcome
from broker.ports.system import Clock
from broker.runtime.ingest.nats_partition import (
    Answers,
    IngestStats,
    PartitionIngest,
    TakesAnswers,
)

_SID_BASE: Final = 1 << 20  # far above the subscription ids of a client library
_STALL_POLL_S: Final = 0.02  # other writers use the queue too, so it may drain at any time
_DRAIN_TIMEOUT_S: Final = 30.0

_log = structlog.get_logger(__name__)


class NatsLink(Protocol):
    """The NATS connection for ingest; implemented by broker/adapters/nats/transport.py."""

    async def start(self, *, must_connect: bool = True) -> None:
        """Connect; raises UnavailableError if it must, InvalidConfigError."""

    async def close(self) -> None:
        """Write pending bytes and close."""

    async def subscribe(self, subjects: Mapping[int, str], queue_group: str | None) -> None:
        """Subscribe under these ids and wait for the server's confirmation.

        Raises:
            UnavailableError, InvalidStreamError.
        """

    async def unsubscribe(self, sids: Sequence[int]) -> None:
        """End subscriptions."""

    async def flush(self) -> bool:
        """Wait for one round trip to the server; False if the connection was lost."""

    def send(self, data: bytes, messages_count: int) -> bool:
        """Write protocol bytes; False when they were dropped."""


@dataclass(frozen=True, slots=True, kw_only=True)
class IngestLimits:
    """How many bytes may wait, and for how long the socket may stay unread."""

    pending_bytes_max: int = 64 * 1024 * 1024  # submitted to logs and not yet durable
    partition_bytes_max: int = 16 * 1024 * 1024  # of them, of one partition: it may be stuck
    stall_ms_max: int = 4_000  # below nats-server's write deadline of 10 s


@dataclass(slots=True)
class _Submission:
    """Rows that are submitted to a partition's log, until their outcome is answered."""

    partition: PartitionIngest
    records: Records
    received_us: int
    size_bytes: int
    deadline_ms: int | None = None  # set at the first overload
    outcome: RecordsOutcome | HeadwaterError | None = field(default=None)


class NatsIngest:
    """Implements a transport's ``MessageSink`` for all streams that this broker leads."""

    def __init__(
        self,
        *,
        clock: Clock,
        decode_publish: DecodePublish,
        encode_ack: Callable[[Ack], bytes],
        limits: IngestLimits | None = None,
        takes_answers: TakesAnswers = lambda _stream, _address: True,
    ) -> None:
        """Prepare; :meth:`attach` the connection before :meth:`start`."""
        self._takes_answers = takes_answers
        self._clock = clock
        self._decode_publish = decode_publish
        self._encode_ack = encode_ack
        self._limits = limits or IngestLimits()
        self._link: NatsLink | None = None
        self._loop: asyncio.AbstractEventLoop | None = None
        self._sids = itertools.count(_SID_BASE)
        self._by_sid: dict[int, PartitionIngest] = {}
        self._by_stream: dict[StreamUuid, list[PartitionIngest]] = {}
        self._pending_bytes = 0
        self._submissions_count = 0
        self._backlog: deque[_Submission] = deque()  # parsed, but not yet accepted by a log
        self._room: asyncio.Task[None] | None = None  # runs while there is a backlog
        self._completed: deque[_Submission] = deque()
        self._wakeup_due = False
        self._progress = asyncio.Event()
        self._stopping = False
        self.gaps_total = 0  # lost connections: messages that were published meanwhile are unknown

    # ------------------------------------------------------------------ life

    def attach(self, link: NatsLink) -> None:
        """Use this connection; it must have this object as its sink."""
        self._link = link

    async def start(self, *, must_connect: bool = True) -> None:
        """Connect; without ``must_connect`` a server that is away may answer later.

        Raises UnavailableError, InvalidConfigError.
        """
        self._loop = asyncio.get_running_loop()
        await self._connection().start(must_connect=must_connect)

    async def stop(self, drain: bool) -> None:
        """Unsubscribe and close; with ``drain``, first store and answer the messages received."""
        link = self._connection()
        if drain:
            every = [one for partitions in self._by_stream.values() for one in partitions]
            await self._unsubscribe(every)
            await self._wait_idle()
        self._stopping = True
        self._progress.set()
        if drain:
            await link.flush()
        await link.close()
        self._by_stream.clear()
        self._by_sid.clear()

    async def serve(self, stream: Stream, logs: Mapping[int, PartitionWriter]) -> None:
        """Subscribe for these partitions of a stream, by number, and for no other partitions.

        Partitions that were served before go on, by the stream's present settings. The
        subscriptions are active on the server when this returns.

        Raises:
            InvalidStreamError: the server does not allow one of the subjects.
            UnavailableError: no connection. The partitions are subscribed with the next connection.
        """
        present = self._by_stream.get(stream.uuid, [])
        kept = [one for one in present if logs.get(one.number) is one.writes]
        new = [
            PartitionIngest(stream, number, writes, next(self._sids), self._takes_answers)
            for number, writes in sorted(logs.items())
            if all(one.number != number for one in kept)
        ]
        gone = [one for one in present if one not in kept]
        for one in kept:
            one.configure(stream)
        # Before the server is asked: the first message may come with the server's confirmation.
        self._by_sid.update({one.sid: one for one in new})
        self._by_stream[stream.uuid] = [*kept, *new]
        if gone:
            await self._unsubscribe(gone)
            for partition in gone:
                self._by_sid.pop(partition.sid, None)
        if not logs:
            del self._by_stream[stream.uuid]
        if new:
            subjects = {one.sid: one.subject for one in new}
            try:
                await self._connection().subscribe(subjects, stream.config.queue_group)
            except InvalidStreamError:
                self._take_away(stream.uuid, new)
                await self._unsubscribe(new)
                raise

    def _take_away(self, uuid: StreamUuid, partitions: Sequence[PartitionIngest]) -> None:
        """Forget partitions; the others of their stream go on."""
        for one in partitions:
            self._by_sid.pop(one.sid, None)
        left = [one for one in self._by_stream.get(uuid, []) if one not in partitions]
        if left:
            self._by_stream[uuid] = left
        else:
            self._by_stream.pop(uuid, None)

    def stats(self) -> list[IngestStats]:
        """Return one snapshot per subscribed partition. Any thread."""
        return [one.stats() for partitions in list(self._by_stream.values()) for one in partitions]

    async def _unsubscribe(self, partitions: Sequence[PartitionIngest]) -> None:
        await self._connection().unsubscribe([one.sid for one in partitions])

    async def _wait_idle(self) -> None:
        try:
            async with asyncio.timeout(_DRAIN_TIMEOUT_S):
                while self._submissions_count or self._backlog:
                    await self._wait_progress(1.0)
        except TimeoutError:
            _log.warning("ingest_drain_timed_out", submissions_count=self._submissions_count)

    # ------------------------------------------------------------------ messages in

    def received(self, batches: list[MessageBatch]) -> asyncio.Future[None] | None:
        """Take the batches of one socket read; see ``MessageSink``."""
        received_us = self._clock.now_us()
        for batch in batches:
            partition = self._by_sid.get(batch.sid)
            if partition is None:
                continue  # the subscription has just ended
            counters = partition.counters
            counters.received_messages += len(batch.payloads)
            counters.received_bytes += sum(map(len, batch.payloads))
            parts, refused = to_records(batch, partition.rules, self._decode_publish)
            if refused:
                answers = Answers(self._encode_ack, received_us, self._clock.now_us())
                for one in refused:
                    partition.refuse_one(one, answers)
                self._send(answers)
            for records in parts:
                partition.pending_bytes += records.size_bytes
                partition.count_misplaced_keys(records.batch)
                self._backlog.append(
                    _Submission(partition, records, received_us, records.size_bytes)
                )
        if not self._advance() and self._room is None:
            self._room = asyncio.create_task(self._wait_for_room(), name="ingest-room")
        return self._room

    def connection_lost(self, *, slow_consumer: bool) -> None:
        """Count a gap in every subscription; see ``MessageSink``."""
        self.gaps_total += 1
        for partition in self._by_sid.values():
            partition.counters.gaps += 1
            partition.counters.slow_consumer += slow_consumer

    def _advance(self) -> bool:
        """Submit the backlog, oldest first; False when a log has no room for the next one."""
        while self._backlog:
            submission = self._backlog[0]
            partition = submission.partition
            refusal = self._try_submit(submission)
            overload = isinstance(refusal, OverloadedError)
            if overload and not self._has_waited_enough(submission):
                return False
            self._backlog.popleft()
            if refusal is None:
                if partition.shedding:
                    partition.stop_shedding()
            elif isinstance(refusal, RecordTooLargeError) and submission.records.rows_count > 1:
                # The rows do not fit together: submit the halves, in their order.
                partition.pending_bytes -= submission.size_bytes
                for half in reversed(submission.records.halves()):
                    partition.pending_bytes += half.size_bytes
                    self._backlog.appendleft(
                        replace(submission, records=half, size_bytes=half.size_bytes)
                    )
            else:
                self._give_up(submission, refusal, dropped=overload)
        return True

    def _has_waited_enough(self, submission: _Submission) -> bool:
        """Tell whether this batch is lost after an overload; the first overload starts a timer."""
        now_ms = self._clock.monotonic_ms()
        if submission.deadline_ms is None:
            # A partition that has just dropped gets no time: it would delay the others again.
            wait_ms = 0 if submission.partition.shedding else self._limits.stall_ms_max
            submission.deadline_ms = now_ms + wait_ms
        return self._stopping or now_ms >= submission.deadline_ms

    async def _wait_for_room(self) -> None:
        """Submit the whole backlog. The socket is not read meanwhile, so it does not grow."""
        try:
            while not self._advance():
                await self._wait_progress(_STALL_POLL_S)
        finally:
            self._room = None

    def _try_submit(self, submission: _Submission) -> HeadwaterError | None:
        """Submit once; return the error if it was refused, None if it was accepted."""
        size = submission.size_bytes
        if self._stopping:
            return ShuttingDownError("the broker is closing")
        own = submission.partition.submitted_bytes
        if own and own + size > self._limits.partition_bytes_max:
            return _not_durable(own, "of this partition ")
        if self._pending_bytes and self._pending_bytes + size > self._limits.pending_bytes_max:
            return _not_durable(self._pending_bytes)
        records = submission.records

        def done(outcome: RecordsOutcome | HeadwaterError) -> None:
            submission.outcome = outcome
            self._complete(submission)

        # Count before submitting: the commit thread may finish before the next line runs.
        self._count_pending(submission, 1)
        try:
            submission.partition.writes.submit_records(
                records.batch,
                records.message_ids,
                done,
                policy=records.policy,
                expected_end=records.expected_end,
            )
        except HeadwaterError as error:
            self._count_pending(submission, -1)
            return error
        return None

    def _count_pending(self, submission: _Submission, sign: int) -> None:
        self._submissions_count += sign
        self._pending_bytes += sign * submission.size_bytes
        submission.partition.submitted_bytes += sign * submission.size_bytes

    def _give_up(self, submission: _Submission, error: HeadwaterError, *, dropped: bool) -> None:
        submission.partition.pending_bytes -= submission.size_bytes
        answers = Answers(self._encode_ack, submission.received_us, self._clock.now_us())
        if dropped:
            submission.partition.drop(submission.records, error, answers)
        else:
            submission.partition.refuse(submission.records, error, answers)
        self._send(answers)

    async def _wait_progress(self, seconds: float) -> None:
        self._progress.clear()
        try:
            async with asyncio.timeout(seconds):
                await self._progress.wait()
        except TimeoutError:
            pass

    # ------------------------------------------------------------------ answers out

    def _complete(self, submission: _Submission) -> None:
        """Pass an outcome to the event loop; runs on a commit thread. Many share one wake-up."""
        self._completed.append(submission)
        if not self._wakeup_due:
            self._wakeup_due = True
            assert self._loop is not None
            try:
                self._loop.call_soon_threadsafe(self._answer_completed)
            except RuntimeError:  # the event loop has ended, so no publisher can be answered
                _log.warning("ingest_answer_too_late", stream=submission.partition.stream.name)

    def _answer_completed(self) -> None:
        # Clear first: an outcome that arrives during this loop schedules another run.
        self._wakeup_due = False
        now_us = self._clock.now_us()
        written: list[bytes] = []
        messages_count = 0
        while self._completed:
            submission = self._completed.popleft()
            self._count_pending(submission, -1)
            submission.partition.pending_bytes -= submission.size_bytes
            answers = Answers(self._encode_ack, submission.received_us, now_us)
            outcome = submission.outcome
            assert outcome is not None, "a completed submission has an outcome"
            if isinstance(outcome, HeadwaterError):
                submission.partition.refuse(submission.records, outcome, answers)
            else:
                submission.partition.stored(submission.records, outcome, answers)
            written.append(answers.encode())
            messages_count += len(answers.messages)
        if messages_count:
            self._connection().send(b"".join(written), messages_count)
        self._progress.set()

    def _send(self, answers: Answers) -> None:
        if answers.messages:
            self._connection().send(answers.encode(), len(answers.messages))

    def _connection(self) -> NatsLink:
        assert self._link is not None, "attach a connection first"
        return self._link


def _not_durable(waiting_bytes: int, whose: str = "") -> OverloadedError:
    return OverloadedError(
        f"{waiting_bytes} bytes {whose}from NATS are not durable yet: try again later",
        pending_bytes=waiting_bytes,
    )
