"""Issue 11, second tour: a command whose standard streams are closed, or are a terminal."""

from __future__ import annotations

import io
import os
import subprocess
import sys
from collections.abc import Callable
from typing import Any

import pytest

from headwater.cli import console, publish

Run = Callable[..., Any]


def _closed(address: str, redirection: str, *words: str) -> subprocess.CompletedProcess[str]:
    """Run a command as a shell does, with one of its streams closed."""
    return subprocess.run(
        ["sh", "-c", f'exec "$@" {redirection}', "sh", sys.executable, "-m", "headwater", *words],
        env={**os.environ, "HEADWATER_SERVER": address},
        stdin=subprocess.DEVNULL,
        capture_output=True,
        text=True,
        timeout=60,
        check=False,
    )


def test_publish_without_an_input_says_so(run: Run, address: str) -> None:
    """It was an internal error: "'NoneType' object has no attribute 'buffer'"."""
    run("stream", "create", "s")
    done = _closed(address, "<&-", "publish", "s", "--via", "flight")
    assert done.returncode == 2
    assert "standard input is closed" in done.stderr
    assert "Internal error" not in done.stderr


def test_a_closed_output_is_one_line(run: Run, address: str) -> None:
    """It was a trace of this command's own code."""
    run("stream", "create", "s")
    done = _closed(address, ">&-", "stream", "list")
    (line,) = done.stderr.splitlines()
    assert (done.returncode, line.startswith("headwater: standard output is closed")) == (2, True)


def test_closed_remarks_are_left_out(run: Run, address: str) -> None:
    """What the command answers is still written."""
    run("stream", "create", "s")
    done = _closed(address, "2>&-", "cut", "s")
    assert (done.returncode, done.stdout[:7]) == (0, "hwcut1.")


class _Terminal(io.BytesIO):
    """The lines that a person types."""

    def isatty(self) -> bool:
        """Return what a terminal does."""
        return True


@pytest.mark.parametrize(
    ("options", "hint"),
    [
        ([], "Type records, each on a line of its own; Ctrl-D ends."),
        (["--raw"], "Type one record; Ctrl-D ends it."),
    ],
)
def test_records_that_are_typed_are_asked_for(
    run: Run, monkeypatch: pytest.MonkeyPatch, options: list[str], hint: str
) -> None:
    """It drew a bar over the lines, and did not say what it waited for, nor how to end."""
    run("stream", "create", "s")
    shown: list[str] = []
    monkeypatch.setattr(publish, "_opened", lambda _file: _Terminal(b"one"))
    monkeypatch.setattr(console, "counting", lambda *_, **__: shown.append("a bar"))
    result = run("publish", "s", "--via", "flight", *options)
    assert result.exit_code == 0, result.output
    assert hint in result.stderr.splitlines()
    assert shown == []
