"""``headwater token``: make, list and revoke the tokens by which clients prove who they are."""

from __future__ import annotations

import dataclasses
import time
from pathlib import Path
from typing import Annotated

import typer

from broker.errors import InvalidRequestError
from headwater.cli import console
from headwater.cli.discovery import connect, find_server
from headwater.cli.options import JsonOption, ServerOption, checked
from headwater.cli.parsing import format_age, format_time_us, parse_duration_ms

app = typer.Typer(
    no_args_is_help=True,
    help="Make, list and revoke tokens: by them clients prove who they are.",
    rich_markup_mode="rich",
)


@app.command()
def create(
    principal: Annotated[
        str, typer.Argument(metavar="PRINCIPAL", help="Whoever holds the token is this principal.")
    ],
    *,
    output: Annotated[
        Path | None,
        typer.Option(
            "--output",
            "-o",
            metavar="FILE",
            help="Write the token to this new file, for its owner only, and print its id.",
            show_default=False,
        ),
    ] = None,
    ttl: Annotated[
        int | None,
        typer.Option(
            "--ttl",
            metavar="DURATION",
            parser=checked(parse_duration_ms),
            help="When the token ends, such as 90d. Without it: when it is revoked.",
            show_default=False,
        ),
    ] = None,
    note: Annotated[str, typer.Option(help="What it is for, for the list of tokens.")] = "",
    server: ServerOption = None,
) -> None:
    """Make a token and show it once. The brokers keep only a digest of it.

    A principal may have several tokens, so that one is replaced while the other still works.

    [bold]Examples[/bold]

      headwater token create billing --ttl 90d -o billing.token
      HEADWATER_TOKEN_FILE=billing.token headwater subscribe orders
    """
    from headwater.client.access import AccessCalls
    from headwater.local.private_files import write_private

    if output is not None and output.exists():
        raise InvalidRequestError(f"{output} exists already, and is not replaced: name a new file")
    expires_us = 0 if ttl is None else time.time_ns() // 1000 + ttl * 1000
    with connect(find_server(server)) as client:
        made = AccessCalls(client).create_token(principal, expires_us=expires_us, note=note)
    if output is None:
        console.say(made.token.reveal())
        console.note(f"Token {made.token_id} of {console.plain(principal)}; it is not shown again.")
        return
    write_private(output, made.token.reveal() + "\n")
    console.say(made.token_id)


@app.command("list")
def list_(*, server: ServerOption = None, json: JsonOption = False) -> None:
    """List the tokens. The list has no secrets.

    [bold]Example[/bold]

      headwater token list
    """
    from headwater.client.access import AccessCalls

    with connect(find_server(server)) as client:
        found = AccessCalls(client).tokens()
    if json:
        for one in found:
            console.json_line(dataclasses.asdict(one))
        return
    if not found:
        console.note("No tokens.")
        return
    now_us = time.time_ns() // 1000
    console.columns(
        ("token", "principal", "made", "by", "ends in", "note"),
        (
            (
                one.token_id,
                one.principal,
                format_time_us(one.created_us),
                one.created_by,
                "never" if not one.expires_us else _left(one.expires_us - now_us),
                one.note,
            )
            for one in found
        ),
    )


@app.command()
def revoke(
    token: Annotated[
        list[str],
        typer.Argument(metavar="TOKEN_ID...", help="Token ids, from `headwater token list`."),
    ],
    *,
    server: ServerOption = None,
) -> None:
    """End tokens now, on every broker. Reads and writes that are open end, too.

    [bold]Example[/bold]

      headwater token revoke 3f9d2c1e0a4b4c77
    """
    from headwater.client.access import AccessCalls

    with connect(find_server(server)) as client:
        access = AccessCalls(client)
        unknown = [one for one in dict.fromkeys(token) if not access.revoke_token(one)]
    revoked = len(set(token)) - len(unknown)
    if revoked:
        console.say(f"{revoked} revoked.")
    if unknown:
        raise InvalidRequestError(
            f"there is no token {unknown[0]!r}: `headwater token list` shows the ids",
            field="token_id",
        )


def _left(left_us: int) -> str:
    return format_age(left_us) if left_us > 0 else "ended"
