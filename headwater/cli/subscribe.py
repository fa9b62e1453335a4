"""``headwater subscribe``: read a stream from any offset or time, and follow new records."""

from __future__ import annotations

import queue
import sys
import threading
import time
from collections.abc import Iterator
from typing import TYPE_CHECKING, Annotated, Any, Final

import typer

from broker.errors import HeadwaterError, UnknownPartitionError
from headwater.cli import console
from headwater.cli.discovery import connect, find_server
from headwater.cli.options import ServerOption, StreamArgument
from headwater.cli.parsing import StartAt, parse_start

if TYPE_CHECKING:
    import pyarrow as pa

    from headwater.client import Client

_QUEUE_BATCHES: Final = 8  # per subscription: memory is bounded, a slow terminal slows the reader


def subscribe(
    stream: StreamArgument,
    *,
    start: Annotated[
        str,
        typer.Option(
            "--from",
            metavar="WHERE",
            help="earliest, latest, an offset, a time (2026-01-31T08:00:00Z) or '5m ago'.",
        ),
    ] = "earliest",
    follow: Annotated[
        bool, typer.Option("--follow", "-f", help="Wait for new records until Ctrl-C.")
    ] = False,
    partition: Annotated[
        int | None,
        typer.Option("--partition", "-p", min=0, help="One partition; without it, all of them."),
    ] = None,
    count: Annotated[
        int | None, typer.Option("--count", "-n", min=1, help="End after this many records.")
    ] = None,
    format: Annotated[  # noqa: A002  # the option's name
        str, typer.Option("--format", help="text, json (one object per line) or raw (values).")
    ] = "text",
    server: ServerOption = None,
) -> None:
    """Print the records of a stream, oldest first; with --follow, wait for new records.

    Records that are no longer on the broker's disk come from the Delta table. Records of one
    partition come in offset order; with --follow, several partitions are interleaved.

    [bold]Examples[/bold]

      headwater subscribe orders
      headwater subscribe orders --from latest --follow
      headwater subscribe orders --from '10m ago' --format json | jq .value
      headwater subscribe orders -p 0 --from 1200 --count 10
    """
    if format not in ("text", "json", "raw"):
        raise typer.BadParameter("choose text, json or raw", param_hint="--format")
    try:
        start_at = parse_start(start, now_us=time.time_ns() // 1000)
    except ValueError as error:
        raise typer.BadParameter(str(error), param_hint="--from") from error
    with connect(find_server(server)) as client:
        partitions = _partitions(client, stream, partition)
        batches = _batches(client, stream, partitions, start_at, follow)
        _print_records(batches, format, count)


def _partitions(client: Client, stream: str, chosen: int | None) -> list[int]:
    total = client.stream(stream).config.partitions
    if chosen is None:
        return list(range(total))
    if chosen >= total:
        raise UnknownPartitionError(
            f"stream {stream!r} has partitions 0 to {total - 1}, not {chosen}",
            stream=stream,
            partition=chosen,
        )
    return [chosen]


def _batches(
    client: Client, stream: str, partitions: list[int], start: StartAt, follow: bool
) -> Iterator[pa.RecordBatch]:
    """Yield batches of all partitions: one partition after another, or interleaved to follow."""
    if len(partitions) == 1 or not follow:
        for partition in partitions:
            yield from _fetch(client, stream, partition, start, follow)
        return
    yield from _side_by_side(client, stream, partitions, start)


def _fetch(
    client: Client, stream: str, partition: int, start: StartAt, follow: bool
) -> Iterator[pa.RecordBatch]:
    with client.fetch(stream, partition, _start_argument(start), None, follow=follow) as fetched:
        for part in fetched:
            yield part.batch


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
    client: Client, stream: str, partitions: list[int], start: StartAt
) -> Iterator[pa.RecordBatch]:
    """Follow several partitions with a thread each; the first error ends all of them."""
    arrived: queue.Queue[pa.RecordBatch | HeadwaterError] = queue.Queue(_QUEUE_BATCHES)

    def follow_one(partition: int) -> None:
        try:
            for batch in _fetch(client, stream, partition, start, True):
                arrived.put(batch)
        except HeadwaterError as error:
            arrived.put(error)

    for partition in partitions:
        threading.Thread(target=follow_one, args=(partition,), daemon=True).start()
    while True:
        item = arrived.get()
        if isinstance(item, HeadwaterError):
            raise item
        yield item


def _print_records(batches: Iterator[pa.RecordBatch], form: str, count: int | None) -> None:
    """Write all records, or the first ``count`` of them; flush after each batch."""
    from headwater.cli import rendering

    left = count
    for batch in batches:
        rows = batch if left is None else batch.slice(0, left)
        if form == "raw":
            for value in rendering.raw_values(rows):
                sys.stdout.buffer.write(value + b"\n")
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
