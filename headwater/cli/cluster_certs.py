"""``headwater cluster certs``: a cluster's authority and one certificate per broker."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

from headwater.cli import console

OutOption = Annotated[
    Path, typer.Option("--out", metavar="DIR", help="Where the files go; made if missing.")
]
ClusterOption = Annotated[str, typer.Option(help="The cluster's name, as node.cluster has it.")]
BrokersOption = Annotated[
    list[str], typer.Option("--broker", metavar="ID", help="A broker's id; repeat the option.")
]
DaysOption = Annotated[int, typer.Option(min=1, max=3650, help="How long a certificate is valid.")]


def certs(
    out: OutOption, cluster: ClusterOption, broker: BrokersOption, days: DaysOption = 825
) -> None:
    """Make the certificates that the brokers of a cluster know each other by.

    Run it again with another --broker to add one: what is there is kept, never replaced. Give each
    broker ca.crt and its own ID.crt and ID.key; keep ca.key away from all of them.
    """
    from headwater.local.cluster_certificates import make_certificates

    made = make_certificates(out, cluster=cluster, brokers=broker, days=days)
    for files in made.values():
        console.line(f"{files.cert_file}  {files.key_file}")
    console.note(console.plain(f"{out / 'ca.crt'} is for every broker; {out / 'ca.key'} for none."))
