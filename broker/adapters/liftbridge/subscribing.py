"""Subscribe: the committed records of one partition, from any offset of its history.

A subscription runs on a thread of its own. There it waits for records, and for a subscriber that
does not read. Start and stop positions are as in Liftbridge; records below the local log come from
the table.

Source: Liftbridge's server/api.go; docs/decisions/0029 lists the differences.
"""

from __future__ import annotations

import threading
from collections.abc import Callable
from dataclasses import replace
from functools import cached_property
from typing import Final, Protocol

from broker.adapters.liftbridge.group_readers import GroupReaders, GroupReading
from broker.adapters.liftbridge.http2 import Messages, prefixed
from broker.adapters.liftbridge.messages import NS_PER_US, SCHEMA, encode_rows
from broker.adapters.liftbridge.statuses import Code, StatusError
from broker.adapters.reading.rows import RowRange, read_rows
from broker.adapters.reading.starts import committed_here, first_readable
from broker.adapters.reading.times import offset_at
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
_ROWS_MAX: Final = 16 * 1024  # of one piece: a batch may have four million empty records
_IDLE_CHECK_MS: Final = 200  # how late a subscriber's end is noticed
_NO_PARTITION: Final = "No such partition"
_REVERSE_RECORDS: Final = 1000  # read forwards, and sent backwards, at a time


class Subscriber(Protocol):
    """The receiver of a subscription's messages. The subscription's thread calls it."""

    def stopped(self) -> bool:
        """Whether the subscriber has gone, or the service closes."""

    def send(self, messages: Messages) -> None:
        """Send messages with their prefixes; blocks while the subscriber takes nothing."""


class CallSink:
    """Hands messages of a subscription's thread to the event loop, a bounded number of bytes."""

    def __init__(self, bytes_max: int, deliver: Callable[[Messages], None]) -> None:
        self._bytes_max = bytes_max
        self._deliver = deliver
        self._changed = threading.Condition()
        self._under_way: int = 0  # bytes that the connection has not taken
        self._stopped = False

    def stopped(self) -> bool:
        """See ``Subscriber.stopped``."""
        return self._stopped

    def send(self, messages: Messages) -> None:
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
        return _send(api_, request, sink, *_wanted(api_, request, stream, handle))
    place = (consumer.groupId, stream.uuid, request.partition)
    readers.refuse_former(*place, consumer.groupEpoch)
    wanted = _wanted(api_, request, stream, handle)  # first: a refused request replaces nobody
    reading = readers.enter(*place, consumer.groupEpoch)
    try:
        return _send(api_, request, _Member(sink, reading), *wanted)
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

    def send(self, messages: Messages) -> None:
        """See ``Subscriber.send``."""
        self._sink.send(messages)


def _send(
    api_: BrokerApi,
    request: api.SubscribeRequest,
    sink: Subscriber,
    wanted: RowRange,
    lowest: Offset,
) -> str | None:
    handle, stream = wanted.handle, wanted.stream
    sink.send(prefixed(b""))  # Liftbridge's clients wait for this sign that the request is accepted
    if request.reverse:
        _send_backwards(api_, wanted, lowest, sink)
        return "All records were sent"
    follows_leader = not request.readISRReplica

    def stop() -> bool:
        if follows_leader and not handle.leads:
            if api_.streams.get(stream.name).uuid != stream.uuid:  # deleted, and made again
                raise StatusError(Code.NOT_FOUND, f"stream {stream.name!r} was deleted")
            raise StatusError(Code.UNAVAILABLE, "Server is no longer partition leader")
        _refuse_paused(handle)
        return sink.stopped()

    position, end = wanted.start, wanted.end
    while True:
        try:
            for rows, mark in read_rows(
                api_, wanted, idle_check_ms=_IDLE_CHECK_MS, check_stop=stop
            ):
                for start in range(0, rows.num_rows, _ROWS_MAX):
                    some = rows.slice(start, _ROWS_MAX)
                    sink.send(encode_rows(some, stream=stream.name, partition=request.partition))
                position = mark.end_offset
            break
        except ExpiredError:
            first = first_readable(api_, stream, request.partition, handle)
            has_begun = request.startPosition != api.EARLIEST or position != wanted.start
            if has_begun or first <= position:
                raise
            # The earliest record has expired since it was looked up.
            position = first if end is None else min(first, end)
            wanted = replace(wanted, start=position)
    if sink.stopped():
        return None
    ended = end is not None and position >= end
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


