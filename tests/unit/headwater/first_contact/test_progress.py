"""Issue 11, item 11: what takes over two seconds says so, once, on stderr."""

from __future__ import annotations

import threading
from collections.abc import Callable
from typing import Any

import pytest

from headwater.cli import console


@pytest.mark.parametrize("shown", ["nothing", "a line", "a more exact remark"])
def test_the_remark_comes_into_a_silence_only(
    shown: str, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    """Other output, or a more exact message to come, makes the remark needless."""
    said: list[str] = []
    due: list[Callable[[], Any]] = []

    class Held:
        """A timer whose time comes when the test says so."""

        def __init__(self, _: float, function: Callable[[], Any]) -> None:
            self._function = function

        def start(self) -> None:
            due.append(self._function)

        def cancel(self) -> None:
            """Do nothing: the test has called it by then."""

    monkeypatch.setattr(threading, "Timer", Held)
    monkeypatch.setattr(console, "note", said.append)
    with console.waiting("the server"):
        (remark,) = due
        if shown == "a line":
            console.line("row")
        if shown == "a more exact remark":
            with console.working("shipping"):
                remark()
        else:
            remark()
    assert said == (["[dim]the server …[/dim]"] if shown == "nothing" else [])
    assert capsys.readouterr().out == ("row\n" if shown == "a line" else "")


class _AtOnce:
    """A timer whose time has come when it is started."""

    def __init__(self, _: float, function: Callable[[], Any]) -> None:
        self._function = function

    def start(self) -> None:
        self._function()

    def cancel(self) -> None:
        """Do nothing: the timer has run."""


@pytest.mark.parametrize("rows_shown", [False, True])
def test_counted_work_is_one_remark_where_there_is_no_terminal(
    rows_shown: bool, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    """A log of a script gets a line, not a display that is drawn again and again."""
    monkeypatch.setattr(threading, "Timer", _AtOnce)
    with console.counting("reading 7 records", total=7, rows_shown=rows_shown) as report:
        for done in range(8):
            report(done, "1/s")
    assert capsys.readouterr().err == "reading 7 records …\n"
