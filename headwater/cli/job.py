"""``headwater job``: Spark jobs over streams. Each has its own arguments and its own help."""

from __future__ import annotations

import importlib
import importlib.util
import os
from collections.abc import Callable, Sequence
from typing import Annotated, Final

import typer

from broker.errors import InvalidRequestError
from headwater.cli import console
from headwater.cli.discovery import Server, connect, find_server, use_lake_of
from headwater.cli.interrupts import ends_in_one_line

_MODULES: Final = "spark_jobs.jobs"
_SERVER: Final = "--server"
_HELP: Final = frozenset({"-h", "--help"})

# In the order in which the help lists them: the most used job first.
JOBS: Final = {
    "ingest": "Keep a table of decoded records up to date with a stream.",
    "backfill": "Append a bounded part of a stream's history to a table.",
    "compact": "Rewrite small files of a table, and delete files that no reader needs.",
    "snapshot": "Build or advance the table with the latest record of every key.",
    "verify": "Check a stream's whole history in parallel, and report.",
}

app = typer.Typer(
    no_args_is_help=True,
    help="""Run a Spark job over a stream: on this machine, or on a cluster with --master.

    You may run a job twice, run two copies at once, kill it and run it again: the table records
    the job's progress. Exit code 3 means: run the job again later. docs/jobs.md shows how to set
    jobs up, airflow_dags/README.md how to schedule them.

    [bold]Examples[/bold]

      headwater job ingest --stream orders --table ./lake/curated/orders
      headwater job ingest --help
      headwater job backfill --stream orders --table ./lake/history --to-timestamp 2026-11-21
      spark-submit $(headwater job submit-args ingest) --stream orders …
    """,
)


def _command(name: str) -> Callable[[typer.Context], None]:
    def command(context: typer.Context) -> None:
        words = list(context.args)
        module = f"{_MODULES}.{name}"
        if importlib.util.find_spec(module) is None:
            raise InvalidRequestError(f"job {name} is not part of this installation")
        main: Callable[[list[str]], int] = importlib.import_module(module).main
        if not _HELP & set(words):
            words = _with_server(words)
        with ends_in_one_line(), console.working(f"Spark starts, and works on {name}"):
            status = main(words)
        if status:
            raise typer.Exit(status)

    return command


def _with_server(words: list[str]) -> list[str]:
    """Return the arguments with ``--server`` as an address, resolved as in every command."""
    given = os.environ.get("HEADWATER_SERVER")
    rest: list[str] = []
    position = 0
    while position < len(words):
        name, equals, value = words[position].partition("=")
        if name == _SERVER and (equals or position + 1 < len(words)):
            position += 0 if equals else 1
            given = value if equals else words[position]
        else:
            rest.append(words[position])
        position += 1
    server = find_server(given)
    use_lake_of(server)
    _look_up_stream(server, rest)
    return [_SERVER, server.flight, *rest]


def _look_up_stream(server: Server, words: Sequence[str]) -> None:
    """Ask the broker for the stream in ``--stream``, before the start of Spark takes seconds.

    Raises:
        UnknownStreamError, UnavailableError.
    """
    for word, following in zip(words, (*words[1:], ""), strict=False):
        name, equals, value = word.partition("=")
        if name == "--stream":
            with connect(server) as client:
                client.stream(value if equals else following)


for _name, _line in JOBS.items():
    app.command(
        _name,
        help=_line,
        add_help_option=False,  # the job's own parser has one
        context_settings={
            "allow_extra_args": True,
            "ignore_unknown_options": True,
            "help_option_names": [],
        },
    )(_command(_name))


@app.command("submit-args")
def submit_args(
    job: Annotated[
        str | None, typer.Argument(metavar="[JOB]", help="Also print the job's file, at the end.")
    ] = None,
) -> None:
    """Print the arguments of spark-submit that come before the job's own: jars, settings, file.

    The output has no credentials, and no --master: add it yourself.

    [bold]Example[/bold]

      spark-submit --master local[2] $(headwater job submit-args ingest) --stream orders …
    """
    from spark_jobs.session import submit_arguments

    words = submit_arguments()
    if job is not None:
        found = importlib.util.find_spec(f"{_MODULES}.{job}") if job in JOBS else None
        if found is None or found.origin is None:
            raise InvalidRequestError(f"there is no job {job!r}; there are {', '.join(JOBS)}")
        words.append(found.origin)
    console.line(" ".join(words))
