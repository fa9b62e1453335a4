"""Subscribe: the committed records of one partition, from any offset of its history.

A subscription runs on a thread of its own. There it waits for records, and for a subscriber that
does not read. Start and stop positions are as in Liftbridge; records below the local log come from
the table.

Source: Liftbridge's server/api.go; docs/decisions/0029 lists the differences.
"""

from __future__ import annotations

import threading
from collections.abc import Callable
from dataclasses import dataclass, replace
from typing import Final, Protocol

from broker.adapters.liftbridge.group_readers import GroupReaders, GroupReading
from broker.adapters.liftbridge.http2 import prefixed
from broker.adapters.liftbridge.messages import NS_PER_US, SCHEMA, encode_rows
from broker.adapters.liftbridge.statuses import Code, StatusError
from broker.adapters.reading.rows import RowRange, offset_at, read_rows
from broker.adapters.reading.starts import first_readable
from broker.errors import (
    ExpiredError,
    NotLeaderError,
    UnknownPartitionError,
    UnknownStreamError,
)
from broker.model.offsets import Offset
from broker.model.stream import Stream
from broker.ports.api import BrokerApi
from broker.ports.partition import PartitionHandle
from broker.wire.liftbridge import api_pb2 as api

_READ_BYTES: Final = 512 * 1024
_IDLE_CHECK_MS: Final = 200  # how late a subscriber's end is noticed
_NO_PARTITION: Final = "No such partition"
_REVERSE_RECORDS: Final = 1000  # read forwards, and sent backwards, at a time


class Subscriber(Protocol):
    """The receiver of a subscription's messages. The subscription's thread calls it."""

    def stopped(self) -> bool:
        """Whether the subscriber has gone, or the service closes."""

    def send(self, messages: bytes) -> None:
        """Send messages with their prefixes; blocks while the subscriber takes nothing."""


class CallSink:
    """Hands messages of a subscription's thread to the event loop, a bounded number of bytes."""

    def __init__(self, bytes_max: int, deliver: Callable[[bytes], None]) -> None:
        self._bytes_max = bytes_max
        self._deliver = deliver
        self._changed = threading.Condition()
        self._under_way: int = 0  # bytes that the connection has not taken
        self._stopped = False

    def stopped(self) -> bool:
        """See ``Subscriber.stopped``."""
        return self._stopped

    def send(self, messages: bytes) -> None:
        """See ``Subscriber.send``. The subscription's thread."""
        with self._changed:
            self._changed.wait_for(lambda: self._under_way < self._bytes_max or self._stopped)
            if self._stopped:
                return
            self._under_way += len(messages)
        self._deliver(messages)

    def taken(self, waiting_bytes: int) -> None:
        """Note how many bytes wait in the connection; bytes on their way to it count as taken.

        The event loop. So at most twice the bound is under way.
        """
        with self._changed:
            self._under_way = waiting_bytes
            self._changed.notify_all()

    def stop(self) -> None:
        """Let the thread end. The event loop."""
        with self._changed:
            self._stopped = True
            self._changed.notify_all()


@dataclass(frozen=True, slots=True)
class _OffsetRange:
    """Where a subscription starts, and the offset before which it stops; None: never."""

    start: Offset
    end: Offset | None
    first: Offset  # the oldest record of the partition


def subscribe(
    api_: BrokerApi, request: api.SubscribeRequest, sink: Subscriber, readers: GroupReaders
) -> str | None:
    """Send what the subscriber asked for; return why the subscription ended. Blocks.

    Returns None if another member of the subscriber's group took its place.

    Raises:
        StatusError: the request cannot be served.
        HeadwaterError: the stream, the log or the table failed.
    """
    try:
        stream = api_.streams.get(request.stream)
    except UnknownStreamError as error:
        raise StatusError(Code.NOT_FOUND, f"{_NO_PARTITION}: {error.message}") from error
    handle = _handle(api_, request, stream)
    consumer = request.consumer
    if not consumer.groupId:
        return _send(api_, request, sink, stream, handle)
    reading = readers.enter(consumer.groupId, stream.uuid, request.partition, consumer.groupEpoch)
    try:
        return _send(api_, request, _Member(sink, reading), stream, handle)
    finally:
        readers.leave(reading)


