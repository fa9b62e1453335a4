"""The ``headwater`` command: puts the command groups together and handles their errors.

Commands raise only HeadwaterError on purpose. Here the error becomes a message, a hint and an exit
code; ``--debug`` shows the traceback instead. Each command imports other top-level folders only
when it runs, so that ``headwater --help`` and completion are quick.
"""

from __future__ import annotations

import io
import os
import sys
from typing import Annotated, Any, Final

import typer
from typer.core import TyperGroup

from headwater.cli import console, failures
from headwater.cli.cluster import app as cluster_app
from headwater.cli.job import app as job_app
from headwater.cli.lease import app as lease_app
from headwater.cli.publish import publish
from headwater.cli.query import query
from headwater.cli.read import cut, read
from headwater.cli.server import broker, up
from headwater.cli.stream import app as stream_app
from headwater.cli.subscribe import subscribe
from headwater.cli.tier import app as tier_app
from headwater.cli.verify import verify

_EXIT_BROKEN_PIPE: Final = 141  # what a shell reports for a program ended by SIGPIPE


class ErrorGroup(TyperGroup):
    """A group that turns every error into one message and an exit code."""

    def make_context(self, *args: Any, **kwargs: Any) -> Any:
        """Parse the command line; help and version are written meanwhile."""
        try:
            return super().make_context(*args, **kwargs)
        except BrokenPipeError:
            _forget_stdout()
            raise typer.Exit(_EXIT_BROKEN_PIPE) from None

    def invoke(self, ctx: Any) -> Any:
        """Run the chosen command."""
        try:
            result = super().invoke(ctx)
            console.flush()  # raises BrokenPipeError here, not at the exit of the interpreter
        except (typer.Exit, typer.Abort, typer.TyperException):
            raise
        except KeyboardInterrupt:
            raise typer.Exit(failures.EXIT_INTERRUPTED) from None
        except BrokenPipeError:
            _forget_stdout()
            raise typer.Exit(_EXIT_BROKEN_PIPE) from None
        except Exception as error:
            if ctx.params.get("debug"):
                raise
            raise typer.Exit(_report(error)) from error
        return result


app = typer.Typer(
    cls=ErrorGroup,
    name="headwater",
    no_args_is_help=True,
    rich_markup_mode="rich",
    pretty_exceptions_enable=False,
    context_settings={"help_option_names": ["-h", "--help"]},
)


def _version(wanted: bool) -> None:
    if wanted:
        from importlib.metadata import version

        console.line(f"headwater {version('headwater')}")
        raise typer.Exit


@app.callback()
def _root(
    *,
    debug: Annotated[
        bool, typer.Option("--debug", help="Show the traceback of an error, to report it.")
    ] = False,
    version: Annotated[
        bool,
        typer.Option("--version", callback=_version, is_eager=True, help="Print the version."),
    ] = False,
) -> None:
    """Durable NATS subjects whose whole history is a Delta table.

    Start a server with [bold]headwater up[/bold]. In another terminal, in the same folder:

      headwater stream create orders --subject orders --puback
      echo 'hello' | headwater publish orders
      headwater subscribe orders --follow
      headwater query 'select count(*) from orders'
    """


app.command()(up)
app.command()(broker)
app.add_typer(stream_app, name="stream")
app.command()(publish)
app.command()(subscribe)
app.command()(read)
app.command()(cut)
app.add_typer(lease_app, name="lease")
app.add_typer(tier_app, name="tier")
app.add_typer(cluster_app, name="cluster")
app.command()(query)
app.command()(verify)
app.add_typer(job_app, name="job")


def main() -> None:
    """Run the command line and exit the process."""
    _write_whole()
    try:
        try:
            app(prog_name="headwater")
        finally:  # what is buffered is written here: at its exit the interpreter complains
            console.flush()
    except BrokenPipeError:
        _forget_stdout()
        sys.exit(_EXIT_BROKEN_PIPE)


def _report(error: Exception) -> int:
    """Print what went wrong and what to do; return the exit code."""
    failure = failures.explain(error)
    if failure is None:
        console.note(
            f"[bold red]Internal error[/bold red] {type(error).__name__}: "
            f"{console.plain(str(error))}\n"
            "This is a bug in Headwater. Please report it with the output of `headwater --debug …`."
        )
        return 70  # EX_SOFTWARE of sysexits.h
    console.note(f"[bold red]{failure.name}[/bold red]: {console.plain(failure.message)}")
    if failure.hint:
        console.note(f"[dim]{console.plain(failure.hint)}[/dim]")
    return failure.exit_code


def _write_whole() -> None:
    """Put a buffer before stdout where ``python -u`` or PYTHONUNBUFFERED left it out.

    Without one a write may be short, on a full disk or into a pipe that is closed, and no error
    says so.
    """
    raw = sys.stdout.buffer
    if isinstance(raw, io.RawIOBase):
        sys.stdout = io.TextIOWrapper(
            io.BufferedWriter(raw),
            encoding=sys.stdout.encoding,
            errors=sys.stdout.errors,
            line_buffering=sys.stdout.isatty(),
        )


def _forget_stdout() -> None:
    """Point stdout at /dev/null, so that the interpreter's last flush does not fail."""
    nowhere = os.open(os.devnull, os.O_WRONLY)
    os.dup2(nowhere, sys.stdout.fileno())


if __name__ == "__main__":
    main()
