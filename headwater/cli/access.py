"""``headwater access``: grants, who has one, quotas, tenants, and credentials for tables."""

from __future__ import annotations

import dataclasses
import shlex
from collections.abc import Iterator
from datetime import UTC, datetime
from typing import Annotated

import typer

from broker.errors import InvalidRequestError
from broker.model.access import (
    ACTIONS,
    ACTIONS_OF,
    CLUSTER,
    KINDS,
    ROLES,
    Action,
    Grant,
    Kind,
    actions_of_role,
)
from headwater.cli import console, quota, tenant
from headwater.cli.discovery import connect, find_server
from headwater.cli.options import JsonOption, ServerOption

app = typer.Typer(
    no_args_is_help=True,
    help="Manage who may do what at brokers with access control (access.enabled).",
    rich_markup_mode="rich",
)
app.add_typer(quota.app, name="quota")
app.add_typer(tenant.app, name="tenant")

PrincipalArgument = Annotated[
    str, typer.Argument(metavar="PRINCIPAL", help="Who; '*' is everybody who has proved a name.")
]
WhatArgument = Annotated[
    list[str],
    typer.Argument(
        metavar="WHAT...",
        help=f"Roles ({', '.join(ROLES)}) or actions ({', '.join(ACTIONS)}).",
    ),
]
StreamsOption = Annotated[
    list[str] | None,
    typer.Option("--stream", metavar="PATTERN", help="A stream, or a beginning and *."),
]
GroupsOption = Annotated[
    list[str] | None,
    typer.Option("--group", metavar="PATTERN", help="A consumer group, or a beginning and *."),
]
SubjectsOption = Annotated[
    list[str] | None,
    typer.Option("--subject", metavar="PATTERN", help="A NATS subject, such as shop.>."),
]
ClusterOption = Annotated[bool, typer.Option("--cluster", help="The cluster itself.")]
NamespaceOption = Annotated[
    str, typer.Option("--namespace", help="Only in this namespace.", show_default=False)
]


@app.command()
def grant(
    principal: PrincipalArgument,
    what: WhatArgument,
    *,
    stream: StreamsOption = None,
    group: GroupsOption = None,
    subject: SubjectsOption = None,
    cluster: ClusterOption = False,
    namespace: NamespaceOption = "",
    server: ServerOption = None,
) -> None:
    """Let a principal do something. Everything that nobody granted is refused.

    [bold]Examples[/bold]

      headwater access grant billing reader --stream 'orders-*' --group 'billing-*'
      headwater access grant shop owner --stream 'shop-*' --subject 'shop.>'
      headwater access grant ops admin --cluster
    """
    from headwater.client.access import AccessCalls

    grants = _grants(principal, what, stream, group, subject, cluster=cluster, namespace=namespace)
    with connect(find_server(server)) as client:
        changed = AccessCalls(client).grant(grants)
    console.say("Granted." if changed else "It was granted before.")


@app.command()
def revoke(
    principal: PrincipalArgument,
    what: WhatArgument,
    *,
    stream: StreamsOption = None,
    group: GroupsOption = None,
    subject: SubjectsOption = None,
    cluster: ClusterOption = False,
    namespace: NamespaceOption = "",
    server: ServerOption = None,
) -> None:
    """Take from a principal what it was granted on exactly these patterns, now, on every broker.

    Other grants of the principal stay: `headwater access list` shows them.

    [bold]Example[/bold]

      headwater access revoke billing reader --stream 'orders-*'
    """
    from headwater.client.access import AccessCalls

    grants = _grants(principal, what, stream, group, subject, cluster=cluster, namespace=namespace)
    with connect(find_server(server)) as client:
        changed = AccessCalls(client).revoke(grants)
    console.say("Revoked." if changed else "There was no such grant: nothing was changed.")


@app.command("list")
def list_(
    principal: Annotated[
        str | None, typer.Argument(metavar="[PRINCIPAL]", help="Only what this one was granted.")
    ] = None,
    *,
    server: ServerOption = None,
    json: JsonOption = False,
) -> None:
    """List the grants. Administrators of the brokers' configuration are not among them.

    [bold]Examples[/bold]

      headwater access list
      headwater access list billing --json
    """
    from headwater.client.access import AccessCalls

    with connect(find_server(server)) as client:
        found = AccessCalls(client).grants()
    shown = [one for one in found if principal in (None, one.principal)]
    if json:
        for one in shown:
            console.json_line(dataclasses.asdict(one))
        return
    if not shown:
        console.note("No grants.")
        return
    console.columns(
        ("principal", "may", "kind", "pattern", "namespace"),
        (
            (one.principal, " ".join(one.actions), one.kind, one.pattern, one.namespace)
            for one in shown
        ),
    )


