"""Rewrites pages and docstrings for the tools that build the docs site.

Pages are written in GitHub's dialect of Markdown, docstrings for readers of the source. The site's
tools differ in three points, which only this module handles: Python-Markdown needs list items
indented by four and a blank line before a list; a link to a folder has to name the folder's README;
the docstring parser needs one exception per line.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Iterator
from typing import Final

_TAB: Final = 4
_FENCE: Final = re.compile(r"^(`{3,}|~{3,})")
_ITEM: Final = re.compile(r"^([-*+]|\d{1,9}[.)])( +)(?=\S)")
_FOLDER_LINK: Final = re.compile(r"(?<=\]\()(?![a-z]+:|#)([^)#\s]+)(?=\)|#)")
_ROLE: Final = re.compile(r":(?:attr|class|data|exc|func|meth|mod):`~?([^`]+)`")
_RAISES: Final = re.compile(r"^( *)Raises\b[^:\n]*:$")
_NAMES: Final = re.compile(r"^((?:[A-Z]\w+, )*[A-Z]\w+)(?:: (.*)|( \([^)]*\))?\.?)$")

_COMMENT: Final = re.compile(r"  # (?!noqa|type:)(.*\w.*?)\.?$")


def for_python_markdown(text: str) -> str:
    """Return a page of GitHub's dialect as one that Python-Markdown reads the same way."""
    return "\n".join(_reindented(text.split("\n")))


def _reindented(lines: list[str]) -> Iterator[str]:
    contents: list[int] = []  # the column at which each open list item's content begins
    fence = ""
    paragraph = False  # the line before is text, so this line may continue it
    for line in lines:
        stripped = line.lstrip(" ")
        indent = len(line) - len(stripped)
        if not stripped:
            paragraph = False
            yield ""
            continue
        if fence:
            known = contents[-1] if contents else 0
            yield " " * (_TAB * len(contents)) + line[min(known, indent) :]
            fence = "" if stripped.rstrip() == fence else fence
            continue
        if not contents and not paragraph and indent >= _TAB:  # code
            yield line
            continue
        in_list = bool(contents)
        while contents and indent < contents[-1] and not _continues(paragraph, stripped):
            contents.pop()
        opened = _FENCE.match(stripped)
        fence = opened[1] if opened else ""
        item = _ITEM.match(stripped)
        if item and paragraph and not in_list:
            yield ""
        extra = 0 if item or not contents else max(0, indent - contents[-1])
        yield " " * (_TAB * len(contents) + extra) + stripped
        if item:
            contents.append(indent + len(item[0]))
        paragraph = not (opened or stripped.startswith(("#", "|", "<", ">")))


def _continues(paragraph: bool, stripped: str) -> bool:
    """Tell whether a line that begins left of a list item's text still belongs to the item."""
    return paragraph and not _ITEM.match(stripped)


def links_to_pages(text: str, page_of: Callable[[str], str | None]) -> str:
    """Replace the target of each link to a folder; ``page_of`` returns the page, else None."""
    return _FOLDER_LINK.sub(lambda found: page_of(found[1]) or found[1], text)


def for_docstring_parser(text: str) -> str:
    """Return a docstring with plain code instead of Sphinx roles, and one exception a line."""
    made: list[str] = []
    indent: int | None = None  # of the open "Raises:", if one is
    for line in _ROLE.sub(r"`\1`", text).split("\n"):
        if heading := _RAISES.match(line):
            indent = len(heading[1])
            made.append(" " * indent + "Raises:")
            continue
        depth = len(line) - len(line.lstrip(" "))
        if indent is not None and line.strip() and depth <= indent:
            indent = None
        names = (
            _NAMES.match(line.strip()) if indent is not None and depth == indent + _TAB else None
        )
        if names is None:
            made.append(line)
            continue
        reason = names[2] or "as its name says."
        made.extend(f"{' ' * depth}{name}: {reason}" for name in names[1].split(", "))
    return "\n".join(made)


def comment_behind(line: str) -> str:
    """Return the comment at the end of a line of code as a sentence; empty if there is none."""
    found = _COMMENT.search(line)
    return f"{found[1][0].upper()}{found[1][1:]}." if found else ""
