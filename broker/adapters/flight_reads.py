"""Serving a range of rows: from the log's bytes, below the local log from the table, then live.

One generator per do_get. It checks that offsets are contiguous across both tiers, shows committed
records only, and never waits longer than ``idle_check_ms`` without asking whether it should stop.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import dataclass

import numpy as np
import pyarrow as pa

from broker.codec.flight_protocol import AtTime, ReadRequest, RowsMark
from broker.codec.record_batch import decode_body
from broker.codec.reply_batches import Reply, replies
from broker.codec.schema import ROW_SCHEMA
from broker.errors import GapError, OffsetOutOfRangeError, StreamRecreatedError
from broker.model.ids import PartitionId, StreamUuid
from broker.model.offsets import Offset
from broker.model.stream import Stream
from broker.ports import BrokerApi, PartitionHandle

_TIME_SCHEMA = pa.schema([ROW_SCHEMA.field("offset"), ROW_SCHEMA.field("timestamp")])


@dataclass(frozen=True, slots=True)
class RowRange:
    """A resolved request: what to read, from where, until where (None: for ever)."""

    handle: PartitionHandle
    stream: Stream
    partition: int
    start: Offset
    end: Offset | None
    schema: pa.Schema
    bytes_max: int

    @property
    def partition_id(self) -> PartitionId:
        """Identity of the partition as it was when the request came."""
        return self.handle.partition_id


def check_incarnation(stream: Stream, expected: StreamUuid | None) -> None:
    """Raise StreamRecreatedError if the caller means another stream of this name."""
    if expected is not None and expected != stream.uuid:
        raise StreamRecreatedError(
            f"stream {stream.name!r} is now {stream.uuid}, not {expected}",
            stream=stream.name,
            expected=expected,
            found=stream.uuid,
        )


def earliest(api: BrokerApi, stream: Stream, partition: int, log_start: Offset) -> Offset:
    """Return the first offset of the partition in either tier; the local log begins as given."""
    if log_start == 0:
        return log_start  # nothing was ever freed: no need to ask the tier
    for status in api.tier_status(stream.name):
        if status.partition == partition:
            return min(status.cold.start, log_start) if len(status.cold) else log_start
    table_start = api.table_start(stream.name, partition)  # its leader ships it: on another broker
    return log_start if table_start is None else min(table_start, log_start)


def resolve(api: BrokerApi, request: ReadRequest) -> RowRange:
    """Check a request against the log as it is now, and turn its bounds into offsets.

    Raises:
        UnknownStreamError, UnknownPartitionError, NotLeaderError, StreamRecreatedError.
        OffsetOutOfRangeError: the start is below the first record or above the high watermark, or
            the end is above the high watermark and the request does not follow.
    """
    stream = api.stream(request.stream)
    check_incarnation(stream, request.stream_uuid)
    handle = api.partition(request.stream, request.partition)
    first = earliest(api, stream, request.partition, handle.log_start)
    high_watermark = handle.high_watermark
    start = _start(api, request, stream, handle, first)
    end = request.end
    if end is None and not request.follow:
        end = max(start, high_watermark)
    _check_bounds(request, first, high_watermark, start, end)
    columns = request.columns
    schema = (
        ROW_SCHEMA if columns is None else pa.schema([ROW_SCHEMA.field(name) for name in columns])
    )
    return RowRange(handle, stream, request.partition, start, end, schema, request.batch_bytes_max)


def _check_bounds(
    request: ReadRequest, first: Offset, last: Offset, start: Offset, end: Offset | None
) -> None:
    bad = start if not first <= start <= last else None
    if bad is None and end is not None and end > last and not request.follow:
        bad = end
    if bad is not None:
        raise OffsetOutOfRangeError(
            f"offset {bad} of {request.stream}/{request.partition} is outside [{first}, {last})",
            stream=request.stream,
            partition=request.partition,
            offset=bad,
            start=first,
            end=last,
        )


def _start(
    api: BrokerApi, request: ReadRequest, stream: Stream, handle: PartitionHandle, first: Offset
) -> Offset:
    match request.start:
        case "earliest":
            return first
        case "latest":
            return handle.high_watermark
        case AtTime(timestamp_us):
            return offset_at(
                api, stream, request.partition, handle=handle, first=first, stamp_us=timestamp_us
            )
        case offset:
            return Offset(offset)


def offset_at(
    api: BrokerApi,
    stream: Stream,
    partition: int,
    *,
    handle: PartitionHandle,
    first: Offset,
    stamp_us: int,
) -> Offset:
    """Return the first offset stamped at or after ``stamp_us``, else the high watermark.

    Where stamps are not in order, the result is the first that reaches the time, so records after
    it may be older. Reads the table's time column if the local log may not hold the answer.
    """
    log_start = handle.log_start
    if first < log_start:
        # The local log only knows its own part, so older records have to be asked first.
        for batch in api.read_cold(stream.name, partition, first, log_start, _TIME_SCHEMA):
            stamps = np.asarray(batch.column(1).view(pa.int64()))
            hits = np.flatnonzero(stamps >= stamp_us)
            if hits.size:
                return Offset(batch.column(0)[int(hits[0])].as_py())
    found = handle.offset_at(stamp_us)
    high_watermark = handle.high_watermark
    if found >= high_watermark:
        return high_watermark
    return min(_first_reaching(handle, found, stamp_us), high_watermark)


def _first_reaching(handle: PartitionHandle, offset: Offset, stamp_us: int) -> Offset:
    """Return the first record of the batch at ``offset`` that is stamped at or after the time."""
    stored = handle.read(offset, Offset(offset + 1), bytes_max=1)[0]
    if stored.header.sparse:
        return offset
    stamps = np.asarray(decode_body(stored.header, stored.body).column(0))
    hits = np.flatnonzero(stamps >= stamp_us)
    return max(offset, Offset(stored.header.base_offset + int(hits[0]))) if hits.size else offset


def read_rows(
    api: BrokerApi,
    wanted: RowRange,
    *,
    idle_check_ms: int,
    check_stop: Callable[[], bool],
) -> Iterator[tuple[pa.RecordBatch, RowsMark]]:
    """Yield the rows of a resolved request, in offset order, each offset exactly once.

    Blocks while it follows; ends early, without an error, once ``check_stop`` says so.

    Raises:
        GapError: offsets are missing between two batches or between the tiers.
        UnknownStreamError, StreamRecreatedError: the stream was deleted while it was followed.
        Whatever the log and the table raise.
    """
    handle = wanted.handle
    position = wanted.start
    while not check_stop():
        high_watermark = handle.high_watermark
        limit = high_watermark if wanted.end is None else min(wanted.end, high_watermark)
        if position < limit:
            for reply in _next_replies(api, wanted, position, limit):
                position = reply.end_offset
                mark = RowsMark(
                    reply.base_offset, position, handle.high_watermark, handle.leader_epoch
                )
                yield reply.rows, mark
                if check_stop():
                    return
        elif wanted.end is not None and position >= wanted.end:
            return
        elif handle.wait_committed(position, idle_check_ms) <= position:
            _check_still_there(api, wanted)


def _check_still_there(api: BrokerApi, wanted: RowRange) -> None:
    """Raise if the stream was deleted, so that a follower does not wait for nobody."""
    check_incarnation(api.stream(wanted.stream.name), wanted.stream.uuid)


def _next_replies(
    api: BrokerApi, wanted: RowRange, position: Offset, limit: Offset
) -> Iterator[Reply]:
    """Yield replies from ``position`` on: the cold part, or one read of the local log."""
    handle = wanted.handle
    log_start = handle.log_start
    if position < log_start:
        yield from _cold_replies(api, wanted, position, min(limit, log_start))
        return
    try:
        stored = handle.read(position, limit, bytes_max=wanted.bytes_max)
    except OffsetOutOfRangeError:
        if position < handle.log_start:
            return  # freed between the two looks: the caller asks again, and the table has it
        raise
    yield from replies(
        [(batch.header, batch.body) for batch in stored],
        start=position,
        end=limit,
        partition=wanted.partition,
        subject=wanted.stream.config.partition_subject(wanted.partition),
        schema=wanted.schema,
    )


def _cold_replies(api: BrokerApi, wanted: RowRange, start: Offset, end: Offset) -> Iterator[Reply]:
    """Yield rows from the table; asks for offsets even if the client did not, to check them."""
    schema = wanted.schema
    hidden = schema.get_field_index("offset") < 0
    asked = schema.append(ROW_SCHEMA.field("offset")) if hidden else schema
    position = start
    for rows in api.read_cold(wanted.stream.name, wanted.partition, start, end, asked):
        if not rows.num_rows:
            continue
        offsets = np.asarray(rows.column(asked.get_field_index("offset")))
        whole = offsets[0] == position and bool((np.diff(offsets) == 1).all())
        if not whole or offsets[-1] >= end:
            raise _cold_gap(wanted, position, end)
        base, position = position, Offset(position + rows.num_rows)
        yield Reply(rows.select(schema.names) if hidden else rows, base, position)
    if position != end:
        raise _cold_gap(wanted, position, end)


def _cold_gap(wanted: RowRange, start: Offset, end: Offset) -> GapError:
    return GapError(
        f"{wanted.stream.name}/{wanted.partition}: the table's rows of [{start}, {end}) are not "
        f"complete",
        partition=wanted.partition,
        start=start,
        end=end,
    )