@app.command("who-can")
def who_can(
    action: Annotated[str, typer.Argument(metavar="ACTION", help=f"One of {', '.join(ACTIONS)}.")],
    name: Annotated[
        str, typer.Argument(metavar="[NAME]", help="The stream, group or subject.")
    ] = CLUSTER,
    *,
    kind: Annotated[
        str | None,
        typer.Option(
            "--kind",
            help=f"One of {', '.join(KINDS)}; a stream if it has a name.",
            show_default=False,
        ),
    ] = None,
    server: ServerOption = None,
    json: JsonOption = False,
) -> None:
    """Say which principals may do an action, each on a line; '*' is everybody.

    [bold]Examples[/bold]

      headwater access who-can consume orders
      headwater access who-can admin
    """
    from headwater.client.access import AccessCalls

    chosen = kind or ("cluster" if name == CLUSTER else "stream")
    if action not in ACTIONS or chosen not in KINDS:
        raise InvalidRequestError(
            f"{action!r} must be one of the actions {', '.join(ACTIONS)}, and {chosen!r} one of "
            f"the kinds {', '.join(KINDS)}"
        )
    with connect(find_server(server)) as client:
        found = AccessCalls(client).who_can(action, chosen, name)
    for one in found:
        if json:
            console.json_line({"principal": one})
        else:
            console.say(console.plain(one))
    if not found and not json:
        console.note("Nobody.")


@app.command()
def credentials(
    stream: Annotated[str, typer.Argument(metavar="STREAM", help="The stream's name.")],
    *,
    server: ServerOption = None,
    json: Annotated[
        bool, typer.Option("--json", help="As AWS's tools take it from a credential_process.")
    ] = False,
) -> None:
    """Print temporary credentials that read the tables of a stream and nothing else.

    For tools that are not Headwater's: its own readers ask the broker by themselves. The lines are
    secrets; they end by themselves. AWS's SDKs ask again before that with a profile of these lines:
    [profile orders] and credential_process = headwater access credentials orders --json

    [bold]Examples[/bold]

      eval "$(headwater access credentials orders)"
      headwater access credentials orders --json
    """
    from headwater.client.table_credentials import table_credentials

    with connect(find_server(server)) as client:
        found = table_credentials(client, stream)
    ends = datetime.fromtimestamp(found.keys.expires_us // 1_000_000, UTC).isoformat()
    secret, token = found.keys.secret_access_key.reveal(), found.keys.session_token.reveal()
    if json:
        console.json_line(
            {
                "Version": 1,
                "AccessKeyId": found.keys.access_key_id,
                "SecretAccessKey": secret,
                "SessionToken": token,
                "Expiration": ends,
            }
        )
        return
    lines = {
        "AWS_ACCESS_KEY_ID": found.keys.access_key_id,
        "AWS_SECRET_ACCESS_KEY": secret,
        "AWS_SESSION_TOKEN": token,
        "AWS_REGION": found.place.region,
        "AWS_ENDPOINT_URL_S3": found.place.endpoint,
    }
    for name, value in lines.items():
        if value is not None:
            console.line(f"export {name}={shlex.quote(value)}")
    console.note(f"Until {ends}, for {' and '.join(found.tables)}.")


def _grants(
    principal: str,
    what: list[str],
    streams: list[str] | None,
    groups: list[str] | None,
    subjects: list[str] | None,
    *,
    cluster: bool,
    namespace: str,
) -> list[Grant]:
    """Return the grants that a command line means: one for each pattern.

    Raises:
        InvalidRequestError: a word is no role and no action, or nothing could be done with it.
    """
    patterns: list[tuple[Kind, str]] = [
        *(("stream", one) for one in streams or ()),
        *(("group", one) for one in groups or ()),
        *(("subject", one) for one in subjects or ()),
    ]
    if cluster:
        patterns.append(("cluster", CLUSTER))
    if not patterns:
        raise InvalidRequestError("name the resource: --stream, --group, --subject or --cluster")
    found = [
        Grant(
            principal=principal,
            kind=kind,
            pattern=pattern,
            actions=tuple(sorted(set(_actions(what, kind)))),
            namespace="" if kind in ("cluster", "subject") else namespace,
        )
        for kind, pattern in patterns
    ]
    for word in what:
        if not any(set(_actions([word], one.kind)) for one in found):
            raise InvalidRequestError(
                f"{word!r} does not apply to a {' or a '.join(sorted({one.kind for one in found}))}"
                ": `headwater access grant --help` lists roles and actions"
            )
    return [one for one in found if one.actions]


def _actions(what: list[str], kind: Kind) -> Iterator[Action]:
    for word in what:
        if word in ROLES:
            yield from actions_of_role(word, kind)
        elif word in ACTIONS:
            if word in ACTIONS_OF[kind]:
                yield word
        else:
            raise InvalidRequestError(
                f"{word!r} is neither a role ({', '.join(ROLES)}) nor an action "
                f"({', '.join(ACTIONS)})"
            )
