"""The range of a backfill: from the arguments, the stream and the table's watermarks.

By default a backfill begins at the first record, or at its own earlier beginning. It ends at the
last record, or where another appender of the same table began. An ingest that is set up and has not
appended anything yet begins where its pin says: the records from there on are the ingest's, unless
the ingest can never append them. What is left to an ingest is told.
"""

from __future__ import annotations

import argparse
from collections.abc import Collection, Mapping
from dataclasses import dataclass
from datetime import UTC, datetime
from typing import Final

from broker.errors import (
    InvalidRequestError,
    OffsetOutOfRangeError,
    OverlapError,
    StreamRecreatedError,
)
from broker.model.offsets import Offset, OffsetRange
from spark_jobs.decode.pins import Pin
from spark_jobs.jobs.job import Report
from spark_jobs.source import positions
from spark_jobs.source.lookup import Lookup, StreamPositions
from spark_jobs.source.positions import AtMs
from spark_jobs.source.selection import Selection
from spark_jobs.tables import Watermarks

INGEST: Final = "ingest"  # the job's name, and the name of an ingest that was given no other
_BACKFILL: Final = "backfill"  # the same of this job
_WORDS: Final = "earliest, latest or JSON such as '{\"0\": 100}'"

Side = str | AtMs | Mapping[int, int | str] | None
Starts = Mapping[int, Offset]  # as in a pin


@dataclass(frozen=True, slots=True, kw_only=True)
class Bounds:
    """The bounds from the arguments; None: not given."""

    start: Side
    end: Side


@dataclass(frozen=True, slots=True, kw_only=True)
class Resolved:
    """What a backfill appends, and what it leaves to ingests that will begin.

    ``ranges`` include records already in the table. ``left`` has the first offset that is left, by
    ingest and partition.
    """

    ranges: dict[int, OffsetRange]
    left: dict[str, dict[int, int]]


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
    pins: Mapping[str, Pin],
    stream_uuid: str,
    *,
    app: str,
    like: str,
    instead_of: Collection[str] = (),
) -> dict[str, Starts]:
    """Return the pinned starts of the ingests that fill the same table from the same stream.

    A backfill has a pin, too, if it decodes. ``app`` is the backfill itself; nothing is left to
    the ingests ``instead_of`` which it appends.
    """
    return {
        name: pin.starts
        for name, pin in pins.items()
        if name not in (app, *instead_of)
        and pin.stream_uuid == stream_uuid
        and _is_ingest(name, pin, like)
    }


def _is_ingest(name: str, pin: Pin, like: str) -> bool:
    """Tell whether an ingest stored the pin; an older one has starts, or an ingest's name."""
    if pin.job is not None:
        return pin.job == INGEST
    return bool(pin.starts) or (name in (INGEST, like) and name != _BACKFILL)


def resolve(
    bounds: Bounds,
    lookup: Lookup,
    stream: str,
    uuid: str,
    found: Watermarks,
    *,
    ingests: Mapping[str, Starts],
) -> Resolved:
    """Return the whole range of each partition, and what is left to ingests. Blocks.

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
    able = {app: starts for app, starts in ingests.items() if _can_begin(app, starts, held, found)}
    wanted: dict[int, OffsetRange] = {}
    left: dict[str, dict[int, int]] = {}
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
        for app, at in _beginnings(number, int(span.start), found, able).items():
            if max(start, at) < end:
                _require_words(bounds, number, (start, end), app, at)
                end = max(start, at)
                left.setdefault(app, {})[number] = end
        if begun is None and not span.start <= start <= span.end:
            raise _outside(number, start, span)
        if end > span.end:
            raise _outside(number, end, span)
        wanted[number] = OffsetRange(Offset(start), Offset(max(start, end)))
    return Resolved(ranges=wanted, left=left)


def tell(asked: Resolved, report: Report) -> dict[str, dict[str, int]]:
    """Report what is left to ingests; return it as a fact: by ingest and partition, from where."""
    for app, firsts in asked.left.items():
        places = ", ".join(f"p{number} from {first}" for number, first in firsts.items())
        report.progress("not all records", left_to=f"{app}, {places}")
    return {
        app: {str(n): first for n, first in firsts.items()} for app, firsts in asked.left.items()
    }


def require_work(asked: Resolved, found: Watermarks) -> None:
    """Refuse to succeed if all that is not in the table is left to an ingest without any row.

    Raises:
        OverlapError: that ingest may never come, so somebody has to decide.
    """
    if any(int(one.end) > found.ends.get(n, int(one.start)) for n, one in asked.ranges.items()):
        return
    come = {app for app, _, _ in found.others}
    for app, firsts in asked.left.items():
        if app not in come:
            number, first = next(iter(firsts.items()))
            raise OverlapError(
                f"nothing is appended: the records from {first} on of partition {number} are left "
                f"to the ingest {app!r}, which is set up for the table and has appended nothing. "
                f"Run that ingest, or append its records by --instead-of {app}",
                partition=number,
                start=first,
            )


def _can_begin(app: str, starts: Starts, held: StreamPositions, found: Watermarks) -> bool:
    """Tell whether the first records of an ingest are in the table in no partition.

    A batch of the ingest has all partitions, so one such partition keeps the ingest from all. An
    ingest has no end: all that others have from its beginning on collides. If retention has moved
    the ingest's beginning to where this backfill has ended, they collide, too. In a partition that
    the ingest has begun, only its own records count.
    """
    begun = {part for name, part, _ in found.others if name == app}
    for number in held.ranges.keys() - begun:
        first = int(held.ranges[number].start)
        pinned = int(starts.get(number, -1))
        at = max(pinned, first)
        if any(part == number and at < other.end for _, part, other in found.others):
            return False
        low, high = int(found.starts.get(number, 0)), int(found.ends.get(number, 0))
        if low < high and (at < high or (at == high and pinned < first)):
            return False
    return True


def _beginnings(
    number: int, first: int, found: Watermarks, ingests: Mapping[str, Starts]
) -> dict[str, int]:
    """Return where each ingest will begin a partition that it has not begun.

    ``first`` is the first record that the stream still has. An ingest that has appended counts as
    any other appender.
    """
    begun = {name for name, part, _ in found.others if part == number}
    return {
        app: max(int(starts.get(number, first)), first)
        for app, starts in sorted(ingests.items())
        if app not in begun
    }


def _require_words(bounds: Bounds, number: int, asked: tuple[int, int], app: str, at: int) -> None:
    """Refuse offsets by number that are an ingest's."""
    start, end = asked
    if isinstance(bounds.end, Mapping) or (isinstance(bounds.start, Mapping) and start >= at):
        raise InvalidRequestError(
            f"partition {number}: the table is set up for {app!r}, which begins at {at} and "
            f"appends everything from there, so a backfill cannot append [{start}, {end}). "
            f"Leave --to out, end at {at} at most, append instead of that ingest (--instead-of "
            f"{app}), or use another table"
        )


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
