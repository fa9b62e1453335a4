"""Serving a range of rows: from the table below the local log, from the log, then live.

One generator per read. It checks that offsets are contiguous across both tiers. It returns only
committed records, unless uncommitted ones are requested. It checks at least every ``idle_check_ms``
whether it should stop. A follower serves the records that it knows to be committed; for anything
else it asks the leader.

A record is identified by its offset and the leader epoch that wrote it: two logs with the same
epoch at an offset are equal up to that offset. After each change of leadership, the record before
the next record to send is checked again. So a read fails, and does not continue, if its records
were truncated.

The file is not split: what a request may read (`resolve`) and what it gets (`read_rows`) have the
same refusals, and both work on a `RowRange`.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import ExitStack, nullcontext
from dataclasses import dataclass
from typing import Final

import numpy as np
import numpy.typing as npt
import pyarrow as pa

from broker.adapters.reading.shared import SHARED_BYTES_MAX, Followed, Found, NewestRows
from broker.adapters.reading.starts import committed_here, first_readable, local_start
from broker.adapters.reading.times import offset_at
from broker.adapters.reading.turns import Turns
from broker.codec.flight.protocol import AtTime, ReadRequest, RowsMark
from broker.codec.flight.reply_batches import Reply, replies
from broker.codec.schema import ROW_SCHEMA
from broker.errors import (
    ExpiredError,
    GapError,
    NotLeaderError,
    OffsetOutOfRangeError,
    PurgedError,
    ShuttingDownError,
    StreamRecreatedError,
    TruncatedError,
)
from broker.model.epochs import LeaderEpoch
from broker.model.ids import PartitionId, StreamUuid
from broker.model.offsets import Offset
from broker.model.purge import expired_error, purged_error
from broker.model.stream import Stream
from broker.ports.api import BrokerApi
from broker.ports.partition import PartitionHandle, StoredBatch

_UNCOMMITTED_WAIT_MS: Final = 20  # poll: there is no notification of uncommitted records
_FEW_BATCHES: Final = 16  # decoded without a turn: who follows a stream does not wait for others
_DECODING: Final = Turns(1)  # of the process, for all reads of more batches
_SHARED_RECORDS_MAX: Final = 1024  # a follower that is further behind reads by itself
_FOLLOWED: Final = Followed()


@dataclass(frozen=True, slots=True)
class RowRange:
    """A resolved request: the partition, the columns, and the range; ``end`` None: no end."""

    handle: PartitionHandle
    stream: Stream
    partition: int
    start: Offset
    end: Offset | None
    schema: pa.Schema
    bytes_max: int
    leader_epoch: LeaderEpoch | None = None  # of the record before the start, if it is known
    uncommitted: bool = False
    ends_readonly: bool = False  # a read without an end ends where a read-only partition does

    @property
    def name(self) -> str:
        """Name of the partition for messages."""
        return f"{self.stream.name}/{self.partition}"

    @property
    def partition_id(self) -> PartitionId:
        """Identity of the partition when the request arrived."""
        return self.handle.reads.partition_id


def check_incarnation(stream: Stream, expected: StreamUuid | None) -> None:
    """Raise StreamRecreatedError if the caller expects another stream of this name."""
    if expected is not None and expected != stream.uuid:
        raise StreamRecreatedError(
            f"stream {stream.name!r} was created again: its uuid is now {stream.uuid}, not "
            f"{expected}",
            stream=stream.name,
            expected=expected,
            found=stream.uuid,
        )


def resolve(api: BrokerApi, request: ReadRequest) -> RowRange:
    """Check a request against the present log, and turn its bounds into offsets.

    Raises:
        UnknownStreamError, UnknownPartitionError, NotLeaderError, StreamRecreatedError.
        OffsetOutOfRangeError: the start is below the first record or above the high watermark, or
            the end is above the high watermark and the request does not follow.
        PurgedError, ExpiredError: the start is below what was purged, or what has expired.
        TruncatedError: the log does not hold the record before the start of a continued read.
        HistoryClaimedError, ForeignHistoryError: another process leads this history; this broker's
            records can only be read as uncommitted.
    """
    stream = api.streams.get(request.stream)
    check_incarnation(stream, request.stream_uuid)
    handle = api.partitions.handle(request.stream, request.partition)
    if request.uncommitted:
        _check_leads(handle, f"{request.stream}/{request.partition}")
    else:
        _check_history(handle)
    first = first_readable(api, stream, request.partition, handle)
    last = _last(api, request, handle, first)
    start = _start(api, request, stream, handle, first=first, last=last)
    if not isinstance(request.start, int):  # records may have expired since it was looked up
        start = max(start, handle.reads.remote_start)
        last = max(last, start)  # more may be known to be committed than at first
    end = request.end
    if end is None and not request.follow:
        end = max(start, last)
    if start < handle.reads.remote_start:
        raise _expired(handle, f"{request.stream}/{request.partition}", start)
    if start < handle.reads.purged_end and start < first:
        raise _purged(handle, f"{request.stream}/{request.partition}", start)
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
    if request.leader_epoch is not None and start <= handle.reads.log_end:
        _check_continues(wanted, start, request.leader_epoch)
    return wanted


def _last(api: BrokerApi, request: ReadRequest, handle: PartitionHandle, first: Offset) -> Offset:
    """Return the first offset that may not be read yet; ask the leader only if it matters."""
    if request.uncommitted:
        return handle.reads.log_end
    here = handle.reads.high_watermark
    start, end = request.start, request.end
    whole = start == "latest" or (end is None and not request.follow)
    beyond = (isinstance(start, int) and start > here) or (end is not None and end > here)
    beyond = beyond or first > here  # committed records were purged before this replica got them
    if not whole and not beyond:
        return here
    return max(here, api.partitions.standing(request.stream, request.partition).high_watermark)


def _purged(handle: PartitionHandle, name: str, offset: Offset) -> PurgedError:
    reads = handle.reads
    return purged_error(name, offset, start=reads.purged_end, end=reads.high_watermark)


def _expired(handle: PartitionHandle, name: str, offset: Offset) -> ExpiredError:
    reads = handle.reads
    return expired_error(name, offset, start=reads.remote_start, end=reads.high_watermark)


def _check_leads(handle: PartitionHandle, name: str) -> None:
    if not handle.leads:
        raise NotLeaderError(
            f"only the leader of {name} serves uncommitted records: ask the leader"
        )


def _check_history(handle: PartitionHandle) -> None:
    """Refuse a read of committed records if another process leads this history.

    This log may lack records of that history.
    """
    if handle.lost_leadership is not None:
        raise handle.lost_leadership


def _check_bounds(
    request: ReadRequest, first: Offset, last: Offset, start: Offset, end: Offset | None
) -> None:
    if request.leader_epoch is not None and start > last:
        raise TruncatedError(
            f"the records of {request.stream}/{request.partition} now end at {last}, below the "
            f"start {start} of this read",
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
            f"offset {bad} of {request.stream}/{request.partition} is outside the readable range "
            f"[{first}, {last})",
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
                api,
                stream,
                request.partition,
                handle=handle,
                first=first,
                stamp_us=timestamp_us,
                end=lambda: (
                    last
                    if request.uncommitted
                    else committed_here(api, stream, request.partition, handle)
                ),
            )
        case offset:
            return Offset(offset)


def read_rows(
    api: BrokerApi,
    wanted: RowRange,
    *,
    idle_check_ms: int,
    check_stop: Callable[[], bool],
) -> Iterator[tuple[pa.RecordBatch, RowsMark]]:
    """Yield the rows of a resolved request, in offset order, each offset exactly once.

    Records that key compaction removed are absent, from the log of a stream without a table and
    from a table whose history is compacted; the mark says so.

    Blocks while it follows; ends early, without an error, if ``check_stop`` returns true.

    Raises:
        GapError: offsets are missing between two batches or between the tiers.
        UnknownStreamError, StreamRecreatedError: the stream was deleted while it was followed.
        ShuttingDownError: this replica is closed, and another broker may have the next record.
        HeadwaterError: errors of the log and the table.
    """
    with ExitStack() as stack:
        newest = None
        if wanted.end is None:
            stack.enter_context(wanted.handle.followed())
            newest = stack.enter_context(_FOLLOWED.follow(wanted.handle))
        try:
            yield from _rows(
                api, wanted, newest, idle_check_ms=idle_check_ms, check_stop=check_stop
            )
        except ShuttingDownError:
            _check_still_there(api, wanted)  # the replica of a deleted stream is closed, too
            raise


def _rows(
    api: BrokerApi,
    wanted: RowRange,
    newest: NewestRows | None,
    *,
    idle_check_ms: int,
    check_stop: Callable[[], bool],
) -> Iterator[tuple[pa.RecordBatch, RowsMark]]:
    handle = wanted.handle
    position, written_in = wanted.start, wanted.leader_epoch
    checked_in: LeaderEpoch | None = None  # leader epoch in which the record before was checked
    while not check_stop():
        # Read before the limit: the epoch changes before a truncation.
        present = handle.reads.leader_epoch
        readable = _readable(wanted)
        limit = readable if wanted.end is None else min(wanted.end, readable)
        if position < limit:
            if present != checked_in and written_in is not None:
                _check_continues(wanted, position, written_in)
            checked_in = present
            for reply, epoch in _next_replies(api, wanted, newest, position, limit):
                if handle.reads.leader_epoch != present:
                    break  # the epoch has changed: these rows may be truncated, so read again
                position, written_in = reply.end_offset, epoch
                yield reply.rows, _mark(reply, handle.reads.high_watermark, epoch)
                if check_stop():
                    return
        elif _is_over(api, wanted, position):
            return
        elif wanted.uncommitted:
            _wait(api, wanted, position, min(idle_check_ms, _UNCOMMITTED_WAIT_MS))
        else:
            _wait(api, wanted, position, idle_check_ms)


def _wait(api: BrokerApi, wanted: RowRange, position: Offset, timeout_ms: int) -> None:
    """Wait for a committed record at ``position``; raise if none will come."""
    if wanted.handle.reads.wait_committed(position, timeout_ms) <= position:
        _check_still_there(api, wanted)


def _is_over(api: BrokerApi, wanted: RowRange, position: Offset) -> bool:
    """Tell whether a read that has reached ``position`` gets no more."""
    if wanted.end is not None and position >= wanted.end:
        return True
    return wanted.ends_readonly and _is_finished(api, wanted, position)


def _is_finished(api: BrokerApi, wanted: RowRange, position: Offset) -> bool:
    """Tell whether a partition is read-only and has no record at ``position`` or above.

    A follower has seen everything when its log ends there and the leader has committed no more.
    """
    handle = wanted.handle
    if not handle.is_readonly or position < handle.reads.log_end:  # in this order
        return False
    if handle.leads:
        return True
    try:
        standing = api.partitions.standing(wanted.stream.name, wanted.partition)
    except NotLeaderError:
        return False  # nobody leads now: the next leader says how far the log reaches
    return position >= standing.high_watermark


def _mark(reply: Reply, high_watermark: Offset, epoch: LeaderEpoch) -> RowsMark:
    whole = reply.rows.num_rows == reply.end_offset - reply.base_offset
    left = None if whole else reply.rows.num_rows
    return RowsMark(reply.base_offset, reply.end_offset, high_watermark, epoch, left)


def _readable(wanted: RowRange) -> Offset:
    """Return the end of the records that may be sent."""
    if not wanted.uncommitted:
        _check_history(wanted.handle)
        return wanted.handle.reads.high_watermark
    _check_leads(wanted.handle, wanted.name)
    return wanted.handle.reads.log_end


def _check_continues(wanted: RowRange, position: Offset, written_in: LeaderEpoch) -> None:
    """Raise TruncatedError if the record before ``position`` is no longer the one that was sent.

    A record that was freed from the local log is in the table: it was committed and is never
    truncated.
    """
    handle = wanted.handle
    before = Offset(position - 1)
    if before < local_start(handle):
        return
    try:
        found = handle.reads.read(before, position, bytes_max=1)[0].header.leader_epoch
    except OffsetOutOfRangeError:
        if before < local_start(handle):
            return
        found = LeaderEpoch(-1)  # the record has just been truncated
    if found != written_in:
        raise TruncatedError(
            f"record {before} of {wanted.name}, which was read in leader epoch {written_in}, is no "
            "longer in the log: begin a new read at another offset",
            partition=wanted.partition,
            offset=position,
            leader_epoch=written_in,
            end=min(before, handle.reads.log_end),
        )


def _check_still_there(api: BrokerApi, wanted: RowRange) -> None:
    """Raise if the stream was deleted, so that a read that follows it does not wait for ever."""
    check_incarnation(api.streams.get(wanted.stream.name), wanted.stream.uuid)


def _next_replies(
    api: BrokerApi,
    wanted: RowRange,
    newest: NewestRows | None,
    position: Offset,
    limit: Offset,
) -> Iterable[Found]:
    """Return replies from ``position`` on: rows of the table, or one read of the local log.

    Each reply comes with the leader epoch of its last record.
    """
    handle = wanted.handle
    log_start = local_start(handle)
    if position < handle.reads.remote_start:
        raise _expired(handle, wanted.name, position)
    if position < handle.reads.purged_end and not handle.config.tiering:
        raise _purged(handle, wanted.name, position)
    if position < log_start:
        return _cold_replies(api, wanted, position, min(limit, log_start))
    if newest is None or not _shares(wanted, newest, position, limit):
        stored = _stored(wanted, position, limit, wanted.bytes_max)
        return _hot_replies(wanted, position, limit, stored)
    # The epoch changes before a truncation. The caller compares it with the one before the read.
    key = (handle.reads.leader_epoch, position, tuple(wanted.schema.names))

    def read() -> tuple[list[Found], int]:
        stored = _stored(wanted, position, limit, SHARED_BYTES_MAX)
        size = sum(batch.header.body_size for batch in stored)
        return list(_hot_replies(wanted, position, limit, stored)), size

    return newest.take(key, limit, read)


def _shares(wanted: RowRange, newest: NewestRows, position: Offset, limit: Offset) -> bool:
    few = limit - position <= _SHARED_RECORDS_MAX and wanted.bytes_max >= SHARED_BYTES_MAX
    return newest.is_shared and few and not wanted.uncommitted


def _stored(wanted: RowRange, position: Offset, limit: Offset, bytes_max: int) -> list[StoredBatch]:
    """Return the batches of one read of the local log; none if the table has them by now."""
    handle = wanted.handle
    try:
        stored = handle.reads.read(position, limit, bytes_max=bytes_max)
    except OffsetOutOfRangeError:
        if position < handle.reads.log_start:
            return []  # freed since the check: the caller tries again
        raise
    if handle.config.tiering and any(batch.header.sparse for batch in stored):
        return []  # compacted since the check
    return stored


def _hot_replies(
    wanted: RowRange, position: Offset, limit: Offset, stored: Sequence[StoredBatch]
) -> Iterator[Found]:
    """Yield the rows of ``[position, limit)`` that are in ``stored``, with their leader epochs."""
    found = replies(
        [(batch.header, batch.body) for batch in stored],
        start=position,
        end=limit,
        partition=wanted.partition,
        subject=wanted.stream.config.partition_subject(wanted.partition),
        schema=wanted.schema,
    )
    place = 0
    while (reply := _decoded(found, len(stored))) is not None:
        while stored[place].header.end_offset < reply.end_offset:
            place += 1
        yield reply, stored[place].header.leader_epoch


def _decoded(found: Iterator[Reply], batches_count: int) -> Reply | None:
    """Return the next reply, decoded in turn with other reads; None after the last one."""
    with nullcontext() if batches_count <= _FEW_BATCHES else _DECODING.take():
        return next(found, None)


def _cold_replies(api: BrokerApi, wanted: RowRange, start: Offset, end: Offset) -> Iterator[Found]:
    """Yield rows from the table; reads offsets and epochs even if the client did not ask.

    Where key compaction has removed records, a reply begins at the first offset that is gone, and
    ends with its last row. So the epoch of the reply is that of the record before the next one.
    """
    schema = asked = wanted.schema
    for name in ("offset", "leader_epoch"):
        if asked.get_field_index(name) < 0:
            asked = asked.append(ROW_SCHEMA.field(name))
    position, epoch = start, wanted.leader_epoch or LeaderEpoch(0)
    found = api.cold.read(wanted.stream.name, wanted.partition, start, end, asked)
    for rows in found.rows:
        if not rows.num_rows:
            continue
        offsets = np.asarray(rows.column(asked.get_field_index("offset")))
        if not _follow(offsets, position, found.whole_start) or offsets[-1] >= end:
            raise _cold_gap(wanted, position, end)
        base, position = position, Offset(int(offsets[-1]) + 1)
        epoch = LeaderEpoch(rows.column(asked.get_field_index("leader_epoch"))[-1].as_py())
        shown = rows if asked is schema else rows.select(schema.names)
        yield Reply(shown, base, position), epoch
    if position < end <= found.whole_start:  # the last records of the range are gone
        yield Reply(pa.RecordBatch.from_pylist([], schema), position, end), epoch
    elif position != end:
        raise _cold_gap(wanted, position, end)


def _follow(offsets: npt.NDArray[np.int64], position: Offset, whole_start: Offset) -> bool:
    """Tell whether rows may come at ``position``: each offset, but below ``whole_start`` some."""
    before = np.concatenate(([position - 1], offsets[:-1]))
    steps = offsets - before
    return bool(((steps == 1) | ((steps > 1) & (offsets <= whole_start))).all())


def _cold_gap(wanted: RowRange, start: Offset, end: Offset) -> GapError:
    return GapError(
        f"{wanted.stream.name}/{wanted.partition}: the table's rows of [{start}, {end}) are not "
        f"complete",
        partition=wanted.partition,
        start=start,
        end=end,
    )
