"""Builds and runs programs of another language, which may ask for brokers to be killed."""

from __future__ import annotations

import os
import shutil
import subprocess
import threading
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Final

import pytest

from projectfiles import ROOT

_GO_SOURCES: Final = ROOT / "tests/peers/go"
_TIMEOUT_S: Final = 240.0


def build_go(target: Path) -> Path:
    """Build the Go program; skip where Go is not installed or its modules are out of reach."""
    go = shutil.which("go", path=f"{os.environ['PATH']}:/usr/local/go/bin")
    if go is None:
        pytest.skip("Go is not installed: a fresh machine needs Python and Java only")
    built = subprocess.run(
        [go, "build", "-o", str(target), "."],
        cwd=_GO_SOURCES,
        env={**os.environ, "GOFLAGS": "-buildvcs=false -mod=readonly"},
        capture_output=True,
        text=True,
        timeout=600,
        check=False,
    )
    if built.returncode and "dial tcp" in built.stderr:
        pytest.skip(f"Go's modules cannot be fetched: {built.stderr[-200:]}")
    assert built.returncode == 0, built.stderr
    return target


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
