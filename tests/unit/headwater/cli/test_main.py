"""The top of the command line: help with examples, readable errors, a light start."""

from __future__ import annotations

import subprocess
import sys

import pytest
from typer.testing import CliRunner

from headwater.cli import main as main_module
from headwater.cli.main import app

COMMANDS = [
    ["up"], ["broker"], ["publish"], ["subscribe"], ["read"], ["cut"], ["query"], ["verify"],
    ["stream", "create"], ["stream", "list"], ["stream", "describe"], ["stream", "delete"],
    ["tier", "status"], ["tier", "flush"],
]  # fmt: skip


@pytest.mark.parametrize("command", COMMANDS, ids=" ".join)
def test_every_command_teaches_by_example(command: list[str]) -> None:
    """Each help shows the command as one would type it."""
    result = CliRunner().invoke(app, [*command, "--help"])
    assert result.exit_code == 0
    assert "Examples" in result.stdout
    assert f"headwater {' '.join(command)}" in result.stdout


def test_help_lists_every_command() -> None:
    """Nothing is hidden."""
    shown = CliRunner().invoke(app, ["--help"]).stdout
    for command in COMMANDS:
        assert command[0] in shown


def test_start_is_light() -> None:
    """Help and completion load neither Arrow nor Spark nor a client of anything."""
    code = (
        "import sys; import headwater.cli.main; "
        "heavy = {'pyarrow', 'pyspark', 'deltalake', 'boto3', 'nats', 'grpc'} & set(sys.modules); "
        "sys.exit(repr(heavy) if heavy else 0)"
    )
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr


def test_a_defect_is_called_one(monkeypatch: pytest.MonkeyPatch) -> None:
    """An unforeseen error is one line and code 70; --debug shows where."""

    def broken(_given: str | None) -> None:
        raise KeyError("surprise")

    monkeypatch.setattr("headwater.cli.stream.find_server", broken)
    result = CliRunner().invoke(app, ["stream", "list"])
    assert result.exit_code == 70
    assert "Internal error KeyError" in result.stderr
    assert "Traceback" not in result.output
    shown = CliRunner().invoke(app, ["--debug", "stream", "list"])
    assert isinstance(shown.exception, KeyError)


def test_ctrl_c_is_quiet(monkeypatch: pytest.MonkeyPatch) -> None:
    """Ctrl-C ends with the code that shells expect and says nothing."""

    def interrupted(_given: str | None) -> None:
        raise KeyboardInterrupt

    monkeypatch.setattr("headwater.cli.stream.find_server", interrupted)
    result = CliRunner().invoke(app, ["stream", "list"])
    assert (result.exit_code, result.output) == (130, "")


def test_no_server(monkeypatch: pytest.MonkeyPatch) -> None:
    """The error has the address, and tells how to start a server."""
    monkeypatch.setenv("HEADWATER_SERVER", "127.0.0.1:1")
    result = CliRunner().invoke(app, ["stream", "list"])
    assert result.exit_code == 3
    assert "127.0.0.1:1" in result.stderr
    assert "headwater up" in result.stderr


def test_a_reader_that_leaves_ends_it_without_noise() -> None:
    """`headwater … | head -1` prints no complaint about the pipe."""
    code = (
        "import headwater.cli.console as c, headwater.cli.stream as s\n"
        "from headwater.cli.main import app\n"
        "class Server: pass\n"
        "def many(*_):\n"
        "    for n in range(200_000): c.line(str(n))\n"
        "    raise SystemExit(0)\n"
        "s.find_server = many\n"
        "app(['stream', 'list'])\n"
    )
    shell = f'{sys.executable} -c "$CODE" | head -1'
    done = subprocess.run(
        ["bash", "-c", shell], env={"CODE": code, "PATH": "/usr/bin:/bin"},
        capture_output=True, text=True, check=False,
    )  # fmt: skip
    assert done.stdout == "0\n"
    assert done.stderr == ""


def test_a_command_loads_no_other_command() -> None:
    """A command that a person waits for starts without the modules of all the others."""
    code = (
        "import sys; from typer.testing import CliRunner; from headwater.cli.main import app; "
        "CliRunner().invoke(app, ['query']); "
        "ours = {name for name in sys.modules if name.startswith('headwater.cli.')}; "
        "print(sorted(ours & {'headwater.cli.query', 'headwater.cli.cluster', "
        "'headwater.cli.publish'}))"
    )
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert done.stdout.strip() == "['headwater.cli.query']"


def test_a_wrong_name_of_a_command_is_told_with_the_right_one() -> None:
    """The names are known without a command being imported."""
    told = CliRunner().invoke(app, ["quer"])
    assert told.exit_code == 2
    assert "query" in told.stderr


def test_version() -> None:
    """The version is the distribution's."""
    result = CliRunner().invoke(main_module.app, ["--version"])
    assert result.stdout.startswith("headwater ")


def test_a_failed_handshake_is_one_error_without_the_log_of_grpc(address: str) -> None:
    """A server that speaks no TLS is named as one; Flight's library writes lines of its own."""
    words = [sys.executable, "-m", "headwater", "stream", "list"]
    words += ["--server", f"grpc+tls://{address}"]
    done = subprocess.run(words, capture_output=True, text=True, check=False)
    assert done.returncode == 3, done.stderr
    assert done.stderr.startswith("NoAnswerError: "), done.stderr
    assert "the TLS handshake failed: perhaps the broker has no TLS (grpc://)" in done.stderr
