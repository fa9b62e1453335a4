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
    list[str],
    typer.Option(
        "--broker",
        metavar="ID[=HOST,…]",
        help="A broker's id, and the names or addresses at which clients reach it; repeat the "
        "option.",
    ),
]
DaysOption = Annotated[int, typer.Option(min=1, max=3650, help="How long a certificate is valid.")]


def certs(
    out: OutOption, cluster: ClusterOption, broker: BrokersOption, days: DaysOption = 825
) -> None:
    """Make the certificates with which the brokers of a cluster identify each other.

    With hosts, the certificate of a broker also serves its doors for clients: name it in
    flight.tls_cert_file and liftbridge.tls_cert_file. Clients trust ca.crt.

    To add a broker, run the command again with another --broker: existing files are kept, never
    replaced. Give each broker ca.crt and its own ID.crt and ID.key. Give no broker ca.key.

    [bold]Examples[/bold]

      headwater cluster certs --out certs --cluster prod --broker b1 --broker b2 --broker b3
      headwater cluster certs --out certs --cluster prod --broker b1=b1.example,10.0.0.1
    """
    from headwater.local.cluster_certificates import make_certificates

    hosts = {
        name: [one.strip() for one in listed.split(",")] if listed else []
        for name, _, listed in (one.partition("=") for one in broker)
    }
    made = make_certificates(out, cluster=cluster, brokers=list(hosts), hosts=hosts, days=days)
    for files in made.values():
        console.line(f"{files.cert_file}  {files.key_file}")
    console.note(
        console.plain(f"Copy {out / 'ca.crt'} to every broker, and {out / 'ca.key'} to none.")
    )
