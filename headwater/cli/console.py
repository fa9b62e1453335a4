"""Output of commands. Results go to stdout, remarks about them to stderr.

Commands ask for a table, a list of facts, JSON or plain lines. rich decides whether stdout is a
terminal. This module and typer's help are the only users of rich.
"""

from __future__ import annotations

import errno
import json
import os
import sys
import threading
from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import contextmanager
from typing import TYPE_CHECKING, Any, Final

from rich.console import Console
from rich.markup import escape

from broker.model.harmless import harmless

if TYPE_CHECKING:
    from rich.progress import Progress

REMARK_AFTER_S: Final = 2.0  # no command is silent for longer


def _raise_broken_pipe(self: Console) -> None:  # noqa: ARG001  # rich's parameter
    raise BrokenPipeError(errno.EPIPE, os.strerror(errno.EPIPE))


# This applies to every console of the process, also that of typer's help: `main.py` handles every
# broken pipe.
Console.on_broken_pipe = _raise_broken_pipe  # type: ignore[method-assign]

# A console looks its stream up at each write, so that tests and redirections see the output.
_OUT = Console(soft_wrap=True, highlight=False)
_ERR = Console(stderr=True, soft_wrap=True, highlight=False)


class _Activity:
    """Counts what was shown: the remark that a command waits appears only after a silence."""

    def __init__(self) -> None:
        self.shown_count = 0  # lines, tables, remarks, prompts
        self.working_count = 0  # running calls of `working`, which show their own remark

    def shown(self) -> None:
        """Note that something was written."""
        self.shown_count += 1


_activity = _Activity()


def line(text: str) -> None:
    """Write one line to stdout exactly as it is; on a terminal without control characters."""
    _activity.shown()
    sys.stdout.write((harmless(text) if sys.stdout.isatty() else text) + "\n")


def flush() -> None:
    """Write buffered lines now, because the reader of a pipe waits for them."""
    sys.stdout.flush()


def json_line(value: Any) -> None:
    """Write a value as one line of JSON to stdout."""
    line(json.dumps(value, sort_keys=False, default=str, ensure_ascii=False))


def say(markup: str) -> None:
    """Write a line for people to stdout; ``markup`` may have rich markup."""
    _activity.shown()
    _OUT.print(markup)


def note(markup: str) -> None:
    """Write a remark to stderr; ``markup`` may have rich markup."""
    _activity.shown()
    _ERR.print(markup)


def asking() -> None:
    """Note that the command asks the user a question: no remark about waiting may follow."""
    _activity.shown()


def plain(text: str) -> str:
    """Escape rich markup and control characters; used for names and values from outside."""
    return escape(harmless(text))


def panel(title: str, body: str) -> None:
    """Show a framed text on stdout."""
    from rich.panel import Panel

    _activity.shown()
    _OUT.print(Panel(body, title=title, title_align="left", expand=False, padding=(0, 1)))


def table(
    columns: Sequence[str], rows: Iterable[Sequence[Any]], *, title: str | None = None
) -> None:
    """Show rows on stdout; numbers are right-aligned, values from outside are escaped."""
    from rich.table import Table

    built = Table(title=title, title_justify="left", header_style="bold")
    body = [list(row) for row in rows]
    for index, name in enumerate(columns):
        numeric = bool(body) and all(isinstance(row[index], int | float) for row in body)
        built.add_column(name, justify="right" if numeric else "left", overflow="fold")
    for row in body:
        built.add_row(*(_cell(value) for value in row))
    _activity.shown()
    _OUT.print(built)


def columns(names: Sequence[str], rows: Iterable[Sequence[Any]]) -> None:
    """Show many columns on stdout without frames; lines are never wrapped or shortened.

    So grep and awk can process the lines, and a narrow terminal still shows all columns.
    """
    body = [[" ".join(_text(value).split()) for value in row] for row in rows]
    heads = [name.upper() for name in names]
    widths = [max(map(len, column)) for column in zip(heads, *body, strict=True)]
    for cells in (heads, *body):
        padded = (cell.ljust(width) for cell, width in zip(cells, widths, strict=True))
        line("  ".join(padded).rstrip())


