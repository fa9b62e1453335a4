"""``headwater lease``: list the leases on records and files of a stream, and end them."""

from __future__ import annotations

import dataclasses
import time
from typing import Annotated

import typer

from broker.errors import UnknownLeaseError
from broker.model.ids import LeaseId
from headwater.cli import console
from headwater.cli.discovery import connect, find_server
from headwater.cli.options import JsonOption, ServerOption
from headwater.cli.parsing import format_age, format_time_us

app = typer.Typer(
    no_args_is_help=True,
    help="List and drop leases: rights that keep records and files from being deleted.",
    rich_markup_mode="rich",
)


@app.command("list")
def list_(
    stream: Annotated[
        str | None, typer.Argument(metavar="[STREAM]", help="One stream; without it, all of them.")
    ] = None,
    *,
    server: ServerOption = None,
    json: JsonOption = False,
) -> None:
    """List the leases that have not ended, the oldest first.

    [bold]Examples[/bold]

      headwater lease list
      headwater lease list orders --json | jq -r .lease_id
    """
    with connect(find_server(server)) as client:
        names = [stream] if stream is not None else [one.name for one in client.streams()]
        found = [(name, lease) for name in names for lease in client.leases(name)]
    if json:
        for name, lease in found:
            console.json_line({"stream": name, **dataclasses.asdict(lease)})
        return
    if not found:
        console.note("No leases.")
        return
    now_us = time.time_ns() // 1000
    console.columns(
        ("lease", "stream", "owner", "taken", "ends in"),
        (
            (
                lease.lease_id,
                name,
                lease.owner,
                format_time_us(lease.taken_us),
                format_age(lease.expires_us - now_us),
            )
            for name, lease in found
        ),
    )


@app.command()
def drop(
    lease: Annotated[
        list[str],
        typer.Argument(metavar="LEASE...", help="Lease ids, from `headwater lease list`."),
    ],
    *,
    server: ServerOption = None,
) -> None:
    """End leases now: what they held may be deleted from then on.

    A read that still uses the lease fails when a record or file that it needs is gone.

    [bold]Example[/bold]

      headwater lease drop 3f9d2c1e-0a4b-4c77-9d27-0b4c5f1f8f11
    """
    with connect(find_server(server)) as client:
        live = {held.lease_id for one in client.streams() for held in client.leases(one.name)}
        dropped = [one for one in dict.fromkeys(lease) if one in live]
        for one in dropped:
            client.drop_lease(LeaseId(one))
    if dropped:
        console.say(f"{len(dropped)} dropped.")
    if unknown := [one for one in lease if one not in live]:
        raise UnknownLeaseError(
            f"no stream has the lease {unknown[0]!r}: the lease has ended, or the id is wrong; "
            "`headwater lease list` shows the leases that have not ended",
            lease_id=unknown[0],
        )
