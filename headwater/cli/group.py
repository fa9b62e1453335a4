"""``headwater group``: list consumer groups, show their lag, set their positions, forget them."""

from __future__ import annotations

import dataclasses
import time
from collections.abc import Sequence
from typing import TYPE_CHECKING, Annotated, Any

import typer

from broker.errors import UnknownStreamError
from broker.model.harmless import harmless
from headwater.cli import console
from headwater.cli.discovery import connect, find_server
from headwater.cli.options import JsonOption, ServerOption
from headwater.cli.parsing import StartAt, parse_start

if TYPE_CHECKING:
    from broker.model.groups import GroupDescription, GroupPartition, PositionReset
    from headwater.client import Client

app = typer.Typer(
    no_args_is_help=True,
    help="Consumer groups: members, positions and lag; `headwater subscribe --group` is a member.",
    rich_markup_mode="rich",
)
GroupArgument = Annotated[str, typer.Argument(metavar="GROUP", help="The group's name.")]


@app.command("list")
def list_(*, server: ServerOption = None, json: JsonOption = False) -> None:
    """List the groups that have members or positions.

    [bold]Example[/bold]

      headwater group list
    """
    with connect(find_server(server)) as client:
        found = _described(client, client.groups())
    if json:
        for one in found:
            console.json_line(_summary(one))
        return
    if not found:
        console.note("No consumer groups.")
        return
    console.columns(
        ("group", "members", "client", "coordinator", "streams"),
        (
            (
                one.group,
                len(one.members),
                one.kind or None,
                one.coordinator or None,
                ", ".join(_streams(one)),
            )
            for one in found
        ),
    )


@app.command()
def describe(
    group: GroupArgument, *, server: ServerOption = None, json: JsonOption = False
) -> None:
    """Show who reads which partition, how far the group is, and how many records are left.

    [bold]Examples[/bold]

      headwater group describe billing
      headwater group describe billing --json | jq '[.partitions[].lag] | add'
    """
    with connect(find_server(server)) as client:
        found = client.describe_group(group)
        ends = _ends(client, found)
    rows = [_progress(one, ends) for one in found.partitions]
    if json:
        members = [dataclasses.asdict(one) for one in found.members]
        console.json_line({**_summary(found), "members": members, "partitions": rows})
        return
    console.facts(
        (
            ("group", found.group),
            ("members", len(found.members)),
            ("client", found.kind or None),
            ("coordinator", found.coordinator or None),
            ("epoch", found.epoch or None),
            ("records left", f"{sum(row['lag'] for row in rows):,}"),
        )
    )
    names = ("stream", "partition", "position", "end", "lag", "member", "goes to")
    console.columns(
        names,
        (
            (
                row["stream"],
                row["partition"],
                row["position"],
                row["end"],
                f"{row['lag']:,}",
                row["member"] or None,
                row["goes_to"] or None,
            )
            for row in rows
        ),
    )
    for one in found.members:
        named = ", keeps its partitions when it comes back" if one.static else ""
        console.note(f"{console.plain(one.member)}: {console.plain(one.owner or '-')}{named}")
    if any(row["lost"] for row in rows):
        console.note(
            "A position was reached in a history that the stream does not have any more: "
            "set it with `headwater group reset`."
        )


@app.command()
def reset(
    group: GroupArgument,
    *,
    to: Annotated[
        str,
        typer.Option(
            "--to",
            metavar="WHERE",
            help="earliest, latest, an offset, a time (2026-01-31T08:00:00Z) or '5m ago'.",
        ),
    ],
    stream: Annotated[
        list[str] | None,
        typer.Option(help="Only this stream; may be repeated. Default: those of the group."),
    ] = None,
    partition: Annotated[
        int | None, typer.Option("--partition", "-p", min=0, help="One partition; default: all.")
    ] = None,
    dry_run: Annotated[bool, typer.Option("--dry-run", help="Show it, change nothing.")] = False,
    server: ServerOption = None,
    json: JsonOption = False,
) -> None:
    """Set a group's positions, also back; no member may read these streams meanwhile.

    A group that does not exist yet begins with it, if --stream is given.

    [bold]Examples[/bold]

      headwater group reset billing --to earliest --dry-run
      headwater group reset billing --to '2h ago' --stream orders
      headwater group reset billing --to 1200 --stream orders --partition 0
    """
    where = _where(to)
    with connect(find_server(server)) as client:
        present = _positions(client, group, needed=not stream)
        names = stream or sorted({name for name, _ in present})
        planned = _planned(client, names, partition, where)
        if not planned:
            raise UnknownStreamError(f"group {group!r} reads no such partition: give --stream")
        if not dry_run:
            client.reset_group(group, [one for _, one in planned])
    rows = [
        {
            "stream": name,
            "partition": one.partition,
            "before": before.offset if (before := present.get((name, one.partition))) else None,
            "after": one.offset,
        }
        for name, one in planned
    ]
    if json:
        for row in rows:
            console.json_line({"group": group, "dry_run": dry_run, **row})
        return
    console.columns(
        ("stream", "partition", "before", "after"), (list(row.values()) for row in rows)
    )
    if dry_run:
        console.note("Nothing was changed.")