class _Member:
    """A subscriber that may be replaced."""

    def __init__(self, sink: Subscriber, reading: GroupReading) -> None:
        self._sink = sink
        self.reading = reading

    def stopped(self) -> bool:
        """See ``Subscriber.stopped``."""
        return self.reading.replaced or self._sink.stopped()

    def send(self, messages: bytes) -> None:
        """See ``Subscriber.send``."""
        self._sink.send(messages)


def _send(
    api_: BrokerApi,
    request: api.SubscribeRequest,
    sink: Subscriber,
    stream: Stream,
    handle: PartitionHandle,
) -> str | None:
    bounds = _bounds(api_, request, stream, handle)
    sink.send(prefixed(b""))  # Liftbridge's clients wait for this sign that the request is accepted
    wanted = RowRange(
        handle, stream, request.partition, bounds.start, bounds.end, SCHEMA, _READ_BYTES,
        ends_readonly=True,
    )  # fmt: skip
    if request.reverse:
        _send_backwards(api_, wanted, bounds, sink)
        return "All records were sent"
    follows_leader = not request.readISRReplica

    def stop() -> bool:
        if follows_leader and not handle.leads:
            if api_.streams.get(stream.name).uuid != stream.uuid:  # deleted, and made again
                raise StatusError(Code.NOT_FOUND, f"stream {stream.name!r} was deleted")
            raise StatusError(Code.UNAVAILABLE, "Server is no longer partition leader")
        _refuse_paused(handle)
        return sink.stopped()

    position = bounds.start
    while True:
        try:
            for rows, mark in read_rows(
                api_, wanted, idle_check_ms=_IDLE_CHECK_MS, check_stop=stop
            ):
                sink.send(encode_rows(rows, stream=stream.name, partition=request.partition))
                position = mark.end_offset
            break
        except ExpiredError:
            first = first_readable(api_, stream, request.partition, handle)
            has_begun = request.startPosition != api.EARLIEST or position != wanted.start
            if has_begun or first <= position:
                raise
            # The earliest record has expired since it was looked up.
            position = first if bounds.end is None else min(first, bounds.end)
            wanted = replace(wanted, start=position)
    if sink.stopped():
        return None
    ended = bounds.end is not None and position >= bounds.end
    return "Stop offset reached" if ended else "End of readonly partition"


def _refuse_paused(handle: PartitionHandle) -> None:
    if handle.is_paused:
        raise StatusError(Code.FAILED_PRECONDITION, "Partition is paused")


def _handle(api_: BrokerApi, request: api.SubscribeRequest, stream: Stream) -> PartitionHandle:
    if not 0 <= request.partition < stream.config.partitions:
        raise UnknownPartitionError(_NO_PARTITION, partition=request.partition)
    if request.consumer.groupId and not request.consumer.consumerId:
        raise StatusError(Code.INVALID_ARGUMENT, "No consumerId provided")
    try:
        handle = api_.partitions.handle(stream.name, request.partition)
    except NotLeaderError as error:
        raise StatusError(Code.FAILED_PRECONDITION, "Server not partition leader") from error
    if not handle.leads and not request.readISRReplica:
        raise StatusError(Code.FAILED_PRECONDITION, "Server not partition leader")
    if not handle.leads and request.consumer.groupId:
        raise StatusError(
            Code.INVALID_ARGUMENT, "a member of a group reads from the partition's leader only"
        )
    if handle.lost_leadership is not None:
        raise handle.lost_leadership
    if request.resume and handle.is_paused:
        api_.pauses.resume(stream.name, (request.partition,))
    _refuse_paused(handle)
    return handle


