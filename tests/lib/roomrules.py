"""Which rooms are crowded without a reason, which modules import in a circle, who imports whom.

Pure: every function takes the project's files as a mapping from path to text, so that a test can
hand it a tree that breaks the rule. ``tests/tidy/test_rooms.py`` has the tables and runs the rules.

Imports are read from the syntax tree: also those inside a function, and those in an ``except``. An
import below ``if TYPE_CHECKING`` does not count, because it never runs.
"""

from __future__ import annotations

import ast
import re
from collections.abc import Iterator, Mapping
from fnmatch import fnmatchcase
from functools import cache
from pathlib import PurePosixPath
from typing import Final

MODULES_MAX: Final = 12
LINES_MAX: Final = 500
METHODS_MAX: Final = 25

# The one form in which a reason is written: in a folder's README.md, a module's docstring, or a
# class's docstring. What follows has to be a sentence, not a word.
REASON: Final = re.compile(
    r"The\s+(folder|file|class)\s+is\s+not\s+split(?::|,?\s+because)\s+\S.{20,}", re.DOTALL
)

# Folders from which modules are imported without the folder's name.
SOURCE_ROOTS: Final = ("tests/lib/", "airflow_dags/")

Files = Mapping[str, str]


# ---------------------------------------------------------------------- sizes and their reasons


def crowded(files: Files, *, folders: bool = True) -> Iterator[str]:
    """Report each large folder, file and class without a reason, and each reason without need."""
    for folder, count in sorted(_modules_of(files).items()) if folders else ():
        readme = files.get(f"{folder}/README.md", "")
        yield from _judge("folder", folder, "modules", count, MODULES_MAX, readme)
    for path, text in files.items():
        if not path.endswith(".py"):
            continue
        tree = ast.parse(text, filename=path)
        lines_count = len(text.splitlines())
        where = ast.get_docstring(tree) or ""
        yield from _judge("file", path, "lines", lines_count, LINES_MAX, where)
        for node in _statements(tree):
            if isinstance(node, ast.ClassDef):
                where = ast.get_docstring(node) or ""
                name = f"{path}:{node.name}"
                yield from _judge("class", name, "methods", _methods(node), METHODS_MAX, where)


def _judge(kind: str, name: str, unit: str, count: int, count_max: int, text: str) -> Iterator[str]:
    found = {match.group(1) for match in REASON.finditer(text)}
    if count > count_max and kind not in found:
        yield (
            f"{name} has {count} {unit}, more than {count_max}: split it, or write why it reads "
            f'better whole ("The {kind} is not split: ...")'
        )
    if count <= count_max and kind in found:
        yield f"{name} has {count} {unit}: the reason for not splitting it is not needed"


def _modules_of(files: Files) -> dict[str, int]:
    counts: dict[str, int] = {}
    for path in files:
        folder, _, name = path.rpartition("/")
        if name.endswith(".py"):
            counts[folder] = counts.get(folder, 0) + (name != "__init__.py")
    return counts


def _methods(node: ast.ClassDef) -> int:
    """Count the names of a class's methods: a property with its setter is one."""
    return len(
        {one.name for one in node.body if isinstance(one, ast.FunctionDef | ast.AsyncFunctionDef)}
    )


# ---------------------------------------------------------------------- imports


def module_name(path: str) -> str:
    """Return the name under which a file is imported."""
    for root in SOURCE_ROOTS:
        path = path.removeprefix(root)
    return path.removesuffix(".py").removesuffix("/__init__").replace("/", ".")


def imports(files: Files) -> dict[str, set[str]]:
    """Return, for each Python file, the files of the project that it imports when it runs."""
    paths = {module_name(path): path for path in files if path.endswith(".py")}
    graph: dict[str, set[str]] = {}
    for path in paths.values():
        found = {_resolved(name, paths) for name in _names(path, files[path])}
        graph[path] = {one for one in found if one is not None and one != path}
    return graph


@cache  # three rules ask for the imports of the whole tree
def _names(path: str, text: str) -> frozenset[str]:
    return frozenset(_imported(ast.parse(text, filename=path)))


def _imported(tree: ast.AST) -> Iterator[str]:
    """Yield the dotted names that are imported below a node, but not for checkers only."""
    for node in _blocks(tree):
        if isinstance(node, ast.Import):
            yield from (alias.name for alias in node.names)
        elif isinstance(node, ast.ImportFrom) and node.module:
            yield from (f"{node.module}.{alias.name}" for alias in node.names)
        elif isinstance(node, ast.If) and _is_for_checkers(node):
            for other in node.orelse:
                yield from _imported(ast.Module(body=[other], type_ignores=[]))
        else:
            yield from _imported(node)


def _statements(tree: ast.AST) -> Iterator[ast.AST]:
    """Yield all statements below a node; a class or an import is never within an expression."""
    for node in _blocks(tree):
        yield node
        yield from _statements(node)


def _blocks(node: ast.AST) -> Iterator[ast.AST]:
    """Yield the statements, handlers and cases directly below a node."""
    for name in ("body", "handlers", "orelse", "finalbody", "cases"):
        found = getattr(node, name, ())
        if isinstance(found, list):  # that of a lambda or a conditional is an expression
            yield from found


def _is_for_checkers(node: ast.If) -> bool:
    return ast.unparse(node.test) in {"TYPE_CHECKING", "typing.TYPE_CHECKING"}


def _resolved(name: str, paths: Mapping[str, str]) -> str | None:
    """Return the file of the longest known module at the beginning of a dotted name."""
    while name:
        if name in paths:
            return paths[name]
        name = name.rpartition(".")[0]
    return None


def circles(files: Files) -> Iterator[str]:
    """Report each set of modules that import each other, however long the way around is."""
    graph = imports(files)
    left = dict(graph)
    while left:  # takes away what imports nothing that is left, and then what nobody left imports
        ends = {path for path, found in left.items() if not found & left.keys()}
        ends |= left.keys() - {one for found in left.values() for one in found}
        if not ends:
            break
        left = {path: found for path, found in left.items() if path not in ends}
    seen: set[str] = set()
    for path in sorted(left):
        if path not in seen:
            way = _way_back(path, left)
            seen.update(way)
            if way:
                yield " → ".join([*way, path])


def _way_back(start: str, graph: Mapping[str, set[str]]) -> list[str]:
    """Return the shortest way from a module to itself; empty if there is none."""
    ways = [[start]]
    seen: set[str] = set()
    for way in ways:  # grows while it is read: breadth first
        for found in sorted(graph[way[-1]] & graph.keys()):
            if found == start:
                return way
            if found not in seen:
                seen.add(found)
                ways.append([*way, found])
    return []


# ---------------------------------------------------------------------- places


def place_of(path: str, places: Mapping[str, tuple[str, ...]]) -> str | None:
    """Return the place that a file belongs to: the longest one that its path begins with."""
    parents = [path, *map(str, PurePosixPath(path).parents)]
    return next((one for one in parents if one in places), None)


def misplaced(files: Files, places: Mapping[str, tuple[str, ...]]) -> Iterator[str]:
    """Report files without a place, and imports that the place of a file does not allow.

    ``places`` says for each folder or file which paths it may import; a ``*`` also matches slashes.
    Files of one place may import each other.
    """
    for path, found in imports(files).items():
        place = place_of(path, places)
        if place is None:
            yield f"{path} has no place: say in the table who may import whom"
            continue
        for other in sorted(found):
            allowed = place_of(other, places) == place or any(
                fnmatchcase(other, pattern) for pattern in places[place]
            )
            if not allowed:
                yield f"{path} imports {other}, which {place} may not"
