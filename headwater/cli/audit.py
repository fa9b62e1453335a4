"""``headwater audit``: checks that the records of who did what are complete and unchanged."""

from __future__ import annotations

from typing import Final

import typer

from broker.errors import CorruptDataError
from broker.model.access import AUDIT_STREAM
from headwater.cli import console
from headwater.cli.discovery import connect, find_server
from headwater.cli.options import JsonOption, ServerOption
from headwater.cli.parsing import counted

_SHOWN_MAX: Final = 20

app = typer.Typer(
    no_args_is_help=True,
    help="Check the audit: the stream __audit, of who did what to which stream.",
    rich_markup_mode="rich",
)


@app.callback()
def audit() -> None:
    """Check the audit: the stream __audit, of who did what to which stream."""


@app.command()
def verify(*, server: ServerOption = None, json: JsonOption = False) -> None:
    """Check that no record of the audit was changed, left out or put in.

    Each process of a broker writes a chain in which each record has the hash of the one before.
    Read the records themselves with `headwater subscribe __audit` or Spark.

    [bold]Example[/bold]

      headwater audit verify
    """
    from broker.codec.audit_record import AuditCheck

    check = AuditCheck()
    with connect(find_server(server), waits_long=True) as client:
        for fetched in client.fetch(AUDIT_STREAM):
            batch = fetched.batch
            offsets = batch.column("offset").to_pylist()
            for offset, value in zip(offsets, batch.column("value").to_pylist(), strict=True):
                check.take(value, f"{AUDIT_STREAM}/0/{offset}")
    if json:
        console.json_line(
            {
                "records": check.records_count,
                "chains": check.chains_count,
                "not_kept": check.lost_count,
                "problems": check.problems,
            }
        )
    else:
        console.say(
            f"{counted(check.records_count, 'record')} in {counted(check.chains_count, 'chain')}; "
            f"not kept in the stream, because too many waited: {check.lost_count}."
        )
    if check.problems:
        for one in [] if json else check.problems[:_SHOWN_MAX]:
            console.note(console.plain(one))
        raise CorruptDataError(
            f"the audit stream was changed, or lacks records, at {len(check.problems)} places; the "
            "lines above name them"
        )
