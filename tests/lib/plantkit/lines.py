"""Bugs in lines of the product, as data: what changes, which promise breaks, who notices.

A list is a file of ``tests/plants/lists``. A bug replaces a text that the product's file has
exactly once, so an edit of the product that changes the text makes the bug an error with a name.
"""

from __future__ import annotations

import ast
import tomllib
from dataclasses import dataclass
from functools import lru_cache
from pathlib import Path
from typing import Any, Final

from projectfiles import ROOT

LISTS: Final = ROOT / "tests" / "plants" / "lists"
TESTS: Final = ("tests/unit", "tests/property", "tests/contract", "tests/golden", "tests/sim")
_KEYS: Final = frozenset({"name", "file", "old", "new", "breaks", "tests"})


class PlantListError(Exception):
    """An entry of a list does not fit the tree: its text, its file or its tests were changed."""


@dataclass(frozen=True, slots=True, kw_only=True)
class PlantedLine:
    """One bug: ``old`` in ``file`` becomes ``new``, and one of ``tests`` has to fail."""

    list_name: str
    name: str
    file: str  # relative to the root
    old: str
    new: str
    breaks: str  # the promise, as a sentence
    tests: tuple[str, ...]  # ends of test files' paths, perhaps with a test: "core/test_cuts.py"

    @property
    def title(self) -> str:
        """What ``--only`` is compared with."""
        return f"{self.list_name}: {self.name} ({self.file})"

    @property
    def module(self) -> str:
        """The name by which Python imports the file."""
        return self.file.removesuffix(".py").removesuffix("/__init__").replace("/", ".")


def lists(folder: Path = LISTS) -> tuple[PlantedLine, ...]:
    """Read every list; raises PlantListError for an entry that is not complete."""
    found: list[PlantedLine] = []
    for path in sorted(folder.glob("*.toml")):
        entries = tomllib.loads(path.read_text(encoding="utf-8")).get("bug", ())
        found.extend(_entry(path.stem, entry) for entry in entries)
    names = [one.name for one in found]
    twice = sorted({name for name in names if names.count(name) > 1})
    if twice:
        raise PlantListError(f"planted bugs need different names; these come twice: {twice}")
    return tuple(found)


def _entry(list_name: str, entry: dict[str, Any]) -> PlantedLine:
    keys = entry.keys()
    if keys != _KEYS:
        raise PlantListError(
            f"{list_name}: {entry.get('name')!r} lacks {sorted(_KEYS - keys)} and has the unknown "
            f"{sorted(keys - _KEYS)}"
        )
    return PlantedLine(list_name=list_name, **{**entry, "tests": tuple(entry["tests"])})


def planted_text(bug: PlantedLine, root: Path = ROOT) -> str:
    """Return the file's text with the bug.

    Raises:
        PlantListError: the old text is not there exactly once, or the new one means the same or is
            no Python.
    """
    path = root / bug.file
    if not path.is_file():
        raise PlantListError(f"{bug.title}: there is no such file; was it moved?")
    text = path.read_text(encoding="utf-8")
    count = text.count(bug.old)
    if count != 1:
        raise PlantListError(
            f"{bug.title}: the old text is there {count} times, not once; copy it from the file"
        )
    try:
        spot = _statements(text, bug.old)
        was, now = _meaning(spot), _meaning(spot.replace(bug.old, bug.new))
    except SyntaxError as cause:
        raise PlantListError(f"{bug.title}: with the new text the file is no Python") from cause
    if was == now:
        raise PlantListError(f"{bug.title}: the new text means the same as the old")
    return text.replace(bug.old, bug.new)


def _statements(text: str, old: str) -> str:
    """Return the statements that a text is in, as a program: those of a class, or of the module.

    Only these are parsed again with a bug: to parse whole files took seconds for all lists. A text
    that is not within statements, as a comment between two functions, is looked for in the whole.
    """
    first = text.count("\n", 0, text.index(old)) + 1
    last = first + old.count("\n")
    lines = text.split("\n")
    found, body = text, _parsed(text).body
    while True:
        body = [one for one in body if one.lineno <= last and (one.end_lineno or last) >= first]
        if not body:
            return found
        decorators = [mark.lineno for one in body for mark in getattr(one, "decorator_list", ())]
        spot = "\n".join(lines[min([body[0].lineno, *decorators]) - 1 : body[-1].end_lineno])
        if old not in spot:
            return found
        found = f"class _:\n{spot}" if body[0].col_offset else spot
        if len(body) > 1 or not isinstance(body[0], ast.ClassDef):
            return found
        body = body[0].body


def _meaning(program: str) -> str:
    return ast.dump(ast.parse(program))


@lru_cache(maxsize=4)
def _parsed(text: str) -> ast.Module:
    return ast.parse(text)


def known_tests(root: Path = ROOT) -> tuple[str, ...]:
    """Return every test file that a bug may name, relative to the root."""
    return tuple(
        path.relative_to(root).as_posix()
        for folder in TESTS
        for path in sorted((root / folder).rglob("test_*.py"))
    )


def files_of(
    tests: tuple[str, ...], root: Path = ROOT, *, known: tuple[str, ...] | None = None
) -> tuple[str, ...]:
    """Return the test files with these ends of paths, wherever below ``TESTS`` they are.

    A name of one test may follow, after two colons. ``known`` is what :func:`known_tests` returned,
    for who asks often.

    Raises:
        PlantListError: an end fits no file, or more than one.
    """
    known = known_tests(root) if known is None else known
    files: list[str] = []
    for test in tests:
        end, colons, name = test.partition("::")
        fitting = [path for path in known if f"/{path}".endswith(f"/{end}")]
        if len(fitting) != 1:
            raise PlantListError(f"{end!r} has to be the end of one test file's path: {fitting}")
        files.append(f"{fitting[0]}{colons}{name}")
    return tuple(files)