def _bounds(
    api_: BrokerApi, request: api.SubscribeRequest, stream: Stream, handle: PartitionHandle
) -> _OffsetRange:
    first = first_readable(api_, stream, request.partition, handle)

    def at(stamp_us: int) -> Offset:
        return offset_at(
            api_, stream, request.partition, handle=handle, first=first, stamp_us=stamp_us
        )

    committed = max(first, handle.reads.high_watermark)  # below first may lie what is gone
    start = _start(request, first, handle, at)
    if request.reverse:
        if first == committed:
            raise StatusError(Code.RESOURCE_EXHAUSTED, "Stream is empty")
        return _OffsetRange(
            min(start, Offset(committed - 1)), None, _lowest(request, first, start, at)
        )
    # A start at an offset that does not exist yet: begin with the next committed record.
    return _OffsetRange(min(start, committed), _end(request, first, start, committed, at), first)


def _start(
    request: api.SubscribeRequest,
    first: Offset,
    handle: PartitionHandle,
    at: Callable[[int], Offset],
) -> Offset:
    match request.startPosition:
        case api.OFFSET:
            return max(first, Offset(request.startOffset))
        case api.EARLIEST:
            return first
        case api.LATEST:
            return max(first, Offset(handle.reads.high_watermark - 1))
        case api.TIMESTAMP:
            return at(-(-request.startTimestamp // NS_PER_US))
        case api.NEW_ONLY:
            return max(first, handle.reads.log_end)
    raise StatusError(Code.INVALID_ARGUMENT, f"Unknown StartPosition {request.startPosition}")


def _end(
    request: api.SubscribeRequest,
    first: Offset,
    start: Offset,
    committed: Offset,
    at: Callable[[int], Offset],
) -> Offset | None:
    match request.stopPosition:
        case api.STOP_ON_CANCEL:
            return None
        case api.STOP_OFFSET:
            end = Offset(request.stopOffset + 1)
        case api.STOP_LATEST:
            if committed == first:
                raise StatusError(Code.RESOURCE_EXHAUSTED, "Stream is empty")
            end = committed
        case api.STOP_TIMESTAMP:
            end = at(request.stopTimestamp // NS_PER_US + 1)
            if end == first:
                raise StatusError(
                    Code.RESOURCE_EXHAUSTED, "No record is as old as the stop timestamp"
                )
        case _:
            raise StatusError(Code.INVALID_ARGUMENT, f"Unknown StopPosition {request.stopPosition}")
    if end <= start:
        raise StatusError(
            Code.INVALID_ARGUMENT, f"Stop offset is before start offset: {end - 1} < {start}"
        )
    return end


def _lowest(
    request: api.SubscribeRequest, first: Offset, start: Offset, at: Callable[[int], Offset]
) -> Offset:
    """Return the last offset that a subscriber who reads backwards gets."""
    match request.stopPosition:
        case api.STOP_OFFSET:
            if request.stopOffset > start:
                raise StatusError(
                    Code.INVALID_ARGUMENT,
                    f"stop offset {request.stopOffset} is above the start offset {start}, and the "
                    "records are read backwards",
                )
            return max(first, Offset(request.stopOffset))
        case api.STOP_TIMESTAMP:
            return max(first, at(-(-request.stopTimestamp // NS_PER_US)))
    return first


def _send_backwards(
    api_: BrokerApi, wanted: RowRange, bounds: _OffsetRange, sink: Subscriber
) -> None:
    """Send ``[bounds.first, bounds.start]``, the newest record first."""
    end = Offset(bounds.start + 1)
    while end > bounds.first and not sink.stopped():
        start = max(bounds.first, Offset(end - _REVERSE_RECORDS))
        part = RowRange(
            wanted.handle, wanted.stream, wanted.partition, start, end, SCHEMA, _READ_BYTES
        )
        encoded = [
            encode_rows(rows, stream=wanted.stream.name, partition=wanted.partition, reverse=True)
            for rows, _ in read_rows(
                api_, part, idle_check_ms=_IDLE_CHECK_MS, check_stop=sink.stopped
            )
        ]
        if sink.stopped():
            return
        for messages in reversed(encoded):
            sink.send(messages)
        end = start
