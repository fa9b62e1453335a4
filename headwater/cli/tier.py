"""``headwater tier``: show the progress of tiering, and ship unshipped records now."""

from __future__ import annotations

import dataclasses
import threading
import time
from collections.abc import Iterator, Sequence
from contextlib import contextmanager, suppress
from typing import TYPE_CHECKING, Annotated, Any, Final

import typer

from broker.errors import HeadwaterError
from headwater.cli import console
from headwater.cli.discovery import connect, find_server
from headwater.cli.options import JsonOption, ServerOption, duration_option
from headwater.cli.parsing import format_age, format_bytes

if TYPE_CHECKING:
    from broker.model.tiering import TierStatus
    from headwater.client import Client

app = typer.Typer(
    no_args_is_help=True,
    help="Show the progress of tiering; ship now.",
    rich_markup_mode="rich",
)

_LOOK_S: Final = 3.0

OptionalStream = Annotated[
    str | None, typer.Argument(metavar="[STREAM]", help="One stream; without it, all of them.")
]


@app.command()
def status(
    stream: OptionalStream = None, *, server: ServerOption = None, json: JsonOption = False
) -> None:
    """Show for each partition how much is in the table and how much only the broker has.

    [bold]Examples[/bold]

      headwater tier status
      headwater tier status orders --json | jq .unshipped_bytes
    """
    with connect(find_server(server)) as client:
        found = [(name, client.tier_status(name)) for name in _names(client, stream)]
    _show(found, as_json=json)


@app.command()
def flush(
    stream: OptionalStream = None,
    *,
    timeout: Annotated[
        int, duration_option("--timeout", help="Give up after this long, per stream.")
    ] = "5m",  # type: ignore[assignment]  # typer parses defaults as it parses arguments
    server: ServerOption = None,
    json: JsonOption = False,
) -> None:
    """Ship every committed record into the Delta table now; returns when all are there.

    [bold]Examples[/bold]

      headwater tier flush orders
      headwater tier flush --timeout 30m
    """
    with connect(find_server(server)) as client:
        names = _names(client, stream)
        with console.working("shipping to the table"), _errors_told(client, names):
            found = [(name, client.tier_flush(name, timeout_ms=timeout)) for name in names]
    _show(found, as_json=json)


@contextmanager
def _errors_told(
    client: Client, names: Sequence[str], *, every_s: float = _LOOK_S
) -> Iterator[None]:
    """While the work goes on, write each error of shipping once: the broker tries again."""
    done = threading.Event()

    def look() -> None:
        told: set[str] = set()
        while not done.wait(every_s):
            with suppress(HeadwaterError):  # the call that waits meets it, too
                for error in _errors([(name, client.tier_status(name)) for name in names]):
                    if error not in told and not done.is_set():
                        console.note(f"{console.plain(error)}. The broker tries again.")
                    told.add(error)

    watch = threading.Thread(target=look, daemon=True)
    watch.start()
    try:
        yield
    finally:
        done.set()


def _errors(found: Sequence[tuple[str, Sequence[TierStatus]]]) -> Iterator[str]:
    for name, parts in found:
        for part in parts:
            if part.last_error is not None:
                yield f"{name}/{part.partition}: {part.last_error}"


def _names(client: Client, stream: str | None) -> list[str]:
    if stream is not None:
        return [stream]
    return [one.name for one in client.streams() if one.config.tiering]


def _show(found: Sequence[tuple[str, Sequence[TierStatus]]], *, as_json: bool) -> None:
    if as_json:
        for name, parts in found:
            for part in parts:
                console.json_line({"stream": name, **dataclasses.asdict(part)})
        return
    if not found:
        console.note("No stream is tiered.")
        return
    now_us = time.time_ns() // 1000
    console.table(
        ("stream", "part.", "in the table", "hot", "unshipped", "shipped"),
        (_row(name, part, now_us) for name, parts in found for part in parts),
    )
    for error in _errors(found):
        console.say(f"[red]last error[/red] of {console.plain(error)}")


def _row(name: str, part: TierStatus, now_us: int) -> tuple[Any, ...]:
    shipped = part.last_shipped_us
    return (
        name,
        part.partition,
        len(part.cold),
        part.high_watermark - part.cold.end,
        format_bytes(part.unshipped_bytes),
        "never" if shipped is None else f"{format_age(now_us - shipped)} ago",
    )
