"""Serving a range of rows: from the log's bytes, below the local log from the table, then live.

One generator per do_get. It checks that offsets are contiguous across both tiers, shows committed
records only (unless it is asked for others), and never waits longer than ``idle_check_ms`` without
asking whether it should stop. A replica that follows serves what it knows to be committed; what it
would have to guess it asks the leader for.

A record is known by its offset and the leader epoch that wrote it: two logs with the same epoch at
an offset are equal up to there. Whenever the leadership has changed, the record before the next one
to send is looked at again, so a reader is never carried over a truncation.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import dataclass

import numpy as np
import pyarrow as pa

from broker.codec.flight.protocol import AtTime, ReadRequest, RowsMark
from broker.codec.flight.reply_batches import Reply, replies
from broker.codec.record_batch import decode_body
from broker.codec.schema import ROW_SCHEMA
from broker.errors import (
    GapError,
    NotLeaderError,
    OffsetOutOfRangeError,
    StreamRecreatedError,
    TruncatedError,
)
from broker.model.epochs import LeaderEpoch
from broker.model.ids import PartitionId, StreamUuid
from broker.model.offsets import Offset
from broker.model.stream import Stream
from broker.ports.api import BrokerApi
from broker.ports.partition import PartitionHandle

_UNCOMMITTED_WAIT_MS = 20  # nobody is told of records before they are committed


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
    leader_epoch: LeaderEpoch | None = None  # of the record before the start, if the reader knows
    uncommitted: bool = False

    @property
    def name(self) -> str:
        """How messages name the partition."""
        return f"{self.stream.name}/{self.partition}"

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
        TruncatedError: the log does not hold the record that the reader goes on from.
        HistoryClaimedError, ForeignHistoryError: another process leads this history; what is here
            can be read as uncommitted only.
    """
    stream = api.stream(request.stream)
    check_incarnation(stream, request.stream_uuid)
    handle = api.partition(request.stream, request.partition)
    if request.uncommitted:
        _check_leads(handle, f"{request.stream}/{request.partition}")
    else:
        _check_history(handle)
    first = earliest(api, stream, request.partition, handle.log_start)
    last = _last(api, request, handle)
    start = _start(api, request, stream, handle, first=first, last=last)
    end = request.end
    if end is None and not request.follow:
        end = max(start, last)
    _check_bounds(request, first, last, start, end)
    columns = request.columns
    schema = (
        ROW_SCHEMA if columns is None else pa.schema([ROW_SCHEMA.field(name) for name in columns])
    )
    wanted = RowRange(
        handle,
        stream,
        request.partition,
        start,
        end,
        schema,
        request.batch_bytes_max,
        request.leader_epoch,
        request.uncommitted,
    )
    if request.leader_epoch is not None and start <= handle.log_end:
        _check_goes_on(wanted, start, request.leader_epoch)
    return wanted


def _last(api: BrokerApi, request: ReadRequest, handle: PartitionHandle) -> Offset:
    """Return the first offset that may not be read yet; asks the leader if it decides something."""
    if request.uncommitted:
        return handle.log_end
    here = handle.high_watermark
    start, end = request.start, request.end
    whole = start == "latest" or (end is None and not request.follow)
    beyond = (isinstance(start, int) and start > here) or (end is not None and end > here)
    if not whole and not beyond:
        return here
    return max(here, api.standing(request.stream, request.partition).high_watermark)


def _check_leads(handle: PartitionHandle, name: str) -> None:
    if not handle.leads:
        raise NotLeaderError(f"only the leader of {name} serves what is not committed")


def _check_history(handle: PartitionHandle) -> None:
    """Refuse to tell a part of a history that another process leads for the whole of it."""
    if handle.lost_leadership is not None:
        raise handle.lost_leadership