def facts(pairs: Iterable[tuple[str, Any]], *, title: str | None = None) -> None:
    """Show names with their values on stdout, one per line."""
    from rich.table import Table

    _activity.shown()
    built = Table.grid(padding=(0, 2))
    built.add_column(style="dim")
    built.add_column(overflow="fold")
    for name, value in pairs:
        built.add_row(name, _cell(value))
    if title:
        _OUT.print(f"[bold]{escape(title)}[/bold]")
    _OUT.print(built)


def progress(*, total: int | None, what: str) -> Progress:
    """Return a progress display on stderr; it shows nothing if stderr is not a terminal."""
    from rich.progress import (
        BarColumn,
        MofNCompleteColumn,
        Progress,
        SpinnerColumn,
        TextColumn,
        TimeElapsedColumn,
    )

    columns = [SpinnerColumn(), TextColumn("{task.description}"), BarColumn()]
    counts = [MofNCompleteColumn(), TextColumn("{task.fields[rate]}"), TimeElapsedColumn()]
    shown = Progress(*columns, *counts, console=_ERR, transient=True, disable=not _ERR.is_terminal)
    shown.add_task(what, total=total, rate="")
    return shown


@contextmanager
def counting(
    what: str, *, total: int | None = None, rows_shown: bool = False
) -> Iterator[Callable[..., None]]:
    """Show how far the work in this context is; yields ``report(completed, rate="")``.

    The display is on stderr. If stderr is not a terminal, or if ``rows_shown`` says that the work's
    results go to the same terminal, there is one remark after two seconds instead.
    """
    if not _ERR.is_terminal or (rows_shown and _OUT.is_terminal):
        with working(what):
            yield lambda completed, rate="": None  # noqa: ARG005  # the display's parameters
        return
    with progress(total=total, what=what) as shown, _working():
        (task,) = shown.task_ids
        yield lambda completed, rate="": shown.update(task, completed=completed, rate=rate)


@contextmanager
def working(what: str, *, after_s: float = REMARK_AFTER_S) -> Iterator[None]:
    """Write ``what`` as a remark once the work in this context takes longer than two seconds."""
    timer = threading.Timer(after_s, lambda: note(f"[dim]{plain(what)} …[/dim]"))
    timer.daemon = True
    timer.start()
    try:
        with _working():
            yield
    finally:
        timer.cancel()


@contextmanager
def waiting(what: str, *, after_s: float = REMARK_AFTER_S) -> Iterator[None]:
    """Write ``what`` as a remark if nothing was shown for two seconds and nothing else is due."""
    before = _activity.shown_count

    def remark() -> None:
        if _activity.shown_count == before and not _activity.working_count:
            note(f"[dim]{plain(what)} …[/dim]")

    timer = threading.Timer(after_s, remark)
    timer.daemon = True
    timer.start()
    try:
        yield
    finally:
        timer.cancel()


@contextmanager
def goes_on(what: str) -> Iterator[None]:
    """At an interrupt, write the note ``what``: the work goes on without the command."""
    try:
        yield
    except KeyboardInterrupt:
        note(f"Interrupted: {escape(what)}.")
        raise


@contextmanager
def _working() -> Iterator[None]:
    _activity.working_count += 1
    try:
        yield
    finally:
        _activity.working_count -= 1


def is_terminal() -> bool:
    """Tell whether stdout is a terminal."""
    return _OUT.is_terminal


def _cell(value: Any) -> str:
    return escape(_text(value))


def _text(value: Any) -> str:
    if value is None:
        return "-"
    if isinstance(value, bool):
        return "yes" if value else "no"
    if isinstance(value, int):
        return f"{value:,}"
    return harmless(str(value))
