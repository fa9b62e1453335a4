"""``headwater stream purge``: delete records of a stream on purpose."""

from __future__ import annotations

import dataclasses
import time
from collections.abc import Iterator, Mapping, Sequence
from typing import TYPE_CHECKING, Annotated, Any

import typer

from broker.errors import HeadwaterError, PurgeRefusedError
from headwater.cli import console
from headwater.cli.discovery import connect, find_server
from headwater.cli.options import JsonOption, ServerOption, StreamArgument
from headwater.cli.parsing import format_time_us, parse_start

if TYPE_CHECKING:
    from broker.model.purge import Purged
    from headwater.client import StreamDescription


def purge(
    name: StreamArgument,
    *,
    partition: Annotated[
        int | None, typer.Option(min=0, help="One partition; without it, all of them.")
    ] = None,
    before: Annotated[
        int | None,
        typer.Option(min=0, metavar="OFFSET", help="First offset that stays; of one partition."),
    ] = None,
    before_time: Annotated[
        str | None,
        typer.Option(metavar="TIME", help="Records from this time on stay: ISO, or '7d ago'."),
    ] = None,
    yes: Annotated[bool, typer.Option("--yes", "-y", help="Do not ask.")] = False,
    server: ServerOption = None,
    json: JsonOption = False,
) -> None:
    """Delete records on purpose: below an offset, before a time, or all that is there now.

    They are gone on every broker, for every reader, and do not come back; offsets are not given out
    again, and reads and certificates say that these records were purged. Records that a reader
    holds by a lease are not purged. The table of a tiered stream keeps its rows: there only the
    brokers' disks are freed, of records that are in the table.

    [bold]Examples[/bold]

      headwater stream purge scratch
      headwater stream purge events --before-time '7d ago' --yes
      headwater stream purge orders --partition 0 --before 120000
    """
    if before is not None and before_time is not None:
        raise typer.BadParameter("give --before or --before-time, not both")
    before_us = None if before_time is None else _time_us(before_time)
    with connect(find_server(server)) as client:
        found = client.describe(name)
        if before is not None and partition is None and len(found.partitions) > 1:
            raise typer.BadParameter(f"{name} has several partitions: name one with --partition")
        ends: dict[int, int] | None = None
        if not yes:
            if before is None and before_us is None:  # what the question names, and no later record
                ends = {one.partition: one.high_watermark for one in found.partitions}
            question = _question(found, partition, before, before_us)
            console.asking()
            typer.confirm(question, abort=True, err=True)
        refusal: PurgeRefusedError | None = None
        try:
            done = client.purge_stream(
                name,
                partition,
                before=before,
                before_us=before_us,
                stream_uuid=found.stream.uuid,
                ends=ends,
            )
        except PurgeRefusedError as error:
            done, refusal = error.purged, error
    refused = {} if refusal is None else refusal.refused
    if json:
        for row in _json_rows(done, refused):
            console.json_line({"stream": name, **row})
    else:
        console.columns(("partition", "purged", "records", "outcome"), _rows(done, refused))
    if refusal is not None:
        numbers = ", ".join(map(str, refused))  # the lines above have the rest of its message
        raise PurgeRefusedError(f"the purge was refused in partition {numbers} of {name}")
    if json:
        return
    if any(one.in_table and one.records_count for one in done):
        console.note("Its table keeps these records, and readers get them from there.")


def _rows(
    done: Sequence[Purged], refused: Mapping[int, HeadwaterError]
) -> Iterator[tuple[Any, ...]]:
    """Return a line for each partition, by number."""
    from headwater.client.purging import outcome

    rows: dict[int, tuple[Any, ...]] = {
        number: (number, None, None, f"refused: {type(error).__name__}: {error.message}")
        for number, error in refused.items()
    }
    for one in done:
        place = f"[{one.start}, {one.end})" if one.records_count else None
        rows[one.partition] = (one.partition, place, f"{one.records_count:,}", outcome(one))
    return (rows[number] for number in sorted(rows))


def _json_rows(
    done: Sequence[Purged], refused: Mapping[int, HeadwaterError]
) -> Iterator[dict[str, Any]]:
    rows: dict[int, dict[str, Any]] = {one.partition: dataclasses.asdict(one) for one in done}
    for number, error in refused.items():
        rows[number] = {
            "partition": number, "error": type(error).__name__, "message": error.message,
        }  # fmt: skip
    return (rows[number] for number in sorted(rows))


def _time_us(text: str) -> int:
    try:
        found = parse_start(text, now_us=time.time_ns() // 1000)
    except ValueError as error:
        raise typer.BadParameter(str(error)) from error
    if found.kind != "time":
        raise typer.BadParameter(f"{text!r} is no time; write 2026-01-31T12:00:00Z or '7d ago'")
    return found.value


def _question(
    found: StreamDescription, partition: int | None, before: int | None, before_us: int | None
) -> str:
    """Return the question that a person has to answer with yes."""
    parts = [one for one in found.partitions if partition in (None, one.partition)]
    if before_us is not None:
        what = f"every record of {found.stream.name} from before {format_time_us(before_us)}"
    else:
        ends = {one.partition: one.high_watermark if before is None else before for one in parts}
        ranges = ", ".join(
            f"{one.partition}: [{one.log_start}, {ends[one.partition]})" for one in parts
        )
        what = f"these records of {found.stream.name} (by partition {ranges})"
    if found.stream.config.tiering:
        return f"Delete {what} from the brokers' disks? The table keeps them"
    return f"Delete {what} for good?"
