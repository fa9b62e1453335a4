"""``headwater read`` and ``headwater cut``: a stream's full history up to one exact position."""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator
from contextlib import ExitStack, contextmanager
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Final

import typer

from broker.errors import InvalidCutError
from broker.model.cut import Cut
from headwater.cli import console
from headwater.cli.certificates import print_certificate
from headwater.cli.discovery import connect, find_server, use_lake_of
from headwater.cli.options import JsonOption, LeaseOption, ServerOption, StreamArgument
from headwater.cli.parsing import format_time_us, parse_start
from headwater.reads.leases import held_cut

if TYPE_CHECKING:
    import pyarrow as pa

    from broker.codec.flight.protocol import AtTime
    from headwater.client import Client
    from headwater.reads.as_of import AtOffsets
    from headwater.reads.history import History

_FORMATS: Final = ("table", "jsonl", "csv", "parquet")
_TABLE_ROWS: Final = 50


FormatOption = Annotated[
    str | None,
    typer.Option(
        "--format",
        help="table, jsonl, csv or parquet. Default: by the suffix of --output, else table "
        "on a terminal and jsonl in a pipe.",
        show_default=False,
    ),
]
OutputOption = Annotated[
    Path | None,
    typer.Option("--output", "-o", metavar="FILE", help="Write here instead of stdout."),
]
ColumnsOption = Annotated[
    str | None,
    typer.Option(help="Columns, separated by commas; default: all.", show_default=False),
]
LimitOption = Annotated[
    int | None,
    typer.Option(
        "--limit", "-n", min=1, help="End after this many rows; such a read has no certificate."
    ),
]
BinaryOption = Annotated[
    str,
    typer.Option("--bytes", help="csv: write keys and values as text (must be UTF-8) or base64."),
]
AsOfOption = Annotated[
    str | None,
    typer.Option(
        metavar="MOMENT",
        help="Read an earlier moment: a saved cut (text of `headwater cut`, or @FILE), a time "
        '(2026-01-31T08:00:00Z, "5m ago"), or offsets (\'{"0": 1200}\').',
        show_default=False,
    ),
]


LatestOption = Annotated[
    bool, typer.Option("--latest", help="Only the newest record of each key; no tombstones.")
]


def read(
    stream: StreamArgument,
    *,
    format: FormatOption = None,  # noqa: A002  # the option's name
    output: OutputOption = None,
    columns: ColumnsOption = None,
    limit: LimitOption = None,
    binary: BinaryOption = "text",
    as_of: AsOfOption = None,
    latest: LatestOption = False,
    server: ServerOption = None,
) -> None:
    """Read all records: the Delta table and the records not yet in it, each exactly once.

    The certificate on stderr lists the checked counts. A read that cannot be exact fails. A file
    given with -o appears only when it is complete.

    [bold]Examples[/bold]

      headwater read orders
      headwater read orders -o orders.parquet
      headwater read orders --columns offset,key,value --format csv > orders.csv
      headwater cut orders > monday.cut && headwater read orders --as-of @monday.cut
      headwater read orders --as-of "5m ago" --latest
    """
    from headwater.cli.row_files import head, write
    from headwater.reads.as_of import parse_as_of
    from headwater.reads.latest import newest_of_each_key

    form = _format(format, output)
    if binary not in ("text", "base64"):
        raise typer.BadParameter("choose text or base64", param_hint="--bytes")
    moment = None if as_of is None else parse_as_of(_moment_text(as_of))
    target = find_server(server)
    use_lake_of(target)
    with ExitStack() as stack:
        client = stack.enter_context(connect(target))
        history = stack.enter_context(_history(client, stream, moment))
        wanted = None if columns is None else [name.strip() for name in columns.split(",")]
        shown = _TABLE_ROWS if form == "table" and limit is None else limit
        total = history.cut.records_count
        report = stack.enter_context(
            console.counting(
                f"reading {total:,} records of {stream}",
                total=None if latest else total,
                rows_shown=output is None,
            )
        )
        rows = newest_of_each_key(history, wanted) if latest else history.batches(wanted)
        rows = _reported(rows, report)
        written = write(form, rows if shown is None else head(rows, shown), output, binary)
        if shown is None or history.complete:
            print_certificate(history.certificate(), _as_asked(history.cut, moment))
        else:
            console.note(
                f"The first {written:,} of {history.cut.records_count:,} records; "
                "-o FILE, or another --format, reads all of them."
            )


