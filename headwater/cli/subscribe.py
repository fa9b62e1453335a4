"""``headwater subscribe``: read a stream from any offset or time, and follow new records."""

from __future__ import annotations

import dataclasses
import json
import queue
import sys
import threading
import time
from collections.abc import Iterator
from contextlib import suppress
from dataclasses import dataclass
from typing import TYPE_CHECKING, Annotated, Any, Final

import typer

from broker.errors import HeadwaterError, UnavailableError, UnknownPartitionError
from headwater.cli import console
from headwater.cli.discovery import connect, find_server, use_lake_of
from headwater.cli.options import ServerOption, StreamArgument
from headwater.cli.parsing import StartAt, parse_start

if TYPE_CHECKING:
    import pyarrow as pa

    from headwater.client import Client, GroupConsumer

_IDLE_S: Final = 1.0  # a member without records for so long looks whether any are left
_LOOK_S: Final = 1.0  # between two looks for partitions that were added to the stream
_QUEUE_BATCHES: Final = 8  # per subscription: memory is bounded, a slow terminal slows the reader


_GroupOption = Annotated[
    str | None,
    typer.Option(
        "--group",
        "-g",
        help="Read as a member of this consumer group, from its position.",
        show_default=False,
    ),
]
_MemberOption = Annotated[
    str | None,
    typer.Option(
        help="Name of this member: with it, it keeps its partitions over a restart.",
        show_default=False,
    ),
]
_ToOption = Annotated[
    str | None,
    typer.Option(
        "--to",
        metavar="WHERE",
        help="End before this offset, or before the first record of this time. Default: what "
        "is committed now; with --follow, no end.",
        show_default=False,
    ),
]
_KeyOption = Annotated[
    str | None,
    typer.Option("--key", "-k", help="Only records with this key.", show_default=False),
]
_FollowOption = Annotated[
    bool, typer.Option("--follow", "-f", help="Wait for new records until Ctrl-C.")
]
_PartitionOption = Annotated[
    int | None,
    typer.Option("--partition", "-p", min=0, help="One partition; without it, all of them."),
]
_CountOption = Annotated[
    int | None, typer.Option("--count", "-n", min=1, help="End after this many records.")
]
_FormatOption = Annotated[
    str, typer.Option("--format", help="text, json (one object per line) or raw (values).")
]
_StateOption = Annotated[
    bool,
    typer.Option(
        "--state",
        help="Begin with the newest record of each key, as of now, in place of all records; "
        "deleted keys are left out.",
    ),
]
_FromOption = Annotated[
    str,
    typer.Option(
        "--from",
        metavar="WHERE",
        help="earliest, latest, an offset, a time (2026-01-31T08:00:00Z) or '5m ago'.",
    ),
]


def subscribe(
    stream: StreamArgument,
    *,
    start: _FromOption = "earliest",
    to: _ToOption = None,
    key: _KeyOption = None,
    follow: _FollowOption = False,
    partition: _PartitionOption = None,
    count: _CountOption = None,
    state: _StateOption = False,
    group: _GroupOption = None,
    member: _MemberOption = None,
    format: _FormatOption = "text",  # noqa: A002  # the option's name
    server: ServerOption = None,
) -> None:
    """Print the records of a stream, oldest first; with --follow, wait for new records.

    Records that are no longer on the broker's disk come from the Delta table. Records of one
    partition come in offset order; with --follow, several partitions are interleaved.

    With --state a reader gets the state of a stream of keys without its whole history: the newest
    record of each key, from the key snapshot and the records after it. With --follow it then gets
    every later record, deletions too.

    With --group the members share the partitions, and each record goes to one of them. The group
    goes on behind the records that were printed; --from says where a new group begins.

    [bold]Examples[/bold]

      headwater subscribe orders
      headwater subscribe orders --from latest --follow
      headwater subscribe orders --from '10m ago' --format json | jq .value
      headwater subscribe orders -p 0 --from 1200 --to 1210
      headwater subscribe orders --key order-17 --from '1h ago' --to '30m ago'
      headwater subscribe prices --state --follow
      headwater subscribe orders --group billing --follow
    """
    if format not in ("text", "json", "raw"):
        raise typer.BadParameter("choose text, json or raw", param_hint="--format")
    wanted = _Wanted(
        start=_position("--from", start),
        end=None if to is None else _position("--to", to),
        key=None if key is None else key.encode(),
        follow=follow,
    )
    if state:
        _refuse_beside_state(start, to, partition, group)
    if group is not None:
        _refuse_with_group(start, to, partition)
    elif member is not None:
        raise typer.BadParameter("a member needs a --group", param_hint="--member")
    target = find_server(server)
    if state:
        use_lake_of(target)
    with connect(target, waits_long=follow) as client:
        if group is not None:
            joining = _Joining(group=group, member=member, reset=start, follow=follow, count=count)
            batches = _as_member(client, stream, joining)
            if wanted.key is not None:
                batches = (_with_key(rows, wanted.key) for rows in batches)
            _print_records(batches, format, None)
            return
        if state:
            _print_records(_state(client, stream, wanted), format, count)
            return
        partitions = _partitions(client, stream, partition)
        one = partition is not None or not follow
        batches = (_in_turn if one else _side_by_side)(client, stream, partitions, wanted)
        _print_records(batches, format, count)


