"""Options of the command: text as it is, everything else converted as by typer."""

from __future__ import annotations

import subprocess
import sys

import pytest

_NO_SERVER = ("--server", "127.0.0.1:1")


def _command(*arguments: str) -> subprocess.CompletedProcess[bytes]:
    return subprocess.run(
        [sys.executable, "-m", "headwater", *arguments],
        capture_output=True,
        timeout=60,
        check=False,
    )


@pytest.mark.parametrize(
    ("arguments", "words"),
    [
        (("subscribe", "orders", "-n", "many", *_NO_SERVER), b"valid integer"),
        (("query", "--engine"), b"requires an argument"),
        (("query",), b"Missing argument"),
    ],
)
def test_wrong_values_are_usage_errors(arguments: tuple[str, ...], words: bytes) -> None:
    """A number that is none, an option without its value, no argument."""
    done = _command(*arguments)
    assert done.returncode == 2
    assert words in done.stderr


def test_what_is_no_utf8_is_a_usage_error() -> None:
    """The argument is named; half a character reaches no parser of SQL."""
    command = [sys.executable.encode(), b"-m", b"headwater", b"query", b"select '\xff'"]
    done = subprocess.run(command, capture_output=True, timeout=60, check=False)
    assert done.returncode == 2
    assert b"the text is not valid UTF-8" in done.stderr
