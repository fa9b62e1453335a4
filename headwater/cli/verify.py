"""``headwater verify``: reads every byte of a stream again and compares digests."""

from __future__ import annotations

import time
from typing import TYPE_CHECKING, Annotated, Any

import typer

from broker.errors import CorruptDataError, HeadwaterError
from headwater.cli import console, failures
from headwater.cli.certificates import read_by
from headwater.cli.discovery import connect, find_server, use_lake_of
from headwater.cli.options import JsonOption, ServerOption
from headwater.cli.parsing import counted, format_bytes
from headwater.reads.leases import held_cut

if TYPE_CHECKING:
    from broker.model.certificate import Certificate
    from broker.model.cut import Cut
    from headwater.client import Client


def verify(
    streams: Annotated[
        list[str] | None,
        typer.Argument(metavar="[STREAM]...", help="Streams; without any, all of them."),
    ] = None,
    *,
    server: ServerOption = None,
    json: JsonOption = False,
) -> None:
    """Check streams as a client: counts, contiguity and digests of every record.

    Reads each object of the Delta table, and the tail that only the broker has. Exit code 0: every
    committed record is there once, as it was committed. 1: data is damaged; the error's name says
    how. 3: a part could not be reached, so the result is not known ("ok": null).

    [bold]Examples[/bold]

      headwater verify orders
      headwater verify --json | jq '.ok'
    """
    target = find_server(server)
    use_lake_of(target)
    with connect(target) as client:
        names = streams or [stream.name for stream in client.streams()]
        if not names:
            console.note("There are no streams.")
        codes = [_verify_one(client, name, as_json=json) for name in names]
    # Damage that was found is told, whatever could not be reached besides.
    worst = failures.EXIT_DAMAGED if failures.EXIT_DAMAGED in codes else max(codes, default=0)
    if worst:
        raise typer.Exit(worst)


def _verify_one(client: Client, name: str, *, as_json: bool) -> int:
    """Verify one stream, print the result, return its exit code; the others are verified anyway."""
    started = time.monotonic()
    try:
        with held_cut(client, name) as cut:
            certificate = _verify_with_progress(client, cut)
    except HeadwaterError as error:
        failure = failures.explain(error)
        assert failure is not None, "our own errors are explained"
        if as_json:
            console.json_line(
                {"stream": name, "ok": False if isinstance(error, CorruptDataError) else None,
                 "error": failure.name, "message": failure.message, "facts": error.facts}
            )  # fmt: skip
        else:
            console.note(
                f"[bold red]{failure.name}[/bold red] in {console.plain(name)}: "
                f"{console.plain(failure.message)}"
            )
            console.note(f"[dim]{console.plain(failure.hint or '')}[/dim]")
        return failure.exit_code
    if as_json:
        console.json_line({"stream": name, "ok": True, "certificate": certificate.to_dict()})
    else:
        _show(certificate, time.monotonic() - started)
    return 0


def _verify_with_progress(client: Client, cut: Cut) -> Certificate:
    from headwater.reads.verification import verify_cut

    done = 0
    total = cut.records_count
    with console.counting(f"verifying {total:,} records of {cut.stream}", total=total) as report:

        def progress(rows: int) -> None:
            nonlocal done
            done += rows
            report(done)

        return verify_cut(client, cut, progress=progress)


def _show(certificate: Certificate, seconds: float) -> None:
    console.say(
        f"[green]Verified[/green] [bold]{console.plain(certificate.stream)}[/bold]: "
        f"{counted(certificate.records_count, 'record')}, each once, "
        f"{counted(certificate.files_count, 'file')}, "
        f"{format_bytes(certificate.files_bytes)}, {seconds:.1f} s{read_by(certificate)}"
    )
    rows: list[tuple[Any, ...]] = [
        (
            part.partition,
            f"[{part.start}, {part.end})",
            part.cold_count,
            part.hot_count,
            (part.digest or "")[:16],
        )
        for part in certificate.partitions
    ]
    console.table(("partition", "offsets", "cold", "hot", "digest"), rows)
