"""Publish and PublishAsync: messages in, acknowledgements out.

A message goes straight to the partition that this broker leads, so that its acknowledgement means
what the stream's other publishers are promised: the record is on disk. The messages that one read
of the socket brought for one partition are one batch of the log.

Everything here runs on the event loop, except the look-up of a partition, which may ask the
controllers. An outcome comes back from a commit thread by ``call_soon``.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from itertools import groupby
from typing import Final, Protocol

from google.protobuf.message import DecodeError

from broker.adapters.liftbridge.messages import NS_PER_US, POLICIES, size_of, to_batch
from broker.adapters.liftbridge.statuses import Code, Status, status_of
from broker.errors import (
    HeadwaterError,
    InvalidRequestError,
    RecordTooLargeError,
    UnknownStreamError,
)
from broker.model.records import AckPolicy
from broker.model.stream import Stream
from broker.ports.partition import PartitionHandle, RecordsOutcome
from broker.ports.system import Clock
from broker.wire.liftbridge import api_pb2 as api
from broker.wire.liftbridge import message_pb2 as wire

_BATCH_BYTES: Final = 2048  # of an Arrow message with every column and no data
_ROW_BYTES: Final = 64  # of a row beside its data
_ASYNC_CODES: Final = {
    Code.NOT_FOUND: api.PublishAsyncError.NOT_FOUND,
    Code.INVALID_ARGUMENT: api.PublishAsyncError.BAD_REQUEST,
}


@dataclass(frozen=True, slots=True)
class PublishTarget:
    """A partition to publish to."""

    stream: Stream
    partition: int
    handle: PartitionHandle

    @property
    def subject(self) -> str:
        """NATS subject of the partition."""
        return self.stream.config.partition_subject(self.partition)


@dataclass(slots=True)
class Published:
    """One message that waits for its outcome."""

    request: api.PublishRequest
    window_bytes: int
    received_us: int


class Looks(Protocol):
    """Finds partitions, outside of the event loop."""

    def look_up(
        self, stream: str, partition: int, found: Callable[[PublishTarget | HeadwaterError], None]
    ) -> None:
        """Call ``found`` on the event loop, later."""


Answer = Callable[[Published, api.PublishResponse | None, Status], None]


@dataclass(slots=True)
class _Run:
    """Messages of one partition and one ack policy, in order."""

    target: PublishTarget
    policy: AckPolicy
    messages: list[Published]


class PublishCall:
    """The messages of one call, in order. Owner: the event loop."""

    def __init__(
        self,
        looks: Looks,
        clock: Clock,
        call_soon: Callable[[Callable[[], None]], None],
        answer: Answer,
    ) -> None:
        """``answer`` gets each message once; a response of None: the message is not answered."""
        self._looks = looks
        self._clock = clock
        self._call_soon = call_soon
        self._answer = answer
        self._waiting: deque[Published] = deque()
        self._targets: dict[tuple[str, int], PublishTarget] = {}
        self._looking = False
        self._unanswered = 0

    @property
    def idle(self) -> bool:
        """Whether every message was answered."""
        return not self._unanswered

    def take(self, messages: Sequence[Published]) -> None:
        """Store messages."""
        self._unanswered += len(messages)
        self._waiting += messages
        self._go_on()

    def _go_on(self) -> None:
        """Store what waits, up to the first message whose partition is not known yet."""
        ready: list[tuple[PublishTarget, Published]] = []
        while self._waiting and not self._looking:
            request = self._waiting[0].request
            target = self._targets.get((request.stream, request.partition))
            if target is None:
                self._look_up(request.stream, request.partition)
                break
            ready.append((target, self._waiting.popleft()))
        for (target, policy), group in groupby(
            ready, lambda one: (one[0], POLICIES.get(one[1].request.ackPolicy))
        ):
            self._store(target, policy, [published for _, published in group])

    def _look_up(self, stream: str, partition: int) -> None:
        self._looking = True

        def found(target: PublishTarget | HeadwaterError) -> None:
            self._looking = False
            if isinstance(target, PublishTarget):
                self._targets[stream, partition] = target
            else:
                refused = self._waiting.popleft()
                self._refuse([refused], target)
            self._go_on()

        if not stream:
            error = UnknownStreamError("a message names no stream", stream="")
            self._call_soon(lambda: found(error))
        else:
            self._looks.look_up(stream, partition, found)

    def _store(
        self, target: PublishTarget, policy: AckPolicy | None, messages: list[Published]
    ) -> None:
        if policy is None:
            self._refuse(messages, InvalidRequestError("the ack policy is not known"))
            return
        limit = target.stream.config.record_bytes_max
        fitting: list[Published] = []
        for one in messages:
            size = size_of(one.request)
            if size <= limit:
                fitting.append(one)
                continue
            self._refuse(
                [one],
                RecordTooLargeError(
                    f"a record of {size} bytes exceeds {limit} bytes (record_bytes_max)",
                    size_bytes=size,
                    limit_bytes=limit,
                ),
            )
        for part in _parts(fitting, target.stream.config.segment_bytes_max):
            self._submit(_Run(target, policy, part))

    def _submit(self, run: _Run) -> None:
        def done(outcome: RecordsOutcome | HeadwaterError) -> None:  # on a commit thread
            self._call_soon(lambda: self._stored(run, outcome))

        try:
            run.target.handle.writes.submit_records(
                to_batch([one.request for one in run.messages]), None, done, policy=run.policy
            )
        except HeadwaterError as error:
            self._stored(run, error)

    def _stored(self, run: _Run, outcome: RecordsOutcome | HeadwaterError) -> None:
        if isinstance(outcome, HeadwaterError):
            self._targets.pop((run.target.stream.name, run.target.partition), None)
            self._refuse(run.messages, outcome)
            return
        now_us = self._clock.now_us()
        silent = run.policy is AckPolicy.NONE
        for published, offset in zip(run.messages, outcome.offsets, strict=True):
            response = None if silent else _acked(run, published, int(offset), now_us)
            self._done(published, response, Status(Code.OK))

    def _refuse(self, messages: Sequence[Published], error: HeadwaterError) -> None:
        status = status_of(error)
        code = _ASYNC_CODES.get(status.code, api.PublishAsyncError.INTERNAL)
        for one in messages:
            # The empty ack is for old clients, which read it without looking.
            response = api.PublishResponse(
                correlationId=one.request.correlationId,
                asyncError=api.PublishAsyncError(code=code, message=status.message),
                ack=wire.Ack(),
            )
            self._done(one, response, status)

    def _done(
        self, published: Published, response: api.PublishResponse | None, status: Status
    ) -> None:
        self._unanswered -= 1
        self._answer(published, response, status)


def _parts(messages: Sequence[Published], bytes_max: int) -> Iterator[list[Published]]:
    """Yield messages in order, in parts that fit into a segment, or single ones."""
    part: list[Published] = []
    size = _BATCH_BYTES
    for one in messages:
        more = size_of(one.request) + _ROW_BYTES
        if part and size + more > bytes_max:
            yield part
            part, size = [], _BATCH_BYTES
        part.append(one)
        size += more
    if part:
        yield part


def parse(payload: bytes) -> api.PublishRequest:
    """Read a request.

    Raises:
        InvalidRequestError: the bytes are no such message.
    """
    request = api.PublishRequest()
    try:
        request.ParseFromString(payload)
    except DecodeError as cause:
        raise InvalidRequestError(f"the request is no PublishRequest: {cause}") from cause
    return request


def _acked(run: _Run, published: Published, offset: int, now_us: int) -> api.PublishResponse:
    request = published.request
    subject = run.target.subject
    return api.PublishResponse(
        correlationId=request.correlationId,
        ack=wire.Ack(
            stream=request.stream,
            partitionSubject=subject,
            msgSubject=subject,
            offset=offset,
            ackInbox=request.ackInbox,
            correlationId=request.correlationId,
            ackPolicy=request.ackPolicy,
            receptionTimestamp=published.received_us * NS_PER_US,
            commitTimestamp=now_us * NS_PER_US,
        ),
    )
