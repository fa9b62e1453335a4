"""Output of commands. Results go to stdout, remarks about them to stderr.

Commands ask for a table, a list of facts, JSON or plain lines. rich decides whether stdout is a
terminal. This module and typer's help are the only users of rich.
"""

from __future__ import annotations

import json
import sys
import threading
from collections.abc import Iterable, Iterator, Sequence
from contextlib import contextmanager
from typing import Any

from rich.console import Console
from rich.markup import escape
from rich.panel import Panel
from rich.progress import (
    BarColumn,
    MofNCompleteColumn,
    Progress,
    SpinnerColumn,
    TextColumn,
    TimeElapsedColumn,
)
from rich.table import Table

# A console looks its stream up at each write, so that tests and redirections see the output.
_OUT = Console(soft_wrap=True, highlight=False)
_ERR = Console(stderr=True, soft_wrap=True, highlight=False)


def line(text: str) -> None:
    """Write one line to stdout exactly as it is."""
    sys.stdout.write(text + "\n")


def flush() -> None:
    """Write buffered lines now, because the reader of a pipe waits for them."""
    sys.stdout.flush()


def json_line(value: Any) -> None:
    """Write a value as one line of JSON to stdout."""
    line(json.dumps(value, sort_keys=False, default=str, ensure_ascii=False))


def say(markup: str) -> None:
    """Write a line for people to stdout; ``markup`` may have rich markup."""
    _OUT.print(markup)


def note(markup: str) -> None:
    """Write a remark to stderr; ``markup`` may have rich markup."""
    _ERR.print(markup)


def plain(text: str) -> str:
    """Escape rich markup in ``text``; used for names and values from outside."""
    return escape(text)


def panel(title: str, body: str) -> None:
    """Show a framed text on stdout."""
    _OUT.print(Panel(body, title=title, title_align="left", expand=False, padding=(0, 1)))


def table(
    columns: Sequence[str], rows: Iterable[Sequence[Any]], *, title: str | None = None
) -> None:
    """Show rows on stdout; numbers are right-aligned, values from outside are escaped."""
    built = Table(title=title, title_justify="left", header_style="bold")
    body = [list(row) for row in rows]
    for index, name in enumerate(columns):
        numeric = bool(body) and all(isinstance(row[index], int | float) for row in body)
        built.add_column(name, justify="right" if numeric else "left", overflow="fold")
    for row in body:
        built.add_row(*(_cell(value) for value in row))
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
    columns = [SpinnerColumn(), TextColumn("{task.description}"), BarColumn()]
    counts = [MofNCompleteColumn(), TextColumn("{task.fields[rate]}"), TimeElapsedColumn()]
    shown = Progress(*columns, *counts, console=_ERR, transient=True, disable=not _ERR.is_terminal)
    shown.add_task(what, total=total, rate="")
    return shown


@contextmanager
def working(what: str, *, after_s: float = 2.0) -> Iterator[None]:
    """Write ``what`` as a remark once the work in this context takes longer than two seconds."""
    timer = threading.Timer(after_s, lambda: note(f"[dim]{plain(what)} …[/dim]"))
    timer.daemon = True
    timer.start()
    try:
        yield
    finally:
        timer.cancel()


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
    return str(value)
