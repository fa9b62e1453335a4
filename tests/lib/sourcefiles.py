"""A Python file of ours as a syntax tree, of which many rules ask for the nodes of some class."""

from __future__ import annotations

import ast
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import TypeVar, cast

Node = TypeVar("Node", bound=ast.AST)


@dataclass(frozen=True, slots=True)
class SourceFile:
    """One Python file of ours, parsed; ``path`` is relative to the root, with slashes."""

    path: str
    text: str
    tree: ast.Module
    kinds: Mapping[type[ast.AST], Sequence[ast.AST]]  # every node below the tree, by its class

    @classmethod
    def of(cls, path: str, text: str) -> SourceFile:
        """Parse ``text`` as the content of ``path``."""
        tree = ast.parse(text, filename=path)
        return cls(path=path, text=text, tree=tree, kinds=by_kind(tree))

    def nodes(self, kind: type[Node]) -> Sequence[Node]:
        """Return every node of this very class, at any depth."""
        return cast("Sequence[Node]", self.kinds.get(kind, ()))


def by_kind(tree: ast.AST) -> dict[type[ast.AST], list[ast.AST]]:
    """Return the tree's nodes by class, in the order of ``ast.walk``.

    Walking through all files for each rule of tests/tidy cost three quarters of their CPU.
    """
    found: dict[type[ast.AST], list[ast.AST]] = {}
    todo = [tree]
    for node in todo:  # grows while it is read: breadth first, as ast.walk does it
        found.setdefault(type(node), []).append(node)
        for value in vars(node).values():
            if isinstance(value, ast.AST):
                todo.append(value)
            elif isinstance(value, list):
                todo += [one for one in value if isinstance(one, ast.AST)]
    return found
