"""``headwater access tenant``: parts of a cluster that are kept apart."""

from __future__ import annotations

import dataclasses
from typing import Annotated

import typer

from broker.errors import InvalidRequestError, UnknownTenantError
from broker.model.tenant import Tenant
from headwater.cli import console
from headwater.cli.discovery import connect, find_server
from headwater.cli.options import JsonOption, ServerOption

app = typer.Typer(
    no_args_is_help=True,
    help="Manage tenants: parts of a cluster that are kept apart.",
    rich_markup_mode="rich",
)

TenantArgument = Annotated[
    str,
    typer.Argument(
        metavar="TENANT",
        help="Its name. Streams and groups whose names begin with TENANT- are the tenant's.",
    ),
]
OwnersOption = Annotated[
    list[str] | None,
    typer.Option(
        "--owner",
        metavar="PATTERN",
        help="Principals that may do there what the role owner may: a name, or a beginning and *.",
    ),
]
PrincipalsOption = Annotated[
    list[str] | None,
    typer.Option(
        "--principal",
        metavar="PATTERN",
        help="Other principals of the tenant, who may do there what is granted to them.",
    ),
]
SubjectsOption = Annotated[
    list[str] | None,
    typer.Option(
        "--subject",
        metavar="PATTERN",
        help="A NATS subject to which its streams may attach, such as shop.>.",
    ),
]


@app.command()
def create(
    tenant: TenantArgument,
    *,
    owner: OwnersOption = None,
    principal: PrincipalsOption = None,
    subject: SubjectsOption = None,
    server: ServerOption = None,
) -> None:
    """Create a tenant. Its principals reach what is the tenant's, and nothing else.

    Streams and groups that are there already become the tenant's by their names. A principal and
    a subject are of one tenant at most.

    [bold]Examples[/bold]

      headwater access tenant create shop --owner shop --subject 'shop.>'
      headwater access tenant create shop --owner shop-admin --principal 'shop-*'
    """
    from headwater.client.access import AccessCalls

    wanted = Tenant(
        name=tenant,
        owners=_sorted(owner),
        principals=_sorted(principal),
        subjects=_sorted(subject),
    )
    with connect(find_server(server)) as client:
        changed = AccessCalls(client).create_tenant(wanted)
    console.say("Created." if changed else "It was there before.")


@app.command()
def alter(
    tenant: TenantArgument,
    *,
    owner: OwnersOption = None,
    principal: PrincipalsOption = None,
    subject: SubjectsOption = None,
    server: ServerOption = None,
) -> None:
    """Change a tenant. Each option that is given replaces all of its kind; '' means none.

    [bold]Examples[/bold]

      headwater access tenant alter shop --subject 'shop.>' --subject 'returns.>'
      headwater access tenant alter shop --principal ''
    """
    from headwater.client.access import AccessCalls

    wanted = {"owners": owner, "principals": principal, "subjects": subject}
    changes = {name: _sorted(one) for name, one in wanted.items() if one is not None}
    if not changes:
        raise InvalidRequestError("name what changes: --owner, --principal or --subject")
    with connect(find_server(server)) as client:
        changed = AccessCalls(client).alter_tenant(tenant, **changes)
    console.say("Altered." if changed else "It was so before.")


@app.command("list")
def list_(*, server: ServerOption = None, json: JsonOption = False) -> None:
    """List the tenants. Others than administrators see their own one.

    [bold]Examples[/bold]

      headwater access tenant list
      headwater access tenant list --json
    """
    from headwater.client.access import AccessCalls

    with connect(find_server(server)) as client:
        found = AccessCalls(client).tenants()
    if json:
        for one in found:
            console.json_line(dataclasses.asdict(one))
        return
    if not found:
        console.note("No tenants.")
        return
    console.columns(
        ("tenant", "owners", "principals", "subjects"),
        (
            (one.name, *(" ".join(of) or "-" for of in (one.owners, one.principals, one.subjects)))
            for one in found
        ),
    )


@app.command()
def describe(
    tenant: TenantArgument, *, server: ServerOption = None, json: JsonOption = False
) -> None:
    """Show a tenant, with its streams.

    [bold]Example[/bold]

      headwater access tenant describe shop
    """
    from headwater.client.access import AccessCalls

    with connect(find_server(server)) as client:
        found = [one for one in AccessCalls(client).tenants() if one.name == tenant]
        if not found:
            raise UnknownTenantError(f"no tenant is named {tenant!r}", tenant=tenant)
        shown = dataclasses.asdict(found[0])
        streams = [one.name for one in client.streams()]
    shown["streams"] = [one for one in streams if one.startswith(found[0].prefix)]
    if json:
        console.json_line(shown)
        return
    console.facts(
        [
            (name, console.plain(value if isinstance(value, str) else " ".join(value) or "-"))
            for name, value in shown.items()
        ]
    )


@app.command()
def delete(tenant: TenantArgument, *, server: ServerOption = None) -> None:
    """Delete a tenant that has no streams and no consumer groups.

    Its principals are then of no tenant: they reach all that is granted to them.

    [bold]Example[/bold]

      headwater access tenant delete shop
    """
    from headwater.client.access import AccessCalls

    with connect(find_server(server)) as client:
        changed = AccessCalls(client).delete_tenant(tenant)
    console.say("Deleted." if changed else "There was no such tenant: nothing was changed.")


def _sorted(patterns: list[str] | None) -> tuple[str, ...]:
    return tuple(sorted({one for one in patterns or () if one}))
