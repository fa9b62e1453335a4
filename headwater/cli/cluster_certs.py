"""``headwater cluster certs``: a cluster's authority and one certificate per broker."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

from headwater.cli import console

OutOption = Annotated[
    Path, typer.Option("--out", metavar="DIR", help="Directory for the files; made if missing.")
]
ClusterOption = Annotated[str, typer.Option(help="The cluster's name, as in node.cluster.")]
BrokersOption = Annotated[
    list[str], typer.Option("--broker", metavar="ID", help="A broker's id; repeat the option.")
]
DaysOption = Annotated[int, typer.Option(min=1, max=3650, help="How long a certificate is valid.")]


def certs(
    out: OutOption, cluster: ClusterOption, broker: BrokersOption, days: DaysOption = 825
) -> None:
    """Make the certificates with which the brokers of a cluster identify each other.

    To add a broker, run the command again with another --broker: existing files are kept, never
    replaced. Give each broker ca.crt and its own ID.crt and ID.key. Give no broker ca.key.
    """
    from headwater.local.cluster_certificates import make_certificates

    made = make_certificates(out, cluster=cluster, brokers=broker, days=days)
    for files in made.values():
        console.line(f"{files.cert_file}  {files.key_file}")
    console.note(
        console.plain(f"Copy {out / 'ca.crt'} to every broker, and {out / 'ca.key'} to none.")
    )
