"""AS OF: turns the moment that a reader names into a cut with exactly the rows of that moment.

There are three ways to name a moment. Offsets and times narrow a new cut:

- **a saved cut** is used as it is;
- **offsets**, one per partition: the rows below these offsets. Every partition must be named, and
  each offset must be between the partition's start and its high watermark. If partitions were added
  to the stream later, name only those that it had then: no row of an added one belongs to the
  moment;
- **a time**: in each partition, the rows below the first offset whose timestamp is at or after the
  time, or all rows if there is no such offset yet. Timestamps need not be in order: a record after
  that offset does not belong to the moment, even if its timestamp is older, and every record before
  that offset does.

A record that retention or key compaction removed may have been that first one. A time is refused if
that cannot be ruled out, see tiering/read/moments.py.

A time is looked up in the table and in the log, so the result does not depend on the tier. Once
each partition has a record that reaches the time, every later read gets the same rows. To get the
same rows in every case, save the cut of the read.
"""

from __future__ import annotations

import json
from collections.abc import Mapping
from dataclasses import dataclass, replace
from datetime import UTC, datetime, timedelta
from typing import TYPE_CHECKING, Any, Final, TypeAlias

import numpy as np
import pyarrow as pa

from broker.codec.flight.protocol import AtTime
from broker.errors import InvalidCutError, InvalidRequestError, OffsetOutOfRangeError
from broker.model.cut import Cut, PartitionCut
from broker.model.offsets import OFFSET_MAX, Offset, OffsetRange
from headwater.reads.table_access import table_location
from tiering.read.certify import certify_counts
from tiering.read.lake import kept_table
from tiering.read.moments import compacted_moment, require_moment_known
from tiering.read.times import first_reaching

if TYPE_CHECKING:
    from headwater.client import Client
    from tiering.table.delta_table import DeltaStreamTable
    from tiering.table.table import TableSnapshot

AsOf: TypeAlias = str | int | datetime | Mapping[int, int] | Mapping[str, int] | Cut

_SAVED_CUT: Final = "hwcut1."
_EPOCH: Final = datetime(1970, 1, 1, tzinfo=UTC)
_TEXT_MAX: Final = 1024 * 1024
# 1973 to 5138 in microseconds. A current time in s or ms is below this range, one in ns above it.
_TIME_US: Final = range(10**14, 10**17)


@dataclass(frozen=True, slots=True)
class AtOffsets:
    """The rows of each partition below its offset."""

    offsets: Mapping[int, Offset]


def parse_as_of(moment: AsOf) -> Cut | AtOffsets | AtTime:
    """Parse a caller's ``as_of``. Pure.

    Args:
        moment: A cut, or its saved text; a mapping of partition to offset, or its JSON; a time as
            a datetime with a zone, as ISO text (UTC unless it has a zone), or as microseconds.

    Raises:
        InvalidCutError: the text is none of these, or a damaged cut.
        InvalidRequestError: the value is of another type, or out of bounds.
    """
    match moment:
        case Cut():
            return moment
        case str():
            return _parse_text(moment)
        case datetime():
            return _at_datetime(moment)
        case int() if not isinstance(moment, bool):
            if moment not in _TIME_US:
                raise InvalidRequestError(
                    f"as_of {moment} is not a time in microseconds since 1970; give microseconds, "
                    "a datetime or ISO text, or offsets as {partition: offset}"
                )
            return AtTime(moment)
        case Mapping():
            return _at_offsets(moment)
    raise InvalidRequestError(
        "as_of takes a cut, {partition: offset}, or a time (datetime, ISO text or microseconds), "
        f"not {type(moment).__name__}"
    )


def narrowed(cut: Cut, moment: AtOffsets | AtTime, client: Client) -> Cut:
    """Return ``cut``, which must be new, narrowed to an earlier moment. Blocks.

    Raises:
        InvalidRequestError: not every partition is named, or the time is in the future.
        OffsetOutOfRangeError: an offset is below the start or not committed yet.
        ExpiredError, CompactedRangeError: a record that went may have defined the moment.
        CorruptDataError, UnavailableError: the time could not be looked up in a tier.
    """
    if isinstance(moment, AtOffsets):
        ends = _checked_offsets(cut, moment.offsets)
    else:
        ends = _ends_at(cut, moment.timestamp_us, client)
    return replace(
        cut,
        partitions=tuple(replace(part, until=ends[part.partition]) for part in cut.partitions),
    )


def proved_table(cut: Cut, client: Client) -> tuple[DeltaStreamTable, TableSnapshot] | None:
    """Open the table of a cut at its version and prove it by counts; None without a table. Blocks.

    Raises:
        CorruptDataError: the table is not what was committed; a subclass says why.
    """
    if cut.table_version is None:
        return None
    table = kept_table(table_location(client, cut))
    snapshot = table.snapshot(cut.table_version)
    certify_counts(snapshot, cut, table.store, sparse=True)
    return table, snapshot