def _check_bounds(
    request: ReadRequest, first: Offset, last: Offset, start: Offset, end: Offset | None
) -> None:
    if request.leader_epoch is not None and start > last:
        raise TruncatedError(
            f"the records of {request.stream}/{request.partition} now end at {last}, below {start}",
            partition=request.partition,
            offset=start,
            leader_epoch=request.leader_epoch,
            end=last,
        )
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
    api: BrokerApi,
    request: ReadRequest,
    stream: Stream,
    handle: PartitionHandle,
    *,
    first: Offset,
    last: Offset,
) -> Offset:
    match request.start:
        case "earliest":
            return first
        case "latest":
            return last
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
    it may be older. The table is asked first if the local log may not hold the answer; its
    statistics say which objects have to be read. Looks again where the cleaner freed a part of the
    local log meanwhile: the record that reaches the time first may have been in that part.
    """
    asked = first  # no record below reaches the time
    while True:
        log_start = handle.log_start
        if asked < log_start:
            # The local log only knows its own part, so older records have to be asked first.
            found = api.cold_offset_at(stream.name, partition, asked, log_start, stamp_us)
            if found is not None:
                return found
            asked = log_start
        try:
            found = _local_offset_at(handle, stamp_us)
        except OffsetOutOfRangeError:
            if handle.log_start == log_start:
                raise
            continue
        if handle.log_start == log_start:
            return found


def _local_offset_at(handle: PartitionHandle, stamp_us: int) -> Offset:
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
    position, written_in = wanted.start, wanted.leader_epoch
    looked_in: LeaderEpoch | None = None  # the leadership under which the record before was seen
    while not check_stop():
        now = handle.leader_epoch  # before the limit: a log is cut after its epoch has changed
        readable = _readable(wanted)
        limit = readable if wanted.end is None else min(wanted.end, readable)
        if position < limit:
            if now != looked_in and written_in is not None:
                _check_goes_on(wanted, position, written_in)
            looked_in = now
            for reply, epoch in _next_replies(api, wanted, position, limit):
                if handle.leader_epoch != now:
                    break  # read again: what was read may be gone
                position, written_in = reply.end_offset, epoch
                yield (
                    reply.rows,
                    RowsMark(reply.base_offset, position, handle.high_watermark, epoch),
                )
                if check_stop():
                    return
        elif wanted.end is not None and position >= wanted.end:
            return
        elif wanted.uncommitted:
            handle.wait_committed(position, min(idle_check_ms, _UNCOMMITTED_WAIT_MS))
            _check_still_there(api, wanted)
        elif handle.wait_committed(position, idle_check_ms) <= position:
            _check_still_there(api, wanted)


def _readable(wanted: RowRange) -> Offset:
    """Return up to where records may be shown."""
    if not wanted.uncommitted:
        _check_history(wanted.handle)
        return wanted.handle.high_watermark
    _check_leads(wanted.handle, wanted.name)
    return wanted.handle.log_end


def _check_goes_on(wanted: RowRange, position: Offset, written_in: LeaderEpoch) -> None:
    """Raise if the record before ``position`` is not the one that the reader was given.

    What has left the local log is in the table: it was committed, and is never truncated.
    """
    handle = wanted.handle
    before = Offset(position - 1)
    if before < handle.log_start:
        return
    try:
        found = handle.read(before, position, bytes_max=1)[0].header.leader_epoch
    except OffsetOutOfRangeError:
        if before < handle.log_start:
            return
        found = LeaderEpoch(-1)  # cut a moment ago
    if found != written_in:
        raise TruncatedError(
            f"the record {before} of {wanted.name} that was read in leader epoch {written_in} is "
            "not in the log any more",
            partition=wanted.partition,
            offset=position,
            leader_epoch=written_in,
            end=min(before, handle.log_end),
        )


def _check_still_there(api: BrokerApi, wanted: RowRange) -> None:
    """Raise if the stream was deleted, so that a follower does not wait for nobody."""
    check_incarnation(api.stream(wanted.stream.name), wanted.stream.uuid)


def _next_replies(
    api: BrokerApi, wanted: RowRange, position: Offset, limit: Offset
) -> Iterator[tuple[Reply, LeaderEpoch]]:
    """Yield replies from ``position`` on: the cold part, or one read of the local log.

    Each with the leader epoch that wrote its last record.
    """
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
    found = replies(
        [(batch.header, batch.body) for batch in stored],
        start=position,
        end=limit,
        partition=wanted.partition,
        subject=wanted.stream.config.partition_subject(wanted.partition),
        schema=wanted.schema,
    )
    place = 0
    for reply in found:
        while stored[place].header.end_offset < reply.end_offset:
            place += 1
        yield reply, stored[place].header.leader_epoch


def _cold_replies(
    api: BrokerApi, wanted: RowRange, start: Offset, end: Offset
) -> Iterator[tuple[Reply, LeaderEpoch]]:
    """Yield rows from the table; asks for offsets and epochs even if the client did not."""
    schema = asked = wanted.schema
    for name in ("offset", "leader_epoch"):
        if asked.get_field_index(name) < 0:
            asked = asked.append(ROW_SCHEMA.field(name))
    position = start
    for rows in api.read_cold(wanted.stream.name, wanted.partition, start, end, asked):
        if not rows.num_rows:
            continue
        offsets = np.asarray(rows.column(asked.get_field_index("offset")))
        whole = offsets[0] == position and bool((np.diff(offsets) == 1).all())
        if not whole or offsets[-1] >= end:
            raise _cold_gap(wanted, position, end)
        base, position = position, Offset(position + rows.num_rows)
        epoch = rows.column(asked.get_field_index("leader_epoch"))[-1].as_py()
        shown = rows if asked is schema else rows.select(schema.names)
        yield Reply(shown, base, position), LeaderEpoch(epoch)
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
