"""What is true of this repository, for the claims of its pages: see ``docclaims``."""

from __future__ import annotations

import argparse
import ast
import builtins
import dataclasses
import importlib
import re
from collections.abc import Iterator
from functools import cache
from pathlib import PurePosixPath
from typing import Any, Final, get_type_hints

import typer.main

from broker.config import BrokerConfig
from docclaims import Facts, Page, anchors_of
from headwater.cli.job import JOBS
from headwater.cli.main import app
from projectfiles import ROOMS, ROOT, project_files

# Options of other people's programs that docs speak of.
FOREIGN_OPTIONS: Final = frozenset(
    {
        "--archives", "--conf", "--descriptor_set_out", "--follow", "--help", "--include_imports",
        "--jars", "--master", "--packages", "--py-files", "--upgrade",
    }
)  # fmt: skip
# Errors of libraries; ours and Python's are looked up.
FOREIGN_ERRORS: Final = frozenset({"ClientError", "ArrowInvalidError"})


@cache
def repository_facts() -> Facts:
    """Ask the tree, the Makefile, the parsers and the sources."""
    makefile = (ROOT / "Makefile").read_text("utf-8")
    sources = {path: _text(path) for path in project_files() if path.endswith(".py")}
    commands = _commands()
    everything = "\n".join(sources.values())
    return Facts(
        paths=_paths(),
        make_targets=frozenset(re.findall(r"^([a-z][a-z-]*):", makefile, re.MULTILINE)),
        make_variables=frozenset(re.findall(r"^([A-Z_]+) \??:?=", makefile, re.MULTILINE))
        | frozenset(re.findall(r"\$\(([A-Z_]+)\)", makefile)),
        commands=commands,
        options=frozenset().union(
            *commands.values(),
            re.findall(r"""["'](--[a-z][\w-]+)["'],""", everything),
            FOREIGN_OPTIONS,
        ),
        keys=_keys(),
        environment=_environment(everything),
        errors=_errors(everything),
        tests=frozenset(re.findall(r"^ *(?:async )?def (test_\w+)\(", everything, re.MULTILINE)),
        names=_names(sources) | _spoken_names(everything),
        anchors={page.path: anchors_of(page.text) for page in pages()},
    )


@cache
def pages() -> tuple[Page, ...]:
    """Return every page of the repository."""
    return tuple(
        Page(path=path, text=_text(path)) for path in project_files() if path.endswith(".md")
    )


def _text(path: str) -> str:
    return (ROOT / path).read_text("utf-8")


def _paths() -> frozenset[str]:
    files = project_files()
    folders = {str(folder) for path in files for folder in PurePosixPath(path).parents}
    return frozenset(files) | frozenset(folders)


def _commands() -> dict[str, frozenset[str]]:
    found: dict[str, frozenset[str]] = {}

    def walk(command: Any, path: str) -> None:
        options = {one for param in command.params for one in (*param.opts, *param.secondary_opts)}
        found[path] = frozenset(options | {"--help"})
        for name, below in getattr(command, "commands", {}).items():
            walk(below, f"{path} {name}".strip())

    walk(typer.main.get_command(app), "")
    found["job"] |= {"--help"}
    for name in JOBS:
        parser: argparse.ArgumentParser = importlib.import_module(f"spark_jobs.jobs.{name}").PARSER
        found[f"job {name}"] = frozenset(parser._option_string_actions)
    return found


def _keys() -> dict[str, frozenset[str]]:
    return {
        section: frozenset(one.name for one in dataclasses.fields(kind))
        for section, kind in get_type_hints(BrokerConfig).items()
    }


def _environment(everything: str) -> frozenset[str]:
    keys = {
        f"HEADWATER_{section}_{key}".upper() for section, known in _keys().items() for key in known
    }
    scripts = _text("Makefile") + _text(".ci/run")
    return frozenset(re.findall(r"HEADWATER_[A-Z0-9_]+", everything + scripts)) | keys


def _errors(everything: str) -> frozenset[str]:
    ours = re.findall(r"^class (\w+Error)\b", everything, re.MULTILINE)
    python = [name for name in vars(builtins) if name.endswith("Error")]
    return frozenset([*ours, *python]) | FOREIGN_ERRORS


def _names(sources: dict[str, str]) -> frozenset[str]:
    """List the dotted names of the rooms: modules, what they define, and its members."""
    found: set[str] = set()
    for path, text in sources.items():
        if path.split("/")[0] not in ROOMS:
            continue
        module = path.removesuffix(".py").removesuffix("/__init__").replace("/", ".")
        found.add(module)
        for node in _outside_expressions(ast.parse(text)):
            if isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef | ast.ClassDef):
                found.add(f"{module}.{node.name}")
                if isinstance(node, ast.ClassDef):
                    found |= {f"{module}.{node.name}.{name}" for name in _members(node)}
            elif isinstance(node, ast.ImportFrom):
                found |= {f"{module}.{one.asname or one.name}" for one in node.names}
            elif isinstance(node, ast.Assign | ast.AnnAssign):
                targets = node.targets if isinstance(node, ast.Assign) else [node.target]
                found |= {f"{module}.{one.id}" for one in targets if isinstance(one, ast.Name)}
    return frozenset(found)


def _outside_expressions(tree: ast.AST) -> Iterator[ast.AST]:
    """Yield a module and its statements; no expression in them defines a name."""
    todo = [tree]
    while todo:
        node = todo.pop()
        yield node
        todo += [one for one in ast.iter_child_nodes(node) if not isinstance(one, ast.expr)]


def _spoken_names(everything: str) -> frozenset[str]:
    """List dotted names that are no Python: properties of tables, packages of proto/."""
    texts = everything + "".join(_text(path) for path in project_files() if path.endswith(".proto"))
    return frozenset(re.findall(r"""(?:["']|package )(headwater\.\w+)["';]""", texts))


def _members(node: ast.ClassDef) -> set[str]:
    names = {one.name for one in node.body if isinstance(one, ast.FunctionDef)}
    fields = (one.target for one in node.body if isinstance(one, ast.AnnAssign))
    return names | {one.id for one in fields if isinstance(one, ast.Name)}