def _parse_text(text: str) -> Cut | AtOffsets | AtTime:
    stripped = text.strip()
    if stripped.startswith(_SAVED_CUT):
        return Cut.load(stripped)
    if len(stripped) > _TEXT_MAX:
        raise InvalidCutError(f"as_of has {len(stripped)} characters; {_TEXT_MAX} is the maximum")
    if stripped.startswith("{"):
        try:
            return _at_offsets(json.loads(stripped, object_pairs_hook=_unique))
        except (ValueError, RecursionError) as cause:
            raise InvalidRequestError(
                f'as_of offsets must be JSON like {{"0": 5}}, not {stripped[:100]!r}'
            ) from cause
    try:
        moment = datetime.fromisoformat(stripped)
    except ValueError:
        raise InvalidCutError(
            f"as_of {stripped[:100]!r} is neither a saved cut (it begins with {_SAVED_CUT}) nor a "
            'time such as 2026-01-31T08:00:00Z, nor offsets such as {"0": 5}'
        ) from None
    return _at_datetime(moment if moment.tzinfo else moment.replace(tzinfo=UTC))


def _at_datetime(moment: datetime) -> AtTime:
    if moment.tzinfo is None:
        raise InvalidRequestError(
            f"as_of {moment.isoformat()} has no time zone; add one, such as tzinfo=datetime.UTC"
        )
    stamp_us = (moment - _EPOCH) // timedelta(microseconds=1)
    if stamp_us < 0:
        raise InvalidRequestError(f"as_of {moment.isoformat()} is before 1970")
    return AtTime(stamp_us)


def _at_offsets(given: Mapping[Any, Any]) -> AtOffsets:
    offsets: dict[int, Offset] = {}
    for partition, offset in given.items():
        number = (
            int(partition) if isinstance(partition, str) and partition.isdecimal() else partition
        )
        whole = isinstance(number, int) and isinstance(offset, int)
        if not whole or isinstance(number, bool) or isinstance(offset, bool):
            raise InvalidRequestError(
                f"as_of maps partitions to offsets, such as {{0: 1200}}, not {partition!r}: "
                f"{offset!r}"
            )
        if not 0 <= offset <= OFFSET_MAX or number in offsets:
            raise InvalidRequestError(
                f"as_of names partition {number} twice, or its offset {offset} is not 0 to "
                f"{OFFSET_MAX}"
            )
        offsets[number] = Offset(offset)
    return AtOffsets(offsets)


def _unique(pairs: list[tuple[str, Any]]) -> dict[str, Any]:
    found = dict(pairs)
    if len(found) != len(pairs):
        raise ValueError("a partition is named twice")
    return found


def _checked_offsets(cut: Cut, offsets: Mapping[int, Offset]) -> dict[int, Offset]:
    count = len(cut.partitions)
    least = count if cut.keys_from is None else cut.keys_from
    if not least <= len(offsets) <= count or set(offsets) != set(range(len(offsets))):
        raise InvalidRequestError(
            f"as_of names partitions {sorted(offsets)}, but stream {cut.stream} has "
            f"{[part.partition for part in cut.partitions]}; name each of them"
        )
    for part in cut.partitions[: len(offsets)]:
        offset = offsets[part.partition]
        if not part.start <= offset <= part.hot_end:
            raise OffsetOutOfRangeError(
                f"as_of {offset} is outside [{part.start}, {part.hot_end}] of {cut.stream} "
                f"partition {part.partition}",
                stream=cut.stream,
                partition=part.partition,
                offset=offset,
                start=part.start,
                end=part.hot_end,
            )
    return {part.partition: offsets.get(part.partition, part.start) for part in cut.partitions}


def _ends_at(cut: Cut, stamp_us: int, client: Client) -> dict[int, Offset]:
    """Return per partition the first offset that reaches the time, else its high watermark."""
    if stamp_us > cut.taken_us:
        raise InvalidRequestError(
            f"as_of {_iso(stamp_us)} is in the future: the broker's clock says "
            f"{_iso(cut.taken_us)}, and records of that time may still arrive"
        )
    ends: dict[int, Offset] = {}
    proved = proved_table(cut, client)  # the time is looked up in a proved table only
    if proved is not None:
        table, snapshot = proved
        for part in cut.partitions:
            cold = OffsetRange(part.start, part.cold_end)
            found = first_reaching(snapshot, table.store, part.partition, cold, stamp_us)
            require_moment_known(snapshot, table.store, part, stamp_us, found)
            if found is not None:
                ends[part.partition] = found
    for part in cut.partitions:
        if part.partition not in ends:
            ends[part.partition] = _hot_end_at(cut, part, stamp_us, client)
    return ends


def _hot_end_at(cut: Cut, part: PartitionCut, stamp_us: int, client: Client) -> Offset:
    """Return the first offset of the tail (the untiered records) that reaches the time."""
    if part.hot_end == part.cold_end:
        return part.hot_end
    with client.fetch(
        cut.stream,
        part.partition,
        part.cold_end,
        part.hot_end,
        columns=["timestamp", "offset"],
        stream_uuid=cut.stream_uuid,
    ) as fetched:
        for one in fetched:
            stamps = np.asarray(one.batch.column(0).view(pa.int64()))
            hits = np.flatnonzero(stamps >= stamp_us)
            found = Offset(one.batch.column(1)[int(hits[0])].as_py()) if hits.size else None
            known = found is not None and found - one.base_offset == hits[0]  # all before are here
            if one.removed_count and not known:
                span = OffsetRange(one.base_offset, one.end_offset)
                raise compacted_moment(part.partition, span)
            if found is not None:
                return found
    return part.hot_end


def _iso(stamp_us: int) -> str:
    return (_EPOCH + timedelta(microseconds=stamp_us)).isoformat()