@dataclass(frozen=True, slots=True, kw_only=True)
class _Wanted:
    """Which records of a partition are printed."""

    start: StartAt
    end: StartAt | None
    key: bytes | None
    follow: bool


def _refuse_with_group(start: str, to: str | None, partition: int | None) -> None:
    if start not in ("earliest", "latest"):
        raise typer.BadParameter(
            "a group goes on at its position; `headwater group reset` sets it. A new group begins "
            "at earliest or latest",
            param_hint="--from",
        )
    if to is not None or partition is not None:
        raise typer.BadParameter("a member reads what its group gives it: no --to, no --partition")


def _refuse_beside_state(
    start: str, to: str | None, partition: int | None, group: str | None
) -> None:
    if start != "earliest" or to is not None:
        raise typer.BadParameter(
            "the state is of now; `headwater read --latest --as-of` has that of another moment",
            param_hint="--state",
        )
    if partition is not None or group is not None:
        raise typer.BadParameter(
            "the state is of the whole stream: no --partition, no --group", param_hint="--state"
        )


def _state(client: Client, stream: str, wanted: _Wanted) -> Iterator[pa.RecordBatch]:
    """Yield the state of a stream at a cut that is named, then, to follow, each later record."""
    from headwater.reads.state import consume_state

    with consume_state(stream, follow=wanted.follow, server=client) as consumer:
        ends = {part.partition: int(part.end) for part in consumer.cut.partitions}
        console.note(f"The state at {json.dumps(ends)}: `headwater read --latest --as-of` again.")
        for one in consumer:
            yield one.rows if wanted.key is None else _with_key(one.rows, wanted.key)


def _as_member(client: Client, stream: str, joining: _Joining) -> Iterator[pa.RecordBatch]:
    """Yield what a member of a group is given; without ``follow`` until nothing is left."""
    left = joining.count
    client.stream(stream)  # an unknown one is told at once
    with client.consumer(
        stream, group=joining.group, member_id=joining.member, auto_offset_reset=joining.reset
    ) as consumer:
        while left is None or left > 0:
            one = consumer.poll(None if joining.follow else _IDLE_S)
            if one is None:
                if joining.follow or _has_nothing_left(consumer):
                    return
                continue
            rows = one.rows if left is None else one.rows.slice(0, left)
            left = None if left is None else left - rows.num_rows
            yield rows
            if rows.num_rows < one.rows.num_rows:  # they are printed: the position may move
                last = rows.column("offset")[-1].as_py()
                consumer.seek(one.stream, one.partition, last + 1)


def _has_nothing_left(consumer: GroupConsumer) -> bool:
    """Tell whether the member has its share, and was given all of it."""
    with suppress(UnavailableError):  # a leader may change meanwhile
        return consumer.is_member and not any(consumer.lag().values())
    return False


@dataclass(frozen=True, slots=True, kw_only=True)
class _Joining:
    """How the command is a member of a group."""

    group: str
    member: str | None
    reset: Any  # earliest or latest
    follow: bool
    count: int | None


