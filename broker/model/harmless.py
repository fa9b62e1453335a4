"""Texts from outside for a terminal, which would obey their control characters."""

from __future__ import annotations


def harmless(text: str, *, kept: str = "\n\t") -> str:
    """Return ``text`` with control characters as escapes, except those in ``kept``.

    A name or a value may come from anyone, and move the cursor, hide lines or answer for the user.
    """
    if text.isprintable():
        return text
    return "".join(one if one.isprintable() or one in kept else repr(one)[1:-1] for one in text)
