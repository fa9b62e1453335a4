"""The tail of one partition of a cut, from the broker: every record of it, or an error."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence

import pyarrow as pa

from broker.errors import CompactedRangeError, GapError
from broker.model.certificate import Hole
from broker.model.cut import Cut, PartitionCut
from broker.model.offsets import OffsetRange
from headwater.client import Client


def tail_batches(
    client: Client,
    cut: Cut,
    part: PartitionCut,
    columns: Sequence[str],
    on_hole: Callable[[Hole], None] | None = None,
) -> Iterator[pa.RecordBatch]:
    """Yield the records ``[cold end, hot stop)`` of a partition, in order; none if it is empty.

    If the stream has no table, key compaction may have removed records: ``on_hole`` gets each hole.
    Missing records of any other stream are an error, and so are holes without an ``on_hole``.

    Raises:
        CompactedRangeError: the records have become cold since, and some have left the table.
        GapError: after the last batch, if the broker sent another number of records.
        HeadwaterError: the broker refused the read, or does not answer.
    """
    wanted = OffsetRange(part.cold_end, max(part.cold_end, part.hot_stop))
    yield from served_batches(client, cut, part.partition, wanted, columns, on_hole)


def served_batches(  # noqa: PLR0917  # what to read, and who is told of holes
    client: Client,
    cut: Cut,
    partition: int,
    wanted: OffsetRange,
    columns: Sequence[str],
    on_hole: Callable[[Hole], None] | None = None,
) -> Iterator[pa.RecordBatch]:
    """Yield a range of a partition, in order, as the broker serves it from log or table.

    Errors as for :func:`tail_batches`.
    """
    counted, due = 0, len(wanted)
    if due == 0:
        return
    with client.fetch(
        cut.stream,
        partition,
        wanted.start,
        wanted.end,
        columns=columns,
        stream_uuid=cut.stream_uuid,
    ) as fetched:
        for one in fetched:
            removed = one.removed_count
            if removed and cut.table_version is not None:
                raise CompactedRangeError(
                    f"records of [{one.base_offset}, {one.end_offset}) of partition {partition} "
                    "have left the table by key compaction since the cut was taken: take a new cut",
                    partition=partition,
                    start=int(one.base_offset),
                    end=int(one.end_offset),
                )
            if removed and on_hole is not None:
                on_hole(Hole(one.base_offset, one.end_offset, "compaction", removed))
                counted += removed
            counted += one.batch.num_rows
            if one.batch.num_rows:
                yield one.batch
    if counted != due:
        raise GapError(
            f"the broker sent {counted} of the {due} records {wanted} of partition {partition}",
            partition=partition,
            start=wanted.start + counted,
            end=wanted.end,
        )


def joined_holes(holes: Sequence[Hole]) -> tuple[Hole, ...]:
    """Return the holes of key compaction as one, from the first to the last, with their count."""
    if not holes:
        return ()
    missing = sum(one.missing_count or 0 for one in holes)
    return (Hole(holes[0].start, holes[-1].end, "compaction", missing),)
