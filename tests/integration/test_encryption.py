"""Encryption as an operator meets it: a keyring, an encrypted stream and table, a lost key."""

from __future__ import annotations

import json
import os
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from contextlib import suppress
from pathlib import Path

import pytest

from headwater.local import embedded

pytestmark = [pytest.mark.integration, pytest.mark.slow]

SECRET = "nobody-else-may-read-this"
WAIT_S = 120.0
Run = Callable[..., str]
_FREE_PORTS = ("--nats-port", "0", "--flight-port", "0", "--http-port", "0")


@pytest.fixture
def keyring(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A keyring that `headwater keyring new` made, which servers of this test use."""
    path = tmp_path / "keys" / "keyring.toml"
    command = [sys.executable, "-m", "headwater.cli.main", "keyring", "new", str(path)]
    subprocess.run([*command, "--name", "one"], check=True, capture_output=True)
    monkeypatch.setenv("HEADWATER_ENCRYPTION_PROVIDER", "file")
    monkeypatch.setenv("HEADWATER_ENCRYPTION_KEYRING_FILE", str(path))
    return path


@pytest.fixture
def run(tmp_path: Path) -> Run:
    """Return a function that runs ``headwater`` as a process of its own, without the keys."""

    def command(
        *arguments: str, stdin: str = "", fails: bool | None = False, keys: bool = False
    ) -> str:
        environ = {
            name: text
            for name, text in os.environ.items()
            if keys or not name.startswith("HEADWATER_ENCRYPTION")
        }
        done = subprocess.run(
            [sys.executable, "-m", "headwater.cli.main", *arguments],
            input=stdin, capture_output=True, text=True, cwd=tmp_path, timeout=240, check=False,
            env={**environ, "HEADWATER_SERVER": str(tmp_path / "data"), "COLUMNS": "160"},
        )  # fmt: skip
        failed = done.returncode != 0
        assert fails in {failed, None}, f"{arguments}: {done.stdout}\n{done.stderr}"
        return done.stdout + done.stderr if failed else done.stdout

    return command


@pytest.fixture
def up(tmp_path: Path) -> Iterator[Callable[[], embedded.EmbeddedServer]]:
    """Return a function that starts ``headwater up``."""
    started: list[embedded.EmbeddedServer] = []

    def start() -> embedded.EmbeddedServer:
        started.append(embedded.start_up(tmp_path / "data", *_FREE_PORTS))
        return started[-1]

    yield start
    for server in started:
        server.stop()


def values(told: str) -> list[str]:
    """Return the values of the records that `headwater read` printed as JSON."""
    return [json.loads(line)["value"] for line in told.splitlines()]


def contents(folder: Path) -> dict[Path, bytes]:
    """Return what is in all files below a folder; its server may replace one meanwhile."""
    found: dict[Path, bytes] = {}
    for path in folder.rglob("*"):
        with suppress(FileNotFoundError):
            if path.is_file():
                found[path] = path.read_bytes()
    return found


def test_nothing_on_any_disk_shows_a_record(
    run: Run, up: Callable[[], embedded.EmbeddedServer], keyring: Path, tmp_path: Path
) -> None:
    """Published, shipped, the provider's key replaced, restarted: readers get every record."""
    server = up()
    run("stream", "create", "open")
    run("stream", "create", "safe", "--encryption", "xaes-256-gcm",
        "--table-encryption", "ciphertext", "--segment-bytes", "64KiB")  # fmt: skip
    sent = [f"{SECRET}-{number}" for number in range(300)]
    run("publish", "safe", "--via", "flight", stdin="\n".join(sent[:200]))
    run("tier", "flush", "safe")
    run("keyring", "new", str(keyring), "--name", "two")
    told = json.loads(run("stream", "rotate-key", "safe", "--json"))
    assert (told["version"], told["wrapping_key"]) == (2, "two")
    kept = [one for one in keyring.read_text().splitlines() if not one.startswith('"one"')]
    keyring.write_text("\n".join(kept))  # the first files of the table name the key "one"
    run("publish", "safe", "--via", "flight", stdin="\n".join(sent[200:]))
    assert values(run("read", "safe", "--format", "jsonl")) == sent  # the broker decrypts
    assert values(run("read", "safe", "--format", "jsonl", keys=True)) == sent  # and files, here
    assert str(len(sent)) in run("query", "SELECT count(value) FROM safe", keys=True)
    assert "EncryptionKeyError" in run("verify", "safe", fails=True)
    run("verify", "safe", keys=True)

    found = contents(tmp_path / "data")
    assert any(one.suffix == ".parquet" for one in found)
    assert [one for one, body in found.items() if SECRET.encode() in body] == []
    key = keyring.read_text().rpartition('= "')[2].partition('"')[0]
    assert [one for one, body in found.items() if key.encode() in body] == []

    server.stop()
    keyring.rename(keyring.with_name("lost.toml"))
    up()
    refused = run("publish", "safe", "--via", "flight", stdin="more", fails=True)
    assert "EncryptionKeyError" in refused
    assert "cannot read the keyring" in refused
    run("publish", "open", "--via", "flight", stdin="goes on")
    keyring.with_name("lost.toml").rename(keyring)
    deadline_s = time.monotonic() + WAIT_S
    told = "EncryptionKeyError"  # the only reason, until the broker asks for the key again
    while "EncryptionKeyError" in told and time.monotonic() < deadline_s:
        time.sleep(0.5)  # each try is a process
        told = run("read", "safe", "--format", "jsonl", fails=None)
    assert values(told) == sent  # without a restart
