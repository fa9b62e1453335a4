"""Checks that the records which a streaming query has read are still in its streams.

A stream can lose its newest records and give their offsets to new ones, if all data was restored
from an older copy, or an operator accepted a loss. A query that used only the offsets of its
checkpoint would then skip records that it never read. So each end in the checkpoint has the lineage
id of the leadership under which it was committed. The ends are checked before the next batch is
planned, and when a batch is planned again. A checkpoint without lineage ids cannot be checked.
"""

from __future__ import annotations

from broker.errors import ForeignHistoryError
from broker.model.offsets import OffsetRange
from spark_jobs.source.lookup import CommittedEnds, Lookup, StreamPositions
from spark_jobs.source.stream_offsets import StreamOffsets


def require_history(lookup: Lookup, name: str, read: StreamOffsets, now: CommittedEnds) -> None:
    """Check that the ends of a query belong to the stream's present history.

    The broker is asked only if a partition has another leadership than the noted one. If the stream
    was created again, nothing is checked here; the caller raises that error.

    Raises:
        ForeignHistoryError: an end does not belong. Facts: stream, partition, lineage_id, end.
        StreamRecreatedError, UnknownStreamError: the stream was created again, or is gone.
    """
    if read.uuid != now.uuid:
        return
    ends = {
        number: (lineage_id, int(read.ends[number]))
        for number, lineage_id in read.lineage_ids.items()
        if number < len(now.ends)
    }
    if all(_leads_still(now, number, *position) for number, position in ends.items()):
        return
    # The broker takes a position for every partition; (lineage id, 0) is always valid.
    asked = [ends.get(number, (one, 0)) for number, one in enumerate(now.lineage_ids)]
    try:
        lookup.check_history(name, read.uuid, asked)
    except ForeignHistoryError as error:
        raise ForeignHistoryError(
            f"the query has read records of {name!r} that the stream has lost, and the stream may "
            f"have other records in their place: {error.message}. Start a new query with another "
            "checkpoint, and write into another table, because the old table has the lost records",
            **error.facts,
        ) from error


def noted(read: StreamOffsets | None, batch: StreamOffsets, now: CommittedEnds) -> StreamOffsets:
    """Return a batch's end with the lineage ids of the leaderships under which it is committed.

    ``read`` is the end of the batch before, which was checked against ``now``.
    """
    found = {}
    for number, end in batch.ends.items():
        if number < len(now.ends) and end <= now.ends[number]:
            found[number] = now.lineage_ids[number]
        elif read is not None and number in read.lineage_ids and end == read.ends[number]:
            found[number] = read.lineage_ids[number]
    return StreamOffsets(batch.uuid, batch.ends, batch.starts, found)


def committed_of(stream: StreamPositions, now: CommittedEnds) -> StreamPositions:
    """Return a stream's positions, cut to the high watermarks of ``now``, which was read later."""
    ranges = {
        number: OffsetRange(span.start, max(span.start, min(span.end, now.ends[number])))
        for number, span in stream.ranges.items()
        if number < len(now.ends)
    }
    return StreamPositions(stream.name, stream.uuid, ranges)


def _leads_still(now: CommittedEnds, number: int, lineage_id: str, end: int) -> bool:
    return now.lineage_ids[number] == lineage_id and end <= now.ends[number]