class _Log:
    """The partition's log, as far as it is known for certain where it ends.

    A leader's log ends behind its last record, acknowledged or not: Liftbridge counts so. It does
    not matter whether the leader knows yet what is committed. A leader without a lease says nothing
    unless another one does, which may have led since. Readers of a replica get what is committed,
    because other records of a replica may go again.
    """

    def __init__(
        self,
        api_: BrokerApi,
        request: api.SubscribeRequest,
        stream: Stream,
        handle: PartitionHandle,
    ) -> None:
        self._api = api_
        self._of_leader = not request.readISRReplica
        self._stream = stream
        self._partition = request.partition
        self._handle = handle
        self.first = first_readable(api_, stream, request.partition, handle)

    @cached_property
    def committed(self) -> Offset:
        """First offset that is not committed; this replica may lack records below it."""
        try:
            told = self._api.partitions.standing(self._stream.name, self._partition)
        except NotLeaderError as error:
            raise _unavailable(error) from error
        return max(self.first, told.high_watermark)

    @cached_property
    def end(self) -> Offset:
        """First offset for which there is no record."""
        if not self._of_leader:
            return self.committed
        end = self._api.partitions.leaders_end(self._stream.name, self._partition)
        if end is not None:
            return max(self.first, end)
        committed = self.committed  # refuses if no leader tells what a former leader may lack
        return max(committed, self._handle.reads.log_end)

    @cached_property
    def end_here(self) -> Offset:
        """The same, but this replica has all records below it."""
        return self.end if self._of_leader else self.committed_here

    @cached_property
    def committed_here(self) -> Offset:
        """First offset that is not committed; this replica has all records below it."""
        try:
            end = committed_here(self._api, self._stream, self._partition, self._handle)
        except NotLeaderError as error:
            raise _unavailable(error) from error
        return max(self.first, end)

    def at(self, stamp_us: int) -> Offset:
        """Return the first offset that reaches a time, else the end."""
        return offset_at(
            self._api, self._stream, self._partition,
            handle=self._handle, first=self.first, stamp_us=stamp_us, end=lambda: self.end_here,
        )  # fmt: skip

    def next_from(self, offset: Offset) -> Offset:
        """Return the offset, or that of the next committed record if there is no such offset yet.

        Nothing below a record that exists is read: the subscriber may have had it already.
        """
        reads = self._handle.reads
        here = reads.log_end if self._of_leader else reads.high_watermark
        if offset <= here or offset <= self.end:
            return offset
        return self.committed


def _unavailable(error: NotLeaderError) -> StatusError:
    return StatusError(Code.UNAVAILABLE, error.message)


def _wanted(
    api_: BrokerApi, request: api.SubscribeRequest, stream: Stream, handle: PartitionHandle
) -> tuple[RowRange, Offset]:
    """Return what is read, and where a subscriber who reads backwards ends."""
    log = _Log(api_, request, stream, handle)
    start, end, lowest = _bounds(request, log)
    wanted = RowRange(
        handle, stream, request.partition, start, end, SCHEMA, _READ_BYTES, ends_readonly=True
    )
    return wanted, lowest


def _bounds(request: api.SubscribeRequest, log: _Log) -> tuple[Offset, Offset | None, Offset]:
    start = _start(request, log)
    if request.reverse:
        end = log.committed_here  # what may not be read yet is not waited for
        if end == log.first:
            raise StatusError(Code.RESOURCE_EXHAUSTED, "Stream is empty")
        return min(start, Offset(end - 1)), None, _lowest(request, log, start)
    return log.next_from(start), _end(request, log, start), log.first


def _start(request: api.SubscribeRequest, log: _Log) -> Offset:
    first = log.first
    match request.startPosition:
        case api.OFFSET:
            return max(first, Offset(request.startOffset))
        case api.EARLIEST:
            return first
        case api.LATEST:
            return max(first, Offset(log.end - 1))
        case api.TIMESTAMP:
            return log.at(-(-request.startTimestamp // NS_PER_US))
        case api.NEW_ONLY:
            return log.end
    raise StatusError(Code.INVALID_ARGUMENT, f"Unknown StartPosition {request.startPosition}")


def _end(request: api.SubscribeRequest, log: _Log, start: Offset) -> Offset | None:
    match request.stopPosition:
        case api.STOP_ON_CANCEL:
            return None
        case api.STOP_OFFSET:
            end = Offset(request.stopOffset + 1)
        case api.STOP_LATEST:
            end = log.end
            if end == log.first:
                raise StatusError(Code.RESOURCE_EXHAUSTED, "Stream is empty")
        case api.STOP_TIMESTAMP:
            end = log.at(request.stopTimestamp // NS_PER_US + 1)
            if end == log.first:
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


def _lowest(request: api.SubscribeRequest, log: _Log, start: Offset) -> Offset:
    """Return the last offset that a subscriber who reads backwards gets."""
    match request.stopPosition:
        case api.STOP_OFFSET:
            if request.stopOffset > start:
                raise StatusError(
                    Code.INVALID_ARGUMENT,
                    f"stop offset {request.stopOffset} is above the start offset {start}, and the "
                    "records are read backwards",
                )
            return max(log.first, Offset(request.stopOffset))
        case api.STOP_TIMESTAMP:
            return max(log.first, log.at(-(-request.stopTimestamp // NS_PER_US)))
        case api.STOP_ON_CANCEL | api.STOP_LATEST:
            return log.first
    raise StatusError(Code.INVALID_ARGUMENT, f"Unknown StopPosition {request.stopPosition}")


def _send_backwards(api_: BrokerApi, wanted: RowRange, lowest: Offset, sink: Subscriber) -> None:
    """Send the records from the start of ``wanted`` down to ``lowest``."""
    end = Offset(wanted.start + 1)
    while end > lowest and not sink.stopped():
        start = max(lowest, Offset(end - _REVERSE_RECORDS))
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
