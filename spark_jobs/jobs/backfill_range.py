"""The range of a backfill: from the arguments, the stream and the table's watermarks.

By default a backfill begins at the first record, or at its own earlier beginning. It ends at the
last record, or where another appender of the same table began. An ingest that is set up and has not
appended anything yet begins where its pin says: the records from there on are the ingest's.
"""

from __future__ import annotations

import argparse
from collections.abc import Mapping
from dataclasses import dataclass
from datetime import UTC, datetime
from typing import Final

from broker.errors import InvalidRequestError, OffsetOutOfRangeError, StreamRecreatedError
from broker.model.offsets import Offset, OffsetRange
from spark_jobs.decode.pins import Pin
from spark_jobs.source import positions
from spark_jobs.source.lookup import Lookup, StreamPositions
from spark_jobs.source.positions import AtMs
from spark_jobs.source.selection import Selection
from spark_jobs.tables import Watermarks

INGEST: Final = "ingest"  # the name of an ingest that was given no other
_WORDS: Final = "earliest, latest or JSON such as '{\"0\": 100}'"

Side = str | AtMs | Mapping[int, int | str] | None
Starts = Mapping[int, Offset]  # as in a pin


@dataclass(frozen=True, slots=True, kw_only=True)
class Bounds:
    """The bounds from the arguments; None: not given."""

    start: Side
    end: Side


def add_arguments(made: argparse.ArgumentParser) -> None:
    """Add the arguments that choose the records."""
    group = made.add_argument_group("range", "Default: everything that is committed now.")
    first = group.add_mutually_exclusive_group()
    first.add_argument("--from", dest="start", metavar="WHERE", help=f"first offset: {_WORDS}")
    first.add_argument(
        "--from-timestamp", metavar="TIME", help="first record at or after this ISO time or ms"
    )
    last = group.add_mutually_exclusive_group()
    last.add_argument("--to", dest="end", metavar="WHERE", help=f"offset after the last: {_WORDS}")
    last.add_argument(
        "--to-timestamp", metavar="TIME", help="up to the first record at or after this time"
    )


def parse(args: argparse.Namespace) -> Bounds:
    """Read the arguments; raises InvalidRequestError."""
    return Bounds(
        start=_side("--from", args.start, args.from_timestamp),
        end=_side("--to", args.end, args.to_timestamp),
    )


def ingests_of(
    pins: Mapping[str, Pin], stream_uuid: str, *, app: str, like: str
) -> dict[str, Starts]:
    """Return the pinned starts of the ingests that fill the same table from the same stream.

    A backfill has a pin, too, if it decodes. Only an ingest's pin has starts, or the ingest is
    known by its name. ``app`` is the backfill itself.
    """
    return {
        name: pin.starts
        for name, pin in pins.items()
        if name != app and pin.stream_uuid == stream_uuid and (pin.starts or name in (INGEST, like))
    }


def resolve(
    bounds: Bounds,
    lookup: Lookup,
    stream: str,
    uuid: str,
    found: Watermarks,
    *,
    ingests: Mapping[str, Starts],
) -> dict[int, OffsetRange]:
    """Return the whole range of each partition, including records already in the table. Blocks.

    ``ingests`` are those of the table, see :func:`ingests_of`.

    Raises:
        InvalidRequestError: a partition is unknown, the backfill began at a later offset, or
            offsets were given that are an ingest's.
        OffsetOutOfRangeError: the stream does not hold such offsets.
        StreamRecreatedError: the name now belongs to another stream.
    """
    held = lookup.positions(stream, Selection(names=(stream,)))
    if held.uuid != uuid:
        raise StreamRecreatedError(
            f"stream {stream} was created again: its uuid is {held.uuid} now, not {uuid}",
            expected=uuid,
            found=held.uuid,
        )
    starts = _offsets(bounds.start, "--from", held, lookup, positions.EARLIEST)
    ends = _offsets(bounds.end, "--to", held, lookup, positions.LATEST)
    wanted = {}
    for number, span in sorted(held.ranges.items()):
        if number not in starts or number not in ends:
            continue  # offsets name only some partitions
        start, end = starts[number], ends[number]
        begun = found.starts.get(number)
        if begun is not None and bounds.start is None:
            start = begun
        elif begun is not None and start < begun:
            raise InvalidRequestError(
                f"partition {number}: this backfill began at {begun}; for the earlier records "
                f"[{start}, {begun}) give another --app"
            )
        if not isinstance(bounds.end, Mapping):
            later = [other.start for _, part, other in found.others if part == number]
            end = min([end, *(at for at in later if at >= start)])
        end = _before_ingests(
            bounds, number, (start, end), first=int(span.start), found=found, ingests=ingests
        )
        if begun is None and not span.start <= start <= span.end:
            raise _outside(number, start, span)
        if end > span.end:
            raise _outside(number, end, span)
        wanted[number] = OffsetRange(Offset(start), Offset(max(start, end)))
    return wanted


