"""Write the reference of the command from the command itself: ``make docs`` runs it.

    python -m tools.command_page build/commands.md

The page is made from the tree of commands, so it has the text of ``headwater COMMAND --help``. Jobs
have argparse parsers, from which their part is made in the same way.
"""

from __future__ import annotations

import argparse
import importlib
import re
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import typer.main

from headwater.cli.job import JOBS
from headwater.cli.main import app


def page() -> str:
    """Return all commands, each with its arguments and options, as Markdown."""
    root = typer.main.get_command(app)
    return "\n".join([*_command(root, ["headwater"]), *_jobs()]) + "\n"


def _command(command: Any, path: list[str]) -> Iterator[str]:
    yield from [f"## {' '.join(path)}", "", _prose(command.help or ""), ""]
    rows = [row for one in command.params if not getattr(one, "hidden", False) for row in _row(one)]
    if rows:
        yield from ["| option | takes | meaning |", "|---|---|---|", *rows, ""]
    for name, below in sorted(getattr(command, "commands", {}).items()):
        if not below.hidden:
            yield from _command(below, [*path, name])


def _row(param: Any) -> Iterator[str]:
    if param.param_type_name == "argument":
        shown, takes = f"`{(param.metavar or param.name).upper()}`", "argument"
    else:
        shown = ", ".join(f"`{one}`" for one in [*param.opts, *param.secondary_opts])
        takes = "" if param.is_flag else param.metavar or param.bare_type()
    yield f"| {shown} | {_cell(takes)} | {_cell(getattr(param, 'help', None) or '')} |"


def _jobs() -> Iterator[str]:
    for name in JOBS:
        parser: argparse.ArgumentParser = importlib.import_module(f"spark_jobs.jobs.{name}").PARSER
        yield from [f"## {parser.prog}", "", _prose(parser.description or ""), ""]
        yield from ["| option | takes | meaning |", "|---|---|---|"]
        for action in parser._actions:  # noqa: SLF001  # argparse has no other way to list them
            shown = ", ".join(f"`{one}`" for one in action.option_strings) or f"`{action.dest}`"
            takes = "" if action.nargs == 0 else str(action.metavar or action.dest)
            yield f"| {shown} | {_cell(takes)} | {_cell(action.help or '')} |"
        yield ""


def _prose(text: str) -> str:
    """Return a help text with its examples as fenced code."""
    made: list[str] = []
    code = False
    for line in _plain(text.replace("\b", "")).strip().splitlines():
        example = line.startswith("  ")
        if example != code and (line.strip() or not code):
            made.append("```sh" if example else "```\n")
            code = example
        made.append(line[2:] if example else line)
    return "\n".join([*made, "```"] if code else made)


def _cell(text: str) -> str:
    return " ".join(_plain(text).split()).replace("|", "\\|").replace("<", "&lt;")


def _plain(text: str) -> str:
    """Return help text without Rich's markup, and with ``%%`` as it is shown."""
    text = re.sub(r"\[/?(?:bold|dim|italic|green|red|yellow|cyan)[^\]]*\]", "", text)
    return text.replace("%%", "%")


if __name__ == "__main__":
    target = Path(sys.argv[1])
    target.parent.mkdir(parents=True, exist_ok=True)
    target.write_text(page(), encoding="utf-8")
