"""Runs a program of another language that asks for brokers to be killed and started."""

from __future__ import annotations

import subprocess
import threading
from collections.abc import Callable, Sequence
from typing import Final

_TIMEOUT_S: Final = 150.0


def refuse(verb: str, broker: str) -> None:
    """Refuse to kill the only broker."""
    raise AssertionError(f"a scenario of one broker asked for {verb} {broker}")


def play(command: Sequence[str], do: Callable[[str, str], None] = refuse) -> None:
    """Run a program; do what its lines "!VERB BROKER" ask for, and answer each with a line.

    The program has to end with 0, and "ok" has to be its last line.
    """
    with subprocess.Popen(
        command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True
    ) as process:
        assert process.stdin is not None
        assert process.stdout is not None
        late = threading.Timer(_TIMEOUT_S, process.kill)
        late.start()
        said = []
        try:
            for line in process.stdout:
                said.append(line.rstrip())
                if line.startswith("!"):
                    verb, _, broker = line[1:].strip().partition(" ")
                    do(verb, broker)
                    process.stdin.write("done\n")
                    process.stdin.flush()
        except BaseException:
            process.kill()
            raise
        finally:
            late.cancel()
    assert process.returncode == 0, "\n".join(said)
    assert said[-1] == "ok", "\n".join(said)