def _before_ingests(
    bounds: Bounds,
    number: int,
    wanted: tuple[int, int],
    *,
    first: int,
    found: Watermarks,
    ingests: Mapping[str, Starts],
) -> int:
    """Return the end of a range, lowered to where an ingest will begin. ``first`` is held.

    An ingest that has appended counts as any other appender. An ingest whose first record is in the
    table already cannot append, so nothing is left for it.
    """
    start, end = wanted
    held = [(app, other.start, other.end) for app, part, other in found.others if part == number]
    if number in found.ends:
        held.append(("", found.starts[number], found.ends[number]))
    for app, starts in sorted(ingests.items()):
        at = max(int(starts.get(number, first)), first)
        if any(name == app or low <= at < high for name, low, high in held):
            continue
        by_offset = isinstance(bounds.end, Mapping) or (
            isinstance(bounds.start, Mapping) and start >= at
        )
        if by_offset and max(start, at) < end:
            raise InvalidRequestError(
                f"partition {number}: the table is set up for {app!r}, which begins at {at} and "
                f"appends everything from there, so a backfill cannot append [{start}, {end}). "
                f"Leave --to out, end at {at} at most, or use another table"
            )
        end = min(end, max(start, at))
    return end


def _offsets(
    side: Side, name: str, held: StreamPositions, lookup: Lookup, otherwise: str
) -> dict[int, int]:
    if isinstance(side, AtMs):
        return {number: lookup.offset_at(held, number, side) for number in held.ranges}
    if isinstance(side, Mapping):
        unknown = sorted(set(side) - set(held.ranges))
        if unknown:
            raise InvalidRequestError(f"{name}: stream {held.name} has no partition {unknown[0]}")
        return {number: _offset(at, held.ranges[number]) for number, at in side.items()}
    return {number: _offset(side or otherwise, span) for number, span in held.ranges.items()}


def _offset(at: int | str, span: OffsetRange) -> int:
    if isinstance(at, int):
        return at
    return int(span.start if at == positions.EARLIEST else span.end)


def _side(name: str, where: str | None, time: str | None) -> Side:
    if time is not None:
        return AtMs(_milliseconds(f"{name}-timestamp", time), or_latest=True)
    if where is None:
        return None
    found = positions.parse_bound(name, where)
    if isinstance(found, str | AtMs):
        return found
    offsets: dict[int, int | str] = {}
    for number, at in found.items():
        if not isinstance(number, int) or isinstance(at, dict):
            raise InvalidRequestError(f"{name} takes {_WORDS}; the stream is named by --stream")
        offsets[number] = at
    return offsets


def _milliseconds(name: str, text: str) -> int:
    """Return a time in milliseconds since 1970; a time without a zone is UTC."""
    if text.isascii() and text.isdigit():
        moment_ms = int(text)
    else:
        try:
            moment = datetime.fromisoformat(text)
        except ValueError as cause:
            raise InvalidRequestError(
                f"{name}: {text!r} is neither an ISO time nor a number of milliseconds"
            ) from cause
        moment = moment if moment.tzinfo is not None else moment.replace(tzinfo=UTC)
        moment_ms = -(-int(moment.timestamp() * 1_000_000) // 1000)
    parsed = positions.parse_timestamp(name, str(moment_ms), or_latest=True)
    return parsed.timestamp_ms


def _outside(number: int, at: int, span: OffsetRange) -> OffsetOutOfRangeError:
    return OffsetOutOfRangeError(
        f"partition {number} holds {span}, not offset {at}",
        offset=at,
        start=int(span.start),
        end=int(span.end),
    )
