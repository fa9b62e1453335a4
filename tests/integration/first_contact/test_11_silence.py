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
                waiting = f"waiting for {address} …\n"
                said = process.stderr.readline()
                if words in MORE_EXACT:
                    # On a busy machine two seconds go by before it knows what it waits for.
                    said = process.stderr.readline() if said == waiting else said
                    assert said == f"{MORE_EXACT[words]} …\n", words
                else:
                    assert said == waiting, words
        finally:
            for process in running:
                process.kill()
                process.communicate()
