"""``headwater stream pause``, ``resume`` and ``readonly``: stop and allow writes to a stream."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Annotated

import typer

from headwater.cli import console
from headwater.cli.discovery import connect, find_server
from headwater.cli.options import JsonOption, ServerOption, StreamArgument

_PartitionOption = Annotated[
    list[int] | None,
    typer.Option("--partition", min=0, help="One partition, may be repeated; without it: all."),
]


def pause(
    name: StreamArgument,
    *,
    partition: _PartitionOption = None,
    resume_all: Annotated[
        bool,
        typer.Option("--resume-all", help="The next publish resumes all partitions of the stream."),
    ] = False,
    server: ServerOption = None,
    json: JsonOption = False,
) -> None:
    """Pause a stream: it takes no records until somebody publishes by way of a broker.

    `headwater publish --via flight`, the Python client and Liftbridge's clients resume what they
    publish to. What is published on NATS meanwhile is not recorded, and resumes nothing. What is
    stored can be read as before.

    [bold]Examples[/bold]

      headwater stream pause orders
      headwater stream pause clicks --partition 2 --partition 3
      headwater stream pause clicks --resume-all
    """
    with connect(find_server(server)) as client:
        client.pause_stream(name, partition or (), resume_all=resume_all)
    _say(name, partition, "is paused", json=json, paused=True)


def resume(
    name: StreamArgument,
    *,
    partition: _PartitionOption = None,
    server: ServerOption = None,
    json: JsonOption = False,
) -> None:
    """Let a paused stream take records again; as a whole, if it was paused with --resume-all.

    [bold]Examples[/bold]

      headwater stream resume orders
      headwater stream resume clicks --partition 2
    """
    with connect(find_server(server)) as client:
        client.resume_stream(name, partition or ())
    _say(name, partition, "takes records again", json=json, paused=False)


def readonly(
    name: StreamArgument,
    *,
    partition: _PartitionOption = None,
    off: Annotated[bool, typer.Option("--off", help="Let it take records again.")] = False,
    server: ServerOption = None,
    json: JsonOption = False,
) -> None:
    """Make a stream read-only: every publish is refused by name, and readers go on.

    [bold]Examples[/bold]

      headwater stream readonly orders
      headwater stream readonly orders --off
    """
    with connect(find_server(server)) as client:
        client.set_stream_readonly(name, partition or (), readonly=not off)
    outcome = "takes records again" if off else "is read-only"
    _say(name, partition, outcome, json=json, readonly=not off)


def _say(
    name: str, partitions: Sequence[int] | None, outcome: str, *, json: bool, **facts: bool
) -> None:
    if json:
        console.json_line({"stream": name, "partitions": partitions or "all", **facts})
        return
    which = ", ".join(map(str, partitions or ()))
    where = f"Partition {which} of" if partitions else "Stream"
    console.say(f"{where} [bold]{console.plain(name)}[/bold] {outcome}.")
