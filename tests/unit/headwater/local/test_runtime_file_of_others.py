"""A runtime file decides where secrets go: one that somebody else may have written is not used."""

from __future__ import annotations

import os
from pathlib import Path
from typing import Final

import pytest
from typer.testing import CliRunner

from broker.errors import InvalidConfigError, UnavailableError
from headwater.cli.discovery import find_server
from headwater.cli.main import app
from headwater.local.runtime_file import DEFAULT_DATA_DIR, FILE_NAME, RuntimeFile

_STRANGER: Final = 65534


@pytest.fixture
def data(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """Return a data directory with the runtime file of this process, in the working directory."""
    monkeypatch.chdir(tmp_path)
    data = tmp_path / DEFAULT_DATA_DIR
    data.mkdir()
    RuntimeFile(
        pid=os.getpid(), flight="grpc://127.0.0.1:7", nats="nats://127.0.0.1:8", http="", lake=""
    ).write(data)
    return data


def _give_away(path: Path, monkeypatch: pytest.MonkeyPatch) -> int:
    """Make a file another user's; return the id of its owner."""
    owner = os.geteuid()
    if owner == 0:
        os.chown(path, _STRANGER, -1)
        return _STRANGER
    monkeypatch.setattr(os, "geteuid", lambda: owner + 1)
    return owner


@pytest.mark.parametrize("given", [None, DEFAULT_DATA_DIR, f"{DEFAULT_DATA_DIR}/{FILE_NAME}"])
def test_a_strangers_file_is_named_with_its_owner(
    data: Path, given: str | None, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Neither found in the folder nor given: no address of the file is used."""
    owner = _give_away(data / FILE_NAME, monkeypatch)
    with pytest.raises(InvalidConfigError, match=rf"{FILE_NAME}.*user {owner}\b.*--server"):
        find_server(given)


def test_a_command_ends_before_it_sends_anything(
    data: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The error has the exit code of a wrong configuration, and no traceback."""
    _give_away(data / FILE_NAME, monkeypatch)
    monkeypatch.setenv("HEADWATER_TOKEN", f"hw_{'0' * 16}_{'1' * 64}")
    result = CliRunner().invoke(app, ["stream", "list"])
    assert result.exit_code == 2
    assert "belongs to user" in " ".join(result.stderr.split())


@pytest.mark.parametrize("mode", [0o620, 0o602, 0o666])
def test_a_file_that_others_may_write_is_not_used(data: Path, mode: int) -> None:
    """Others may read the addresses."""
    (data / FILE_NAME).chmod(0o644)
    assert find_server(None).flight == "grpc://127.0.0.1:7"
    (data / FILE_NAME).chmod(mode)
    with pytest.raises(InvalidConfigError, match="may write it"):
        find_server(None)


def test_what_is_no_regular_file_is_not_used(data: Path, tmp_path: Path) -> None:
    """A link, one that leads nowhere, a folder, and a pipe, for which nobody waits."""
    path = data / FILE_NAME
    path.rename(tmp_path / "elsewhere")
    path.symlink_to(tmp_path / "elsewhere")
    with pytest.raises(InvalidConfigError, match="symbolic link"):
        find_server(None)
    (tmp_path / "elsewhere").unlink()
    with pytest.raises(InvalidConfigError, match="symbolic link"):
        find_server(None)
    path.unlink()
    os.mkfifo(path, 0o600)
    with pytest.raises(InvalidConfigError, match="no regular file"):
        find_server(None)
    path.unlink()
    path.mkdir()
    with pytest.raises(InvalidConfigError, match=r"regular file|cannot be read"):
        find_server(None)


def test_a_strangers_process_is_not_the_server_that_ended(
    data: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The id was given out again: whose process it is may also listen at the addresses."""

    def refused(_pid: int, _signal: int) -> None:
        raise PermissionError

    owner = os.lstat(data / FILE_NAME).st_uid
    monkeypatch.setattr("headwater.local.runtime_file.ROOT", -1)
    monkeypatch.setattr(os, "kill", refused)
    with pytest.raises(UnavailableError, match="has ended"):
        find_server(None)
    monkeypatch.setattr("headwater.local.runtime_file.ROOT", owner)
    assert find_server(None).flight == "grpc://127.0.0.1:7"
