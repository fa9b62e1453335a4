"""The runtime file is used only if it is whole and its process runs."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path

import pytest

from broker.errors import InvalidConfigError, UnavailableError
from headwater.cli.discovery import find_server
from headwater.local.runtime_file import FILE_NAME, RuntimeFile


def _file(pid: int) -> RuntimeFile:
    return RuntimeFile(
        pid=pid,
        flight="grpc://127.0.0.1:1",
        nats="nats://127.0.0.1:2",
        http="http://127.0.0.1:3",
        lake="/lake",
        moto="http://127.0.0.1:4",
        started_us=5,
    )


def _ended_pid() -> int:
    ended = subprocess.Popen([sys.executable, "-c", ""])
    ended.wait()
    return ended.pid


def test_round_trip(tmp_path: Path) -> None:
    """What is written is read again, by the file's path and by its folder's."""
    written = _file(os.getpid())
    path = written.write(tmp_path)
    assert RuntimeFile.read(path) == written
    assert RuntimeFile.read(tmp_path) == written
    assert [entry.name for entry in tmp_path.iterdir()] == [FILE_NAME]


@pytest.mark.parametrize(
    "text",
    [
        "",
        "null",
        "[]",
        '{"v": 1}',
        '{"v": 2, "pid": 1, "flight": "", "nats": "", "http": "", "lake": ""}',
        '{"v": 1, "pid": "1", "flight": "", "nats": "", "http": "", "lake": ""}',
        '{"v": 1, "pid": -1, "flight": "", "nats": "", "http": "", "lake": ""}',
        '{"v": 1, "pid": 1, "flight": 3, "nats": "", "http": "", "lake": ""}',
        '{"v": 1, "pid": 1, "flight": "", "nats": "", "http": "", "lake": "", "more": 1}',
        " " * 100_000,
    ],
)
def test_damage_is_refused(tmp_path: Path, text: str) -> None:
    """Anything that is not exactly such a file is an error."""
    (tmp_path / FILE_NAME).write_text(text)
    with pytest.raises(InvalidConfigError, match="runtime file"):
        RuntimeFile.read(tmp_path)


def test_discovery_order(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """A given address wins over the local file, the local file over the default ports."""
    monkeypatch.chdir(tmp_path)
    assert find_server(None).flight == "grpc://127.0.0.1:7410"
    local = tmp_path / "headwater-data"
    local.mkdir()
    _file(os.getpid()).write(local)
    assert find_server(None).flight == "grpc://127.0.0.1:1"
    assert find_server(None).moto == "http://127.0.0.1:4"
    assert find_server(None, nats="nats://elsewhere:4222").nats == "nats://elsewhere:4222"
    assert find_server("elsewhere:9").flight == "grpc://elsewhere:9"
    assert find_server("grpc+tls://elsewhere:9").flight == "grpc+tls://elsewhere:9"
    monkeypatch.setenv("HEADWATER_TLS_CA_FILE", "ca.crt")  # as in Python: an authority means TLS
    assert find_server("a:9,grpc+tls://b:9").flight == "grpc+tls://a:9,grpc+tls://b:9"
    with pytest.raises(InvalidConfigError, match="neither an address"):
        find_server("elsewhere")


def test_a_server_that_ended_is_not_believed(tmp_path: Path) -> None:
    """Its file is stale; its folder without a file says how to start it."""
    _file(_ended_pid()).write(tmp_path)
    with pytest.raises(UnavailableError, match="has ended"):
        find_server(str(tmp_path))
    (tmp_path / FILE_NAME).unlink()
    with pytest.raises(UnavailableError, match="headwater up --data"):
        find_server(str(tmp_path))


def test_the_file_is_json_for_scripts(tmp_path: Path) -> None:
    """Scripts find the addresses under plain names."""
    body = json.loads(_file(7).write(tmp_path).read_text())
    assert body["nats"] == "nats://127.0.0.1:2"
