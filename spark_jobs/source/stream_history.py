"""Is what a streaming query has read still what its streams hold?

A stream can lose its newest records and give their offsets to others: everything was restored from
an older copy, or an operator accepted a loss. A query that believed its checkpoint's offsets alone
would go on above records that it never read. So each end in the checkpoint has the leadership under
which it was committed, and is checked before the next batch is planned, and when a batch is planned
again. Checkpoints that noted nothing are believed.
"""

from __future__ import annotations

from broker.errors import ForeignHistoryError
from broker.model.offsets import OffsetRange
from spark_jobs.source.lookup import CommittedEnds, Lookup, StreamPositions
from spark_jobs.source.stream_offsets import StreamOffsets


def require_history(lookup: Lookup, name: str, read: StreamOffsets, now: CommittedEnds) -> None:
    """Check that what was read of a stream is of the history that it has now.

    Asks only where somebody else leads than when the end was noted. A stream that was created again
    is for the caller to name.

    Raises:
        ForeignHistoryError: it is not. Facts: stream, partition, lineage_id, end.
        StreamRecreatedError, UnknownStreamError: the stream is another, or gone.
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
    # A broker is asked about all partitions at once: the others are where they are.
    asked = [ends.get(number, (one, 0)) for number, one in enumerate(now.lineage_ids)]
    try:
        lookup.check_history(name, read.uuid, asked)
    except ForeignHistoryError as error:
        raise ForeignHistoryError(
            f"the query has read records of {name!r} that the stream has not, and may have others "
            f"in their place: {error.message}. Start a new query with another checkpoint, and "
            "write into another table: what this one wrote holds the lost records",
            **error.facts,
        ) from error


def noted(read: StreamOffsets | None, batch: StreamOffsets, now: CommittedEnds) -> StreamOffsets:
    """Return a batch's end with the leaderships under which it is committed.

    ``read`` is what was read before, checked against ``now``.
    """
    found = {}
    for number, end in batch.ends.items():
        if number < len(now.ends) and end <= now.ends[number]:
            found[number] = now.lineage_ids[number]
        elif read is not None and number in read.lineage_ids and end == read.ends[number]:
            found[number] = read.lineage_ids[number]
    return StreamOffsets(batch.uuid, batch.ends, batch.starts, found)


def committed_of(stream: StreamPositions, now: CommittedEnds) -> StreamPositions:
    """Return a stream's positions as far as ``now``, looked at after them, vouches for them."""
    ranges = {
        number: OffsetRange(span.start, max(span.start, min(span.end, now.ends[number])))
        for number, span in stream.ranges.items()
        if number < len(now.ends)
    }
    return StreamPositions(stream.name, stream.uuid, ranges)


def _leads_still(now: CommittedEnds, number: int, lineage_id: str, end: int) -> bool:
    return now.lineage_ids[number] == lineage_id and end <= now.ends[number]