def _position(option: str, text: str) -> StartAt:
    try:
        return parse_start(text, now_us=time.time_ns() // 1000)
    except ValueError as error:
        raise typer.BadParameter(str(error), param_hint=option) from error


def _partitions(client: Client, stream: str, chosen: int | None) -> list[int]:
    total = client.stream(stream).config.partitions
    if chosen is None:
        return list(range(total))
    if chosen >= total:
        raise UnknownPartitionError.of(stream, chosen, total)
    return [chosen]


def _in_turn(
    client: Client, stream: str, partitions: list[int], wanted: _Wanted
) -> Iterator[pa.RecordBatch]:
    """Yield the batches of one partition after the other."""
    for partition in partitions:
        yield from _fetch(client, stream, partition, wanted)


def _fetch(
    client: Client, stream: str, partition: int, wanted: _Wanted
) -> Iterator[pa.RecordBatch]:
    end = wanted.end
    if end is not None and end.kind == "earliest":
        return
    last = end.value if end is not None and end.kind == "offset" else None
    if end is not None and end.kind == "latest":
        last = client.describe(stream).partitions[partition].high_watermark
    start = _start_argument(wanted.start)
    with client.fetch(stream, partition, start, last, follow=wanted.follow) as fetched:
        for part in fetched:
            rows, reached = part.batch, False
            if end is not None and end.kind == "time":
                rows, reached = _before(rows, end.value)
            yield rows if wanted.key is None else _with_key(rows, wanted.key)
            if reached:
                return


def _before(rows: pa.RecordBatch, stamp_us: int) -> tuple[pa.RecordBatch, bool]:
    """Return the rows before the first one that reaches the time, and whether there is one."""
    import numpy as np
    import pyarrow as pa

    stamps = np.asarray(rows.column("timestamp").cast(pa.int64()))
    hits = np.flatnonzero(stamps >= stamp_us)
    return (rows.slice(0, int(hits[0])), True) if hits.size else (rows, False)


def _with_key(rows: pa.RecordBatch, key: bytes) -> pa.RecordBatch:
    import pyarrow as pa
    import pyarrow.compute as pc

    return rows.filter(
        pc.fill_null(pc.equal(rows.column("key"), pa.scalar(key, pa.binary())), False)
    )


def _start_argument(start: StartAt) -> Any:
    from broker.codec.flight.protocol import AtTime

    match start.kind:
        case "offset":
            return start.value
        case "time":
            return AtTime(start.value)
        case _:
            return start.kind


def _side_by_side(
    client: Client, stream: str, partitions: list[int], wanted: _Wanted
) -> Iterator[pa.RecordBatch]:
    """Follow all partitions with a thread each, and those that are added meanwhile.

    The first error ends all of them.
    """
    arrived: queue.Queue[pa.RecordBatch | HeadwaterError | None] = queue.Queue(_QUEUE_BATCHES)
    stop = threading.Event()

    def follow_one(partition: int, which: _Wanted) -> None:
        try:
            for batch in _fetch(client, stream, partition, which):
                arrived.put(batch)
            if partition < len(partitions):
                arrived.put(None)
        except HeadwaterError as error:
            arrived.put(error)

    def look() -> None:
        """Follow partitions that are added to the stream, from their first record on."""
        first = dataclasses.replace(wanted, start=parse_start("earliest", now_us=0))
        known = len(partitions)
        while not stop.wait(_LOOK_S):
            try:
                count = client.stream(stream).config.partitions
            except UnavailableError:
                continue
            except HeadwaterError as error:
                arrived.put(error)
                return
            for partition in range(known, count):
                begin(partition, first)
            known = max(known, count)

    def begin(partition: int, which: _Wanted) -> None:
        threading.Thread(target=follow_one, args=(partition, which), daemon=True).start()

    for partition in partitions:
        begin(partition, wanted)
    threading.Thread(target=look, daemon=True).start()
    try:
        left = len(partitions)
        while left:
            item = arrived.get()
            if isinstance(item, HeadwaterError):
                raise item
            if item is None:
                left -= 1
            else:
                yield item
    finally:
        stop.set()


def _print_records(batches: Iterator[pa.RecordBatch], form: str, count: int | None) -> None:
    """Write all records, or the first ``count`` of them; flush after each batch."""
    from headwater.cli import rendering

    left = count
    for batch in batches:
        rows = batch if left is None else batch.slice(0, left)
        if form == "raw":
            for value in rendering.raw_values(rows):
                if sys.stdout.isatty():  # a pipe gets the bytes as they are
                    console.line(rendering.printable(value))
                else:
                    sys.stdout.buffer.write(value + b"\n")
            console.flush()
            sys.stdout.buffer.flush()
        else:
            lines = rendering.text_lines if form == "text" else rendering.json_lines
            for text in lines(rows):
                console.line(text)
            console.flush()
        if left is not None:
            left -= rows.num_rows
            if left <= 0:
                return
