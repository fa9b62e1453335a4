"""What others wrote into records does not command the terminal of who looks at them."""

from __future__ import annotations

import io
import sys

import pytest

from broker.model.harmless import harmless
from headwater.cli import console

EVIL = "name\x1b[2J\x1b]0;title\x07 \x9b31m \u202etxt \x7f"


class _Terminal(io.StringIO):
    def isatty(self) -> bool:
        """Say that people look at it."""
        return True


def test_a_terminal_gets_no_control_characters(monkeypatch: pytest.MonkeyPatch) -> None:
    """They are shown as escapes; a pipe gets every character as it is."""
    terminal, pipe = _Terminal(), io.StringIO()
    for sink in (terminal, pipe):
        monkeypatch.setattr(sys, "stdout", sink)
        console.line(EVIL)
    assert terminal.getvalue().rstrip("\n").isprintable()
    assert "\\x1b[2J" in terminal.getvalue()
    assert pipe.getvalue() == EVIL + "\n"


def test_names_and_values_in_messages_have_none_either() -> None:
    """Rich markup is escaped too, in the same place."""
    assert console.plain(EVIL).isprintable()
    assert console.plain("[bold]x") == "\\[bold]x"
    assert harmless("two\nlines\tand a tab") == "two\nlines\tand a tab"
