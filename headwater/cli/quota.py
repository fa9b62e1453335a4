"""``headwater access quota``: how much principals may use of each broker."""

from __future__ import annotations

import dataclasses
from typing import Annotated, Final

import typer

from broker.model.quota import DEFAULT, Quota
from headwater.cli import console
from headwater.cli.discovery import connect, find_server
from headwater.cli.options import JsonOption, ServerOption, size_option

_DEFAULT_WORD: Final = "default"

app = typer.Typer(
    no_args_is_help=True,
    help="Manage how much principals may use of each broker.",
    rich_markup_mode="rich",
)

PrincipalArgument = Annotated[
    str,
    typer.Argument(
        metavar="PRINCIPAL",
        help="Who: a name, the beginning of names and *, or `default` for all others. The longest "
        "that fits applies, and each principal has all of it for itself.",
    ),
]


@app.command("set")
def set_(
    principal: PrincipalArgument,
    *,
    publish: Annotated[
        int | None, size_option("--publish", help="Bytes a second to publish.")
    ] = None,
    read: Annotated[int | None, size_option("--read", help="Bytes a second to read.")] = None,
    requests: Annotated[int | None, typer.Option(metavar="N", help="Requests a second.")] = None,
    open_calls: Annotated[
        int | None,
        typer.Option(metavar="N", help="Reads and writes that are open at the same time."),
    ] = None,
    server: ServerOption = None,
) -> None:
    """Limit what principals may use of each broker, in place of the quota that they had.

    What no option names has no limit. Publishers and readers beyond the quota are held back, and
    lose nothing; requests beyond it are refused, and the answer says how long to wait.

    [bold]Examples[/bold]

      headwater access quota set shop --publish 10MiB --read 50MiB
      headwater access quota set default --requests 100 --open-calls 32
    """
    from headwater.client.access import AccessCalls

    quota = Quota(
        principal=_pattern(principal),
        publish_bytes_per_s=publish or 0,
        read_bytes_per_s=read or 0,
        requests_per_s=requests or 0,
        open_calls=open_calls or 0,
    )
    with connect(find_server(server)) as client:
        changed = AccessCalls(client).set_quota(quota)
    console.say("Set." if changed else "It was so before.")


@app.command("list")
def list_(*, server: ServerOption = None, json: JsonOption = False) -> None:
    """List the quotas. A principal to which none applies may use what the broker has.

    [bold]Examples[/bold]

      headwater access quota list
      headwater access quota list --json
    """
    from headwater.client.access import AccessCalls

    with connect(find_server(server)) as client:
        found = AccessCalls(client).quotas()
    if json:
        for one in found:
            console.json_line(dataclasses.asdict(one))
        return
    if not found:
        console.note("No quotas.")
        return
    console.columns(
        ("principal", "publish B/s", "read B/s", "requests/s", "open calls"),
        (
            (
                _DEFAULT_WORD if one.principal == DEFAULT else one.principal,
                one.publish_bytes_per_s or "-",
                one.read_bytes_per_s or "-",
                one.requests_per_s or "-",
                one.open_calls or "-",
            )
            for one in found
        ),
    )


@app.command()
def remove(principal: PrincipalArgument, *, server: ServerOption = None) -> None:
    """Take the quota of exactly this name, beginning or default away.

    [bold]Example[/bold]

      headwater access quota remove shop
    """
    from headwater.client.access import AccessCalls

    with connect(find_server(server)) as client:
        changed = AccessCalls(client).remove_quota(_pattern(principal))
    console.say("Removed." if changed else "There was no such quota: nothing was changed.")


def _pattern(principal: str) -> str:
    return DEFAULT if principal == _DEFAULT_WORD else principal
