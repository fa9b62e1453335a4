"""Shows the certificate of a read as remarks for people."""

from __future__ import annotations

from typing import TYPE_CHECKING

from headwater.cli import console
from headwater.cli.parsing import counted, format_bytes, format_time_us

if TYPE_CHECKING:
    from broker.model.certificate import Certificate
    from broker.model.cut import Cut


def read_by(certificate: Certificate) -> str:
    """Return who read, to follow the counts; nothing if the broker asked nobody."""
    return f", read by {console.plain(certificate.reader)}" if certificate.reader else ""


def print_certificate(certificate: Certificate, taken: Cut) -> None:
    """Write the checked counts of a read to stderr."""
    version = certificate.table_version
    console.note(
        f"[green]Exact:[/green] {counted(certificate.records_count, 'record')}, each once, of "
        f"[bold]{console.plain(taken.stream)}[/bold] as of {format_time_us(taken.taken_us)}; "
        f"table version {'none' if version is None else version}, "
        f"{counted(certificate.files_count, 'file')}, {format_bytes(certificate.files_bytes)}"
        f"{read_by(certificate)}"
    )
    for part in certificate.partitions:
        console.note(
            f"  partition {part.partition}: [{part.start}, {part.end})  "
            f"{part.cold_count:,} cold + {part.hot_count:,} hot"
        )
