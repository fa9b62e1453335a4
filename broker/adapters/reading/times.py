"""The first record of a partition that reaches a time: in the table, then in the local log."""

from __future__ import annotations

from collections.abc import Callable

import numpy as np

from broker.adapters.reading.starts import local_start
from broker.codec.record_batch import decode_body, offsets_of
from broker.errors import OffsetOutOfRangeError
from broker.model.offsets import Offset
from broker.model.stream import Stream
from broker.ports.api import BrokerApi
from broker.ports.partition import PartitionHandle


def offset_at(
    api: BrokerApi,
    stream: Stream,
    partition: int,
    *,
    handle: PartitionHandle,
    first: Offset,
    stamp_us: int,
    end: Callable[[], Offset],
) -> Offset:
    """Return the first offset stamped at or after ``stamp_us``, else the ``end``.

    ``end`` is asked only if no record that is known here to be committed reaches the time. It
    returns an offset below which the local log has all records.

    If timestamps are not in order, records after the result may be older. The table is searched
    first if the local log may not hold the result; its statistics say which objects must be read.
    The search is repeated if a part of the local log was freed or compacted meanwhile, because the
    result may have been in that part.
    """
    start = first  # of the search: all records below are older than the time
    while True:
        log_start = local_start(handle)
        if start < log_start and not handle.config.tiering:
            start = log_start  # the records below were purged meanwhile
        start = max(start, handle.reads.remote_start)  # the records below have expired meanwhile
        if start < log_start:
            # The table has older records than the local log, so it is searched first.
            found = api.cold.offset_at(stream.name, partition, start, log_start, stamp_us)
            if found is not None:
                return found
            start = log_start
        try:
            found = _local_offset_at(handle, stamp_us, handle.reads.high_watermark)
            if found is None:
                search_end = end()
                found = _local_offset_at(handle, stamp_us, search_end)
                found = search_end if found is None else found
        except OffsetOutOfRangeError:
            if local_start(handle) == log_start:
                raise
            continue
        if local_start(handle) == log_start:
            return max(found, log_start)


def _local_offset_at(handle: PartitionHandle, stamp_us: int, end: Offset) -> Offset | None:
    """Return the first offset below ``end`` that reaches the time, or None."""
    found = handle.reads.offset_at(stamp_us)
    if found < end:
        found = _first_reaching(handle, found, stamp_us)
    return found if found < end else None


def _first_reaching(handle: PartitionHandle, offset: Offset, stamp_us: int) -> Offset:
    """Return the first record of the batch at ``offset`` with a timestamp at or after the time."""
    stored = handle.reads.read(offset, Offset(offset + 1), bytes_max=1)[0]
    body = decode_body(stored.header, stored.body)
    hits = np.flatnonzero(np.asarray(body.column(0)) >= stamp_us)
    if not hits.size:
        return offset
    return max(offset, Offset(int(offsets_of(stored.header, body)[hits[0]])))
