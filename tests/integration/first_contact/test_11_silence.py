"""Issue 11, item 11: after two seconds a command says on stderr what it waits for."""

from __future__ import annotations

import shlex
import subprocess
import sys

import pytest

from crashkit.silent_server import silent_server

pytestmark = [pytest.mark.integration, pytest.mark.slow]

COMMANDS = (
    "stream list",
    "tier flush s",
    "cluster status",
    "subscribe s",
    "read s",
    "verify s",
    "query 'select count(*) from s'",
)
MORE_EXACT = {
    "tier flush s": "shipping to the table",
    "query 'select count(*) from s'": "reading and computing",
}


def test_every_kind_of_command_says_whom_it_waits_for() -> None:
    """The server takes connections and never answers: the command writes one line about it."""
    with silent_server(greets=True) as address:
        running = [
            subprocess.Popen(
                [sys.executable, "-m", "headwater", *shlex.split(words), "--server", address],
                stdout=subprocess.DEVNULL,
                stderr=subprocess.PIPE,
                text=True,
            )
            for words in COMMANDS
        ]
        try:
            for words, process in zip(COMMANDS, running, strict=True):
                assert process.stderr is not None
                first = process.stderr.readline()
                expected = MORE_EXACT.get(words, f"waiting for {address}")
                assert first == f"{expected} …\n", words
        finally:
            for process in running:
                process.kill()
                process.communicate()