def cut(
    stream: StreamArgument,
    *,
    lease: LeaseOption = "1h",  # type: ignore[assignment]  # typer parses defaults too
    server: ServerOption = None,
    json: JsonOption = False,
) -> None:
    """Print a saved cut: one line of text that names an exact position in both tiers.

    A read as of the cut always gives the same rows while the cut's lease lasts, and after that
    until retention removes one of these rows.

    [bold]Examples[/bold]

      headwater cut orders > monday.cut
      headwater cut orders --lease 1d
      headwater read orders --as-of @monday.cut -o monday.parquet
    """
    with connect(find_server(server)) as client, console.working("taking a cut"):
        taken = client.cut(stream, ttl_ms=lease)
    if json:
        console.json_line(taken.to_dict())
    else:
        console.line(taken.save())
    console.note(
        f"{taken.records_count:,} records, table version "
        f"{'none' if taken.table_version is None else taken.table_version}, held until "
        f"{format_time_us(taken.lease.expires_us)}"
    )


def _reported(
    batches: Iterator[pa.RecordBatch], report: Callable[..., None]
) -> Iterator[pa.RecordBatch]:
    """Yield the batches, and report the number of rows so far."""
    done = 0
    for batch in batches:
        yield batch
        done += batch.num_rows
        report(done)


@contextmanager
def _history(
    client: Client, stream: str, moment: Cut | AtOffsets | AtTime | None
) -> Iterator[History]:
    """Open a read under a lease that is renewed until the read is over."""
    from headwater.reads.as_of import narrowed
    from headwater.reads.history import History

    if isinstance(moment, Cut):
        if moment.stream != stream:
            raise InvalidCutError(f"the cut is of stream {moment.stream!r}, not of {stream!r}")
        client.check_cut(moment)
        yield History(client, moment)
        return
    with held_cut(client, stream) as taken:
        yield History(client, taken if moment is None else narrowed(taken, moment, client))


def _moment_text(text: str) -> str | int:
    """Return the argument of :func:`parse_as_of`; for ``@FILE``, the file's content."""
    if text.startswith("@"):
        return Path(text[1:]).read_text(encoding="utf-8")
    if text.strip().lower().endswith(" ago"):
        return parse_start(text, now_us=time.time_ns() // 1000).value
    return text


def _format(given: str | None, output: Path | None) -> str:
    if given is None:
        by_suffix = output.suffix.lstrip(".") if output is not None else ""
        given = by_suffix if by_suffix in _FORMATS else ""
        if not given and output is not None:
            raise typer.BadParameter(
                f"the suffix of {output} is none of {', '.join(_FORMATS)}: give --format",
                param_hint="--format",
            )
        given = given or ("table" if console.is_terminal() else "jsonl")
    if given not in _FORMATS:
        raise typer.BadParameter(f"choose one of {', '.join(_FORMATS)}", param_hint="--format")
    if given == "parquet" and output is None:
        raise typer.BadParameter("parquet needs a file: -o FILE", param_hint="--format")
    if given == "table" and output is not None:
        raise typer.BadParameter("a table goes to the terminal", param_hint="--format")
    return given


def _as_asked(taken: Cut, moment: Cut | AtOffsets | AtTime | None) -> Cut:
    """Return the cut with the moment that was asked for, if that is a time."""
    asked_us = getattr(moment, "timestamp_us", None)
    return taken if asked_us is None else replace(taken, taken_us=asked_us)
