"""An extension of Griffe for the docs site: rewrites docstrings before they are parsed.

The comment at the end of a dataclass field's line becomes the field's docstring.
"""

from __future__ import annotations

from typing import Any

import griffe

from tools.site_text import comment_behind, for_docstring_parser


class PlainDocstrings(griffe.Extension):  # type: ignore[misc]  # griffe is in .docs-venv only
    """Applies :func:`for_docstring_parser` to every docstring."""

    def on_instance(self, *, obj: Any, **_others: Any) -> None:
        """Rewrite the docstring of an object that was just read from a source file."""
        if obj.docstring is not None:
            obj.docstring.value = for_docstring_parser(obj.docstring.value)

    def on_attribute_instance(self, *, attr: Any, **_others: Any) -> None:
        """Use the comment at the end of a field's line as the field's docstring."""
        if attr.docstring is None and attr.parent.is_class and attr.lines:
            comment = comment_behind(attr.lines[-1])
            if comment:
                attr.docstring = griffe.Docstring(comment, parent=attr, lineno=attr.lineno)
