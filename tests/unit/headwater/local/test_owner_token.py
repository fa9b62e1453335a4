"""The owner's token of a guarded ``headwater up`` is found by its owner, and by no trick."""

from __future__ import annotations

import dataclasses
import os
import subprocess
import sys
from pathlib import Path

import pytest

from headwater.cli.discovery import find_server
from headwater.client.address import resolve_address
from headwater.local.owner_token import token_path
from headwater.local.private_files import write_private
from headwater.local.runtime_file import DEFAULT_DATA_DIR, FILE_NAME, RuntimeFile

URL = "grpc://127.0.0.1:7"
TOKEN = f"hw_{'0' * 16}_{'1' * 64}"


@pytest.fixture
def data(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """Return the data directory of a guarded server, in the folder where this process works."""
    for name in ("HEADWATER_TOKEN", "HEADWATER_TOKEN_FILE"):
        monkeypatch.setenv(name, "")  # find_server changes the environment
    monkeypatch.chdir(tmp_path)
    data = tmp_path / DEFAULT_DATA_DIR
    data.mkdir()
    RuntimeFile(
        pid=os.getpid(), flight=f"grpc://127.0.0.1:6,{URL}", nats="", http="", lake="", guarded=True
    ).write(data)
    write_private(token_path(data), TOKEN + "\n")
    return data


def found() -> str | None:
    """Return the token with which a client of this process would call the server."""
    token = resolve_address(URL).token
    return None if token is None else token.reveal()


def test_clients_and_commands_of_its_owner_find_it(data: Path) -> None:
    """At the server's addresses only; a token of the environment comes first."""
    assert found() == TOKEN
    assert resolve_address("grpc://127.0.0.1:8").token is None
    assert resolve_address("grpc://localhost:7").token is None
    own = resolve_address(URL, environment={"HEADWATER_TOKEN": "other"}).token
    assert own is not None
    assert own.reveal() == "other"
    os.environ.pop("HEADWATER_TOKEN_FILE")
    find_server(str(data))
    assert os.environ["HEADWATER_TOKEN_FILE"] == str(token_path(data))


def test_a_server_that_is_not_guarded_has_none(data: Path) -> None:
    """A token that an earlier start left there is sent to nobody; the file is as it always was."""
    path = dataclasses.replace(RuntimeFile.read(data), guarded=False).write(data)
    assert found() is None
    assert "guarded" not in path.read_text()


@pytest.mark.parametrize("name", [FILE_NAME, token_path(Path()).name])
def test_files_that_others_may_have_made_lead_to_no_token(data: Path, name: str) -> None:
    """A link, and a file that others may read or write."""
    path = data / name
    path.chmod(0o640)
    assert found() is None
    path.chmod(0o600)
    path.rename(data / "elsewhere")
    path.symlink_to(data / "elsewhere")
    assert found() is None


def test_a_server_that_has_ended_gets_no_token(data: Path) -> None:
    """Somebody else may listen at its address by now."""
    ended = subprocess.Popen([sys.executable, "-c", ""])
    ended.wait()
    dataclasses.replace(RuntimeFile.read(data), pid=ended.pid).write(data)
    assert found() is None
