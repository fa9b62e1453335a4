"""The ``headwater`` command: puts the command groups together and handles their errors.

Commands raise only HeadwaterError on purpose. Here the error becomes a message, a hint and an exit
code; ``--debug`` shows the traceback instead. A command's module is imported when the command is
named, and each command imports other top-level folders only when it runs, so that commands start
quickly.
"""

from __future__ import annotations

import io
import os
import sys
from collections.abc import Iterator, Mapping
from functools import cache
from importlib import import_module
from typing import Annotated, Any, Final

import typer
from typer.core import TyperGroup
from typer.main import get_command_from_info, get_group_from_info
from typer.models import CommandInfo, TyperInfo

from headwater.cli import console, failures
from headwater.cli.plain_text import without_pydantic

_EXIT_BROKEN_PIPE: Final = 141  # what a shell reports for a program ended by SIGPIPE
# Command -> module of this folder, and the command's function or group there; in the help's order.
_COMMANDS: Final = {
    "up": ("server", "up"),
    "broker": ("server", "broker"),
    "publish": ("publish", "publish"),
    "subscribe": ("subscribe", "subscribe"),
    "read": ("read", "read"),
    "cut": ("read", "cut"),
    "query": ("query", "query"),
    "verify": ("verify", "verify"),
    "stream": ("stream", "app"),
    "group": ("group", "app"),
    "access": ("access", "app"),
    "token": ("token", "app"),
    "audit": ("audit", "app"),
    "keyring": ("keyring", "app"),
    "lease": ("lease", "app"),
    "tier": ("tier", "app"),
    "cluster": ("cluster", "app"),
    "job": ("job", "app"),
}
_MARKUP: Final = "rich"

without_pydantic()


class _Commands(Mapping[str, Any]):
    """The commands by name. A command is imported and built when it is asked for."""

    def __getitem__(self, name: str) -> Any:
        return _built(name)

    def __iter__(self) -> Iterator[str]:
        return iter(_COMMANDS)

    def __len__(self) -> int:
        return len(_COMMANDS)


@cache
def _built(name: str) -> Any:
    """Return a command. Typer keeps nothing of a run in it, so a process builds it once."""
    module, attribute = _COMMANDS[name]
    found = getattr(import_module(f"headwater.cli.{module}"), attribute)
    return _group(name, found) if attribute == "app" else _one(name, found)


def _group(name: str, commands: typer.Typer) -> Any:
    return get_group_from_info(
        TyperInfo(commands, name=name),
        pretty_exceptions_short=False,
        suggest_commands=True,
        rich_markup_mode=_MARKUP,
    )


def _one(name: str, function: Any) -> Any:
    return get_command_from_info(
        CommandInfo(name=name, callback=function),
        pretty_exceptions_short=False,
        rich_markup_mode=_MARKUP,
    )


class ErrorGroup(TyperGroup):
    """All commands. It turns every error into one message and an exit code."""

    def __init__(self, **options: Any) -> None:
        super().__init__(**options)
        self.commands: Any = _Commands()

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
    rich_markup_mode=_MARKUP,
    pretty_exceptions_enable=False,
    context_settings={"help_option_names": ["-h", "--help"]},
)


def _version(wanted: bool) -> None:
    if wanted:
        from importlib.metadata import version

        console.line(f"headwater {version('headwater')}")
        raise typer.Exit


def _use_token_file(path: str | None) -> None:
    if path is not None:  # what the command starts, a Spark session for example, sees it too
        os.environ["HEADWATER_TOKEN_FILE"] = path


@app.callback()
def _root(
    *,
    debug: Annotated[
        bool, typer.Option("--debug", help="Show the traceback of an error, to report it.")
    ] = False,
    token_file: Annotated[
        str | None,
        typer.Option(
            "--token-file",
            callback=_use_token_file,
            envvar="HEADWATER_TOKEN_FILE",
            metavar="FILE",
            help="File with the token that says who you are, for brokers that ask.",
            show_default=False,
        ),
    ] = None,
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


def main() -> None:
    """Run the command line and exit the process."""
    if sys.stderr is None:  # as after `2>&-`: remarks are not wanted
        sys.stderr = os.fdopen(os.open(os.devnull, os.O_WRONLY), "w")
    if sys.stdout is None:
        sys.stderr.write("headwater: standard output is closed; for no output use >/dev/null\n")
        sys.exit(failures.EXIT_WRONG_REQUEST)
    _write_whole()
    if sys.argv[1:2] not in (["up"], ["broker"]):  # a client's errors are told by the command
        os.environ.setdefault("GRPC_VERBOSITY", "NONE")
    try:
        try:
            app(prog_name="headwater")
        finally:  # here, because an error at the interpreter's exit is only a traceback
            console.flush()
    except KeyboardInterrupt:  # while typer put the commands together
        sys.exit(failures.EXIT_INTERRUPTED)
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
