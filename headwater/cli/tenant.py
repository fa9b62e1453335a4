"""``headwater access tenant``: parts of a cluster that are kept apart."""

from __future__ import annotations

import dataclasses
from collections.abc import Sequence
from typing import Annotated, Any

import typer

from broker.errors import InvalidRequestError, UnknownTenantError
from broker.model.tenant import Tenant
from headwater.cli import console
from headwater.cli.discovery import connect, find_server
from headwater.cli.options import JsonOption, ServerOption, size_option

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
PublishOption = Annotated[
    int | None, size_option("--publish", help="Bytes a second that it may publish to a broker.")
]
ReadOption = Annotated[
    int | None, size_option("--read", help="Bytes a second that it may read from a broker.")
]
RequestsOption = Annotated[
    int | None, typer.Option(metavar="N", help="Requests a second that a broker takes.")
]
OpenCallsOption = Annotated[
    int | None,
    typer.Option(metavar="N", help="Reads and writes that are open at a broker at the same time."),
]
StreamsOption = Annotated[int | None, typer.Option(metavar="N", help="Streams that it may have.")]
PartitionsOption = Annotated[
    int | None, typer.Option(metavar="N", help="Partitions of all its streams together.")
]
LeasesOption = Annotated[
    int | None,
    typer.Option(metavar="N", help="Leases on all its streams together; 0: a quarter of all."),
]
MetadataOption = Annotated[
    int | None,
    size_option("--metadata", help="Bytes of the cluster's metadata; 0: a quarter of all."),
]
KeyOption = Annotated[
    str | None,
    typer.Option(
        metavar="NAME",
        help="The key provider's key for its encrypted streams: a name in the keyring, a key id "
        "of AWS KMS.",
    ),
]


@app.command()
def create(
    tenant: TenantArgument,
    *,
    owner: OwnersOption = None,
    principal: PrincipalsOption = None,
    subject: SubjectsOption = None,
    publish: PublishOption = None,
    read: ReadOption = None,
    requests: RequestsOption = None,
    open_calls: OpenCallsOption = None,
    streams: StreamsOption = None,
    partitions: PartitionsOption = None,
    leases: LeasesOption = None,
    metadata: MetadataOption = None,
    key: KeyOption = None,
    server: ServerOption = None,
) -> None:
    """Create a tenant. Its principals reach what is the tenant's, and nothing else.

    Streams and groups that are there already become the tenant's by their names. A principal and
    a subject are of one tenant at most. What no option names has no limit; each limit is one for
    all principals of the tenant together, beside the quotas that they have of their own.

    [bold]Examples[/bold]

      headwater access tenant create shop --owner shop --subject 'shop.>'
      headwater access tenant create shop --owner shop-admin --principal 'shop-*' --publish 10MiB
    """
    from headwater.client.access import AccessCalls

    fields = _given(
        owners=owner,
        principals=principal,
        subjects=subject,
        publish_bytes_per_s=publish,
        read_bytes_per_s=read,
        requests_per_s=requests,
        open_calls=open_calls,
        streams_max=streams,
        partitions_max=partitions,
        leases_max=leases,
        metadata_bytes_max=metadata,
        wrapping_key=key,
    )
    wanted = Tenant(name=tenant, **fields)
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
    publish: PublishOption = None,
    read: ReadOption = None,
    requests: RequestsOption = None,
    open_calls: OpenCallsOption = None,
    streams: StreamsOption = None,
    partitions: PartitionsOption = None,
    leases: LeasesOption = None,
    metadata: MetadataOption = None,
    key: KeyOption = None,
    server: ServerOption = None,
) -> None:
    """Change a tenant. Each option that is given replaces all of its kind; '' and 0 mean none.

    Streams that are there keep their key until `headwater stream rotate-key`.

    [bold]Examples[/bold]

      headwater access tenant alter shop --subject 'shop.>' --subject 'returns.>'
      headwater access tenant alter shop --principal '' --streams 100 --publish 0
    """
    from headwater.client.access import AccessCalls

    changes = _given(
        owners=owner,
        principals=principal,
        subjects=subject,
        publish_bytes_per_s=publish,
        read_bytes_per_s=read,
        requests_per_s=requests,
        open_calls=open_calls,
        streams_max=streams,
        partitions_max=partitions,
        leases_max=leases,
        metadata_bytes_max=metadata,
        wrapping_key=key,
    )
    if not changes:
        raise InvalidRequestError(
            "name what changes: `headwater access tenant alter --help` lists the options"
        )
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
    console.facts([(name.replace("_", " "), _text(value)) for name, value in shown.items()])


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


def _text(value: str | int | Sequence[str]) -> str:
    if isinstance(value, int):
        return str(value or "-")
    return console.plain(value if isinstance(value, str) else " ".join(value) or "-")


def _given(**options: list[str] | int | str | None) -> dict[str, Any]:
    """Return the fields whose options were given; '' is no pattern."""
    return {
        name: tuple(sorted({one for one in value if one})) if isinstance(value, list) else value
        for name, value in options.items()
        if value is not None
    }