def _planned(
    client: Client, names: Sequence[str], partition: int | None, where: StartAt
) -> list[tuple[str, PositionReset]]:
    """Return the new position of each partition, with its stream's name."""
    from broker.model.groups import PositionReset

    planned: list[tuple[str, PositionReset]] = []
    for name in names:
        found = client.describe(name)
        for one in found.partitions:
            if partition in (None, one.partition):
                offset = _offset(client, name, one, where)
                uuid = found.stream.uuid
                write = PositionReset(stream_uuid=uuid, partition=one.partition, offset=offset)
                planned.append((name, write))
    return planned


@app.command()
def delete(
    group: GroupArgument,
    *,
    yes: Annotated[bool, typer.Option("--yes", "-y", help="Do not ask.")] = False,
    server: ServerOption = None,
) -> None:
    """Forget a group's positions; it must have no members.

    [bold]Example[/bold]

      headwater group delete billing --yes
    """
    with connect(find_server(server)) as client:
        found = client.describe_group(group)
        if not yes:
            console.asking()
            shown = harmless(group)
            question = f"Forget the positions of group {shown} in {', '.join(_streams(found))}?"
            typer.confirm(question, abort=True, err=True)
        client.delete_group(group)
    console.say(f"{console.plain(group)} deleted.")


def _described(client: Client, names: Sequence[str]) -> list[GroupDescription]:
    """Return the groups; a remark names each one that cannot be described."""
    from broker.errors import InvalidRequestError, UnknownGroupError

    found = []
    for name in names:
        try:
            found.append(client.describe_group(name))
        except (InvalidRequestError, UnknownGroupError) as error:
            why = console.plain(error.message)
            console.note(f"Group {console.plain(repr(name))} is left out: {why}")
    return found


def _summary(found: GroupDescription) -> dict[str, Any]:
    return {
        "group": found.group,
        "client": found.kind,
        "coordinator": found.coordinator,
        "epoch": found.epoch,
        "members_count": len(found.members),
        "streams": _streams(found),
    }


def _streams(found: GroupDescription) -> list[str]:
    return sorted({one.stream for one in found.partitions})


def _ends(client: Client, found: GroupDescription) -> dict[tuple[str, int], tuple[int, int]]:
    """Return first offset and high watermark of the partitions of a group's streams."""
    return {
        (name, one.partition): (one.start, one.high_watermark)
        for name in _streams(found)
        for one in client.describe(name).partitions
    }


def _progress(one: GroupPartition, ends: dict[tuple[str, int], tuple[int, int]]) -> dict[str, Any]:
    start, end = ends.get((one.stream, one.partition), (0, 0))
    begin = start if one.offset is None else max(start, one.offset)
    return {
        "stream": one.stream,
        "partition": one.partition,
        "position": one.offset,
        "end": end,
        "lag": max(0, end - begin),
        "member": one.member,
        "goes_to": one.heir,
        "lost": one.lost,
    }


def _positions(
    client: Client, group: str, *, needed: bool
) -> dict[tuple[str, int], GroupPartition]:
    from broker.errors import UnknownGroupError

    try:
        found = client.describe_group(group)
    except UnknownGroupError:
        if needed:
            raise
        return {}
    return {(one.stream, one.partition): one for one in found.partitions}


def _where(text: str) -> StartAt:
    try:
        return parse_start(text, now_us=time.time_ns() // 1000)
    except ValueError as error:
        raise typer.BadParameter(str(error), param_hint="--to") from error


def _offset(client: Client, stream: str, one: Any, where: StartAt) -> int:
    """Return the offset of a partition that a text of the command means."""
    from broker.codec.flight.protocol import AtTime

    match where.kind:
        case "earliest":
            return int(one.start)
        case "latest":
            return int(one.high_watermark)
        case "offset":
            return where.value
    columns: Sequence[str] = ["offset"]
    with client.fetch(stream, one.partition, AtTime(where.value), columns=columns) as fetched:
        return next((int(part.base_offset) for part in fetched), int(one.high_watermark))
