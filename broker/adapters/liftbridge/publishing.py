"""Publish and PublishAsync: messages in, acknowledgements out.

A message goes straight to the partition that it names, here or at the broker that leads the
partition. So its acknowledgement means the same as for all publishers of the stream. The messages
for one partition that one read of the socket brought become one batch of the log. While a partition
has no leader, its messages wait for a leader; messages for other partitions do not wait.

Messages beyond the quota of their publisher wait before they are stored. Their bytes count as not
handled meanwhile, so HTTP/2's window holds the publisher back.

Everything here runs on the event loop, except the look-up of a partition, which may ask the
controllers. An outcome comes back from a commit thread by ``call_soon``.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Callable, Sequence
from itertools import groupby
from operator import attrgetter
from typing import Final

from broker.adapters.access.pace import Pace
from broker.adapters.liftbridge.http2 import prefixed
from broker.adapters.liftbridge.laid_messages import lay_out_answers
from broker.adapters.liftbridge.messages import NS_PER_US, to_batch
from broker.adapters.liftbridge.publish_queue import PartitionQueue, Run, parts
from broker.adapters.liftbridge.publish_requests import POLICIES, Published, window_bytes_of
from broker.adapters.liftbridge.statuses import OK, Status, status_of_publish
from broker.adapters.liftbridge.targets import LookUps, PublishTarget
from broker.errors import (
    AccessError,
    CommitTimeoutError,
    ConditionFailedError,
    EncryptionKeyError,
    HeadwaterError,
    InvalidRequestError,
    PartitionReadonlyError,
    RecordTooLargeError,
    StreamRecreatedError,
    UnknownPartitionError,
    UnknownStreamError,
    may_be_stored,
)
from broker.model.offsets import ANY_OFFSET, Offset
from broker.model.records import AckPolicy
from broker.model.stream import StreamConfig
from broker.ports.partition import SUBMIT_AGAIN, RecordsOutcome
from broker.ports.system import Clock
from broker.wire.liftbridge import api_pb2 as api
from broker.wire.liftbridge import message_pb2 as wire

_LEADER_WAIT_MS: Final = 5_000  # how long a message waits for a leader: as Liftbridge's clients
_LOOK_UP_AGAIN_S: Final = 0.05
_ENVELOPE: Final = attrgetter("envelope")
_ACK_POLICY: Final = attrgetter("envelope.ack_policy")
_REQUEST_BYTES: Final = attrgetter("request_bytes")
# The first class that an error is an instance of counts; any other is INTERNAL.
_ASYNC_CODES: Final[tuple[tuple[type[HeadwaterError], api.PublishAsyncError.Code], ...]] = (
    (AccessError, api.PublishAsyncError.PERMISSION_DENIED),
    (UnknownStreamError, api.PublishAsyncError.NOT_FOUND),
    (UnknownPartitionError, api.PublishAsyncError.NOT_FOUND),
    (StreamRecreatedError, api.PublishAsyncError.NOT_FOUND),
    (ConditionFailedError, api.PublishAsyncError.INCORRECT_OFFSET),
    (PartitionReadonlyError, api.PublishAsyncError.READONLY),
    (EncryptionKeyError, api.PublishAsyncError.ENCRYPTION_FAILED),
    (InvalidRequestError, api.PublishAsyncError.BAD_REQUEST),
    (CommitTimeoutError, api.PublishAsyncError.UNKNOWN),  # INTERNAL: it is not stored
)


Answer = Callable[[Sequence[Published], Sequence[bytes], Status], None]
"""Gets messages that are done, and the answer of each with its prefix; none: they get no answer."""


class PublishCall:
    """The messages of one call, in order within a partition. Owner: the event loop."""

    def __init__(
        self,
        finder: LookUps,
        clock: Clock,
        call_soon: Callable[[Callable[[], None]], None],
        answer: Answer,
        pace: Pace,
    ) -> None:
        """``answer`` gets each message once."""
        self._pace = pace
        self._held: deque[Sequence[Published]] = deque()  # that came together, for the quota
        self._finder = finder
        self._clock = clock
        self._call_soon = call_soon
        self._answer = answer
        self._queues: dict[tuple[str, int], PartitionQueue] = {}
        self._unanswered = 0

    @property
    def idle(self) -> bool:
        """Whether every message was answered."""
        return not self._unanswered

    @property
    def may_store(self) -> bool:
        """Whether messages without an answer are stored, or will be if a leader is found.

        The end of the call changes this only for messages that wait because of the quota.
        """
        return self._unanswered > sum(map(len, self._held))

    def take(self, messages: Sequence[Published]) -> None:
        """Store messages, as soon as the quota of their publisher lets them pass."""
        self._unanswered += len(messages)
        self._held.append(messages)
        if len(self._held) == 1:
            self._pass_held()

    def end(self) -> Sequence[Published]:
        """End the call; return the messages that were not stored, because of the quota."""
        self._pace.leave()
        left = [one for messages in self._held for one in messages]
        self._held.clear()
        self._unanswered -= len(left)
        return left

    def _pass_held(self) -> None:
        while self._held:
            wait_ms = self._pace.ask(window_bytes_of(self._held[0]))
            if wait_ms:
                self._finder.call_later(wait_ms / 1000, self._pass_held)
                return
            self._sort(self._held.popleft())

    def _sort(self, messages: Sequence[Published]) -> None:
        """Put messages behind others of their partitions, and store what can be stored."""
        touched: dict[tuple[str, int], PartitionQueue] = {}
        for envelope, alike in groupby(messages, _ENVELOPE):
            key = envelope.target
            queue = touched.get(key)
            if queue is None:
                queue = touched[key] = self._queue_of(key)
            queue.waiting.extend(alike)
        for queue in touched.values():
            self._store_waiting(queue)

    def _queue_of(self, key: tuple[str, int]) -> PartitionQueue:
        return self._queues.setdefault(key, PartitionQueue(*key))

    def _store_waiting(self, queue: PartitionQueue) -> None:
        """Submit the messages that may be submitted now, or look up their partition first."""
        if queue.looking or not (queue.runs or queue.waiting):
            return
        target = queue.target
        if target is None or self._finder.rests(queue.stream, queue.partition):
            self._look_up(queue)
            return
        while not (queue.looking or queue.refused) and queue.may_submit(target.writer):
            if not queue.runs:
                self._make_runs(queue, target)
                if not queue.runs:
                    return
            self._submit(queue.runs.popleft())

    def _look_up(self, queue: PartitionQueue) -> None:
        queue.looking = True
        queue.dissolve_runs()

        def found(target: PublishTarget | HeadwaterError) -> None:
            queue.looking = False
            if isinstance(target, PublishTarget):
                queue.target = target
                if queue.why is None:
                    self._store_waiting(queue)
                else:  # meanwhile a run was refused that was under way
                    self._look_soon(queue, queue.why)
                return
            self._wait_or_refuse(queue, target)
            if queue.is_empty:
                self._queues.pop((queue.stream, queue.partition), None)

        if not queue.stream:
            error = UnknownStreamError("a message names no stream", stream="")
            self._call_soon(lambda: found(error))
        else:
            self._finder.look_up(queue.stream, queue.partition, found)

    def _wait_or_refuse(self, queue: PartitionQueue, error: HeadwaterError) -> None:
        """Let messages that were not stored wait for a leader, or refuse them if they waited long.

        A partition closes with its broker, or because its stream is deleted and perhaps made again.
        """
        queue.target = None
        self._refuse(queue.keep(self._waits(error)), error)
        if queue.refused or queue.waiting:
            self._look_soon(queue, error)

    def _waits(self, error: HeadwaterError) -> Callable[[Published], bool]:
        """Return whether a message that was refused with an error goes on waiting for a leader."""
        now_ms = self._clock.monotonic_ms()
        may_wait = isinstance(error, SUBMIT_AGAIN)

        def still_waits(one: Published) -> bool:
            if one.waits_until_ms is None:
                one.waits_until_ms = now_ms + _LEADER_WAIT_MS
            return may_wait and now_ms < one.waits_until_ms

        return still_waits

    def _look_soon(self, queue: PartitionQueue, error: HeadwaterError) -> None:
        """Look up a partition again after a time; ``error`` is why its messages wait."""
        queue.why = error
        if queue.looking:
            return
        queue.looking = True

        def look() -> None:
            queue.looking = False
            if queue.refused and not queue.gather():
                self._wait_or_refuse(queue, queue.why or error)
            else:
                queue.why = None
                self._store_waiting(queue)

        self._finder.call_later(_LOOK_UP_AGAIN_S, look)

    def _make_runs(self, queue: PartitionQueue, target: PublishTarget) -> None:
        """Put the waiting messages into runs; those that the stream cannot have are refused."""
        ready = list(queue.waiting)
        queue.waiting.clear()
        config = target.stream.config
        for number, group in groupby(ready, _ACK_POLICY):
            fitting, policy = list(group), POLICIES.get(number)
            if policy is None:
                why = InvalidRequestError("ackPolicy is not one of LEADER, ALL and NONE")
                self._refuse(fitting, why)
                continue
            if (
                config.optimistic_concurrency
                or max(map(_REQUEST_BYTES, fitting)) > config.record_bytes_max
            ):
                fitting = self._without_refused(fitting, policy, config)
            if config.optimistic_concurrency:
                for one in fitting:
                    expected = one.envelope.expected_offset
                    end = None if expected == ANY_OFFSET else Offset(expected)
                    queue.add(target, policy, [one], end)
                continue
            for part in parts(fitting, config.segment_bytes_max):
                queue.add(target, policy, part)

    def _without_refused(
        self, messages: list[Published], policy: AckPolicy, config: StreamConfig
    ) -> list[Published]:
        fitting: list[Published] = []
        for one in messages:
            refused = _refusal(one, policy, config)
            if refused is None:
                fitting.append(one)
            else:
                self._refuse([one], refused)
        return fitting

    def _submit(self, run: Run) -> None:
        def done(outcome: RecordsOutcome | HeadwaterError) -> None:  # on a commit thread
            self._call_soon(lambda: stored(outcome))

        def stored(outcome: RecordsOutcome | HeadwaterError) -> None:
            self._settle(run, outcome)
            self._store_waiting(run.queue)

        run.queue.submits(run)
        try:
            run.target.writer.submit_records(
                to_batch(run.messages),
                None,
                done,
                policy=run.policy,
                expected_end=run.expected_end,
                order=run.queue.order,
            )
        except HeadwaterError as error:
            self._settle(run, error)
        except MemoryError as error:  # perhaps after the partition had queued it
            self._settle(run, CommitTimeoutError(f"this broker has no memory: {error}"))

    def _settle(self, run: Run, outcome: RecordsOutcome | HeadwaterError) -> None:
        queue = run.queue
        if not queue.settled(run):
            return
        if not isinstance(outcome, HeadwaterError):
            silent = run.policy is AckPolicy.NONE
            answers = [] if silent else _acked(run, outcome, self._clock.now_us())
            self._done(run.messages, answers, OK)
        elif may_be_stored(outcome):  # a repeat could be a second one
            told = f"the message may be stored or not: {outcome.message}"
            self._refuse(run.messages, CommitTimeoutError(told))
        elif isinstance(outcome, SUBMIT_AGAIN):
            queue.target = None
            self._refuse(queue.keep_refused(run, self._waits(outcome)), outcome)
            if queue.refused:
                self._look_soon(queue, outcome)
        else:
            self._refuse(run.messages, outcome)
            if not isinstance(outcome, ConditionFailedError):  # which only the leader tells
                queue.target = None

    def _refuse(self, messages: Sequence[Published], error: HeadwaterError) -> None:
        if not messages:
            return
        status = status_of_publish(error)
        # Old clients read ``ack`` without a check that it is set, so an empty one is sent.
        response = api.PublishResponse(
            asyncError=api.PublishAsyncError(code=_async_code(error), message=status.message),
            ack=wire.Ack(),
        )
        answers: list[bytes] = []
        for one in messages:
            response.correlationId = one.correlation_id
            answers.append(prefixed(response.SerializeToString()))
        self._done(messages, answers, status)

    def _done(
        self, messages: Sequence[Published], answers: Sequence[bytes], status: Status
    ) -> None:
        self._unanswered -= len(messages)
        self._answer(messages, answers, status)


def _refusal(message: Published, policy: AckPolicy, config: StreamConfig) -> HeadwaterError | None:
    """Return why a message cannot be stored in a stream, or None."""
    limit = config.record_bytes_max
    # The record's size is counted only if it may be too large: that takes longer than the rest.
    if message.request_bytes > limit and (size := _record_bytes(message)) > limit:
        return RecordTooLargeError(
            f"a record of {size} bytes exceeds {limit} bytes (record_bytes_max)",
            size_bytes=size,
            limit_bytes=limit,
        )
    if config.optimistic_concurrency and policy is AckPolicy.NONE:
        return InvalidRequestError(
            "the stream checks the expected offset of each message, so a publisher has to wait for "
            "the answer: ack policy NONE is refused"
        )
    if config.optimistic_concurrency and message.envelope.expected_offset < ANY_OFFSET:
        return ConditionFailedError(f"no message is at {message.envelope.expected_offset}")
    return None


def _record_bytes(message: Published) -> int:
    return message.envelope.size_bytes + len(message.value)


def _async_code(error: HeadwaterError) -> api.PublishAsyncError.Code:
    for kind, code in _ASYNC_CODES:
        if isinstance(error, kind):
            return code
    return api.PublishAsyncError.INTERNAL


def _acked(run: Run, outcome: RecordsOutcome, now_us: int) -> list[bytes]:
    """Return the answers for stored messages, each with its prefix."""
    messages, subject = run.messages, run.target.subject
    envelopes = list(map(_ENVELOPE, messages))
    common = wire.Ack(
        stream=envelopes[0].stream,
        partitionSubject=subject,
        msgSubject=subject,
        ackPolicy=envelopes[0].ack_policy,
        commitTimestamp=now_us * NS_PER_US,
    )
    return lay_out_answers(
        common.SerializeToString(),
        outcome.offsets,
        [one.received_us * NS_PER_US for one in messages],
        [one.correlation_id for one in messages],
        [one.ack_inbox for one in envelopes],
    )
