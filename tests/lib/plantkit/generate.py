"""Small changes of the product's lines, drawn by a seed: a search for bugs that nobody thought of.

Drawn are comparisons, ``and`` and ``or``, ``min`` and ``max``, numbers, a dropped ``not``, and
statements that are left out, in the files that the lists name; the tests are those that the lists
name for the file. A change that survives is a hole in the tests, or it means the same: a person has
to look. What was a hole becomes a test and an entry of a list.
"""

from __future__ import annotations

import ast
import copy
import random
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Final

from plantkit.lines import PlantedLine
from projectfiles import ROOT

_COMPARED: Final[dict[type[ast.cmpop], type[ast.cmpop]]] = {
    ast.Lt: ast.LtE,
    ast.LtE: ast.Lt,
    ast.Gt: ast.GtE,
    ast.GtE: ast.Gt,
    ast.Eq: ast.NotEq,
    ast.NotEq: ast.Eq,
    ast.Is: ast.IsNot,
    ast.IsNot: ast.Is,
    ast.In: ast.NotIn,
    ast.NotIn: ast.In,
}
_SWAPPED: Final = {"min": "max", "max": "min", "any": "all", "all": "any"}
# What a change would not show in a test: words of errors, conditions that never fail, types.
_LEFT_ALONE: Final = (
    ast.JoinedStr,
    ast.Assert,
    ast.Raise,
    ast.Import,
    ast.ImportFrom,
    ast.AnnAssign,
    ast.arg,
    ast.alias,
)


@dataclass(frozen=True, slots=True)
class Change:
    """A part of a text, by its lines and columns in bytes, and what comes in its place."""

    line: int
    start: tuple[int, int]
    end: tuple[int, int]
    new: str

    def applied(self, text: str) -> str:
        """Return the text with this change."""
        lines = text.encode().splitlines(keepends=True)
        starts = [0]
        for one in lines:
            starts.append(starts[-1] + len(one))
        whole = text.encode()
        first = starts[self.start[0] - 1] + self.start[1]
        last = starts[self.end[0] - 1] + self.end[1]
        return (whole[:first] + self.new.encode() + whole[last:]).decode()


def changes(text: str) -> tuple[Change, ...]:
    """Return every change that can be drawn in a module's text, in the order of the text."""
    found = [
        Change(node.lineno, (node.lineno, node.col_offset), _end(node), new)
        for node in _walk(ast.parse(text))
        for new in _news(node)
    ]
    return tuple(sorted(found, key=lambda one: (one.start, one.end, one.new)))


def drawn(
    bugs: Sequence[PlantedLine], count: int, *, seed: int, root: Path = ROOT
) -> list[PlantedLine]:
    """Draw ``count`` different changes in the files that the bugs are in."""
    tests: dict[str, dict[str, None]] = {}
    for one in bugs:
        tests.setdefault(one.file, {}).update(dict.fromkeys(one.tests))
    known = [
        (file, change)
        for file in sorted(tests)
        for change in changes((root / file).read_text(encoding="utf-8"))
    ]
    chosen = random.Random(seed).sample(known, min(count, len(known)))
    return [_bug(file, change, tuple(tests[file]), root) for file, change in chosen]


def _bug(file: str, change: Change, tests: tuple[str, ...], root: Path) -> PlantedLine:
    text = (root / file).read_text(encoding="utf-8")
    was = text.splitlines()[change.line - 1].strip()
    return PlantedLine(
        list_name="drawn",
        name=f"line {change.line}, column {change.start[1]}: {change.new}",
        file=file,
        old=text,  # a drawn change is known by its place, so its text is the whole file
        new=change.applied(text),
        breaks=was,
        tests=tests,
    )


def _walk(node: ast.AST) -> Iterator[ast.expr | ast.stmt]:
    """Yield expressions and statements that may be changed."""
    for child in ast.iter_child_nodes(node):
        if isinstance(child, _LEFT_ALONE):
            continue
        if isinstance(node, ast.FunctionDef) and (
            child is node.returns or child in node.decorator_list
        ):
            continue
        if isinstance(node, ast.ClassDef) and not isinstance(child, ast.stmt):
            continue
        if isinstance(child, ast.expr | ast.stmt):
            yield child
        yield from _walk(child)


def _end(node: ast.expr | ast.stmt) -> tuple[int, int]:
    assert node.end_lineno is not None, "a parsed node has its end"
    assert node.end_col_offset is not None, "a parsed node has its end"
    return node.end_lineno, node.end_col_offset


def _news(node: ast.expr | ast.stmt) -> Iterator[str]:
    match node:
        case ast.Compare(ops=[op]) if type(op) in _COMPARED:
            changed = copy.deepcopy(node)
            changed.ops = [_COMPARED[type(op)]()]
            yield f"({ast.unparse(changed)})"
        case ast.BoolOp(op):
            changed_too = copy.deepcopy(node)
            changed_too.op = ast.Or() if isinstance(op, ast.And) else ast.And()
            yield f"({ast.unparse(changed_too)})"
        case ast.UnaryOp(op=ast.Not(), operand=operand):
            yield f"({ast.unparse(operand)})"
        case ast.Name(id=name) if name in _SWAPPED:
            yield _SWAPPED[name]
        case ast.Constant(value=int() as number) if not isinstance(number, bool):
            yield str(number + 1)
        case ast.Constant(value=bool() as truth):
            yield str(not truth)
        case ast.Expr(value=ast.Call() | ast.YieldFrom() | ast.Yield()) | ast.AugAssign():
            yield "pass"
        case ast.Assign(targets=[ast.Attribute()]):
            yield "pass"
        case _:
            return
