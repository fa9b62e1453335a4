"""Griffe's extension of the site: docstrings are bridged before they are parsed.

A field of a dataclass is described by the comment behind it, which the site shows as its docstring.
"""

from __future__ import annotations

from typing import Any

import griffe

from tools.site_text import comment_behind, for_docstring_parser


class PlainDocstrings(griffe.Extension):  # type: ignore[misc]  # griffe is in .docs-venv only
    """Hands every docstring through :func:`for_docstring_parser`."""

    def on_instance(self, *, obj: Any, **_others: Any) -> None:
        """Change the docstring of what was just read from a source file."""
        if obj.docstring is not None:
            obj.docstring.value = for_docstring_parser(obj.docstring.value)

    def on_attribute_instance(self, *, attr: Any, **_others: Any) -> None:
        """Give a field the comment that stands behind it."""
        if attr.docstring is None and attr.parent.is_class and attr.lines:
            comment = comment_behind(attr.lines[-1])
            if comment:
                attr.docstring = griffe.Docstring(comment, parent=attr, lineno=attr.lineno)
