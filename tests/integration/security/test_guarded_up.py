"""``headwater up --guarded``: this user needs no more words than before, everybody else a token.

Also the commands about tokens and grants, and ``headwater broker --insecure``, as processes.
"""

from __future__ import annotations

import json
import os
import stat
import subprocess
import sys
import time
from collections.abc import Iterator
from pathlib import Path
from statistics import median
from urllib.parse import urlsplit

import pytest
from typer.testing import CliRunner

from broker.errors import AccessDeniedError, AccessError, UnauthenticatedError
from headwater.cli.main import app
from headwater.client import Client
from headwater.client.access import AccessCalls
from headwater.liftbridge import Liftbridge
from headwater.local.embedded import (
    EmbeddedServer,
    free_port,
    http_status,
    spawn,
    start_up,
    wait_ready,
)
from headwater.local.owner_token import token_path
from headwater.local.runtime_file import DEFAULT_DATA_DIR, RuntimeFile

pytestmark = [pytest.mark.integration, pytest.mark.slow]

WAIT_S = 60.0


@pytest.fixture
def up(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[RuntimeFile]:
    """Run a guarded server in the folder where this process works."""
    for name in ("HEADWATER_TOKEN", "HEADWATER_TOKEN_FILE", "HEADWATER_SERVER"):
        monkeypatch.setenv(name, "")  # commands change the environment
        monkeypatch.delenv(name)
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("HEADWATER_LIFTBRIDGE_PORT", str(free_port()))
    monkeypatch.setenv("HEADWATER_LIFTBRIDGE_ENABLED", "true")
    data = tmp_path / DEFAULT_DATA_DIR
    ports = ("--nats-port", "0", "--flight-port", "0", "--http-port", "0")
    with start_up(data, "--guarded", *ports):
        yield RuntimeFile.read(data)


def run(*words: str, ok: bool = True) -> str:
    """Run a command of this user; return what it prints."""
    result = CliRunner().invoke(app, list(words))
    assert (result.exit_code == 0) is ok, result.output
    return result.output


def test_the_user_needs_no_more_words_and_others_are_refused(
    up: RuntimeFile, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Commands and clients of this folder find the token; without it each door refuses.

    With it an administrator limits what others use. Every file of the server is the user's only.
    """
    assert stat.S_IMODE(token_path(tmp_path / DEFAULT_DATA_DIR).stat().st_mode) == 0o600
    run("stream", "create", "orders", "--puback")
    with Client(up.flight) as client:
        with client.producer("orders") as producer:
            producer.send([b"one"]).result(WAIT_S)
        assert AccessCalls(client).whoami().via == "owner"
    run("tier", "flush", "orders")
    assert open_to_others(tmp_path / DEFAULT_DATA_DIR) == []

    run("token", "create", "ann", "-o", "ann.token")
    (token,) = [json.loads(line) for line in run("token", "list", "--json").splitlines()]
    assert token["principal"] == "ann"
    run("access", "grant", "ann", "reader", "--stream", "ord*")
    (grant,) = [json.loads(line) for line in run("access", "list", "--json").splitlines()]
    assert (grant["principal"], grant["pattern"]) == ("ann", "ord*")
    ann = Path("ann.token").read_text().strip()

    os.environ.pop("HEADWATER_TOKEN_FILE", None)
    monkeypatch.chdir("/")  # as somebody else: no runtime file of one's own
    with Client(up.flight) as nobody, pytest.raises(UnauthenticatedError):
        nobody.streams()
    door = f"127.0.0.1:{os.environ['HEADWATER_LIFTBRIDGE_PORT']}"
    with Liftbridge(door) as nobody, pytest.raises(AccessError):
        nobody.publish("orders", b"no")
    assert http_status(urlsplit(up.http).port or 0, "GET", "/metrics") == 401
    monkeypatch.chdir(tmp_path)
    from_owner = hold_back(up, ann)
    with Client(up.flight, token=ann) as reader:
        values = [v for part in reader.fetch("orders") for v in part.batch["value"].to_pylist()]
        assert values == [b"one", *[b"y"] * from_owner]
        run("access", "revoke", "ann", "reader", "--stream", "ord*")
        assert "No grants" in run("access", "list")
        with pytest.raises(AccessDeniedError):
            list(reader.fetch("orders"))
        run("token", "revoke", token["token_id"])
        assert run("token", "list", "--json") == ""
        with pytest.raises(UnauthenticatedError):
            reader.streams()


def open_to_others(data: Path) -> list[Path]:
    """Return the data directory, and what is in it, as far as other users have a right there."""
    with_bits = [path for path in (data, *data.rglob("*")) if path.lstat().st_mode & 0o077]
    assert (data / "nats" / "nats-server.log").exists()
    return with_bits


def hold_back(up: RuntimeFile, ann: str) -> int:
    """Show that ann publishes at her quota and loses nothing, and the owner is not held up.

    Return how many records the owner published to "orders".
    """
    run("stream", "create", "wide")
    run("access", "grant", "ann", "writer", "--stream", "wide")
    run("access", "quota", "set", "ann", "--publish", "1MiB")
    (quota,) = [json.loads(line) for line in run("access", "quota", "list", "--json").splitlines()]
    assert (quota["principal"], quota["publish_bytes_per_s"]) == ("ann", 1 << 20)
    with Client(up.flight, token=ann) as client, Client(up.flight) as owner:
        producer, free = client.producer("wide"), owner.producer("orders")
        began = time.monotonic()
        sent = [producer.send([b"x" * (256 << 10)]) for _ in range(8)]
        waits_s: list[float] = []  # of the owner; the machine may stand still during one of them
        while not sent[-1].done() or len(waits_s) < 5:
            asked = time.monotonic()
            free.send([b"y"]).result(WAIT_S)
            waits_s.append(time.monotonic() - asked)
        took_s = time.monotonic() - began
        assert [one.result().base_offset for one in sent] == list(range(8))
        assert 1.0 < took_s < 10.0  # a second's worth at once, the rest at the rate
        assert median(waits_s) < 0.25, waits_s
        producer.close()
        free.close()
    run("access", "revoke", "ann", "writer", "--stream", "wide")
    run("access", "quota", "remove", "ann")
    assert run("access", "quota", "list", "--json") == ""
    return len(waits_s)


def test_a_daemon_beyond_the_loopback_starts_with_the_word_insecure_only(tmp_path: Path) -> None:
    """Without it the process ends and says which doors are open to strangers."""
    http = free_port()
    config = tmp_path / "broker.toml"
    config.write_text(
        f"""
        [node]
        data_dir = "{tmp_path}/data"
        [nats]
        url = ""
        [flight]
        host = "0.0.0.0"
        port = 0
        [http]
        port = {http}
        [lake]
        uri = ""
        """
    )
    command = [sys.executable, "-m", "headwater", "broker", "--config", str(config)]
    refused = subprocess.run(command, capture_output=True, text=True, timeout=120, check=False)
    assert refused.returncode != 0
    assert "flight on 0.0.0.0 has no TLS" in refused.stderr
    log = tmp_path / "log"
    process = spawn([*command, "--insecure"], log)
    with EmbeddedServer(name="broker", address="", port=0, log_path=log, process=process) as server:
        wait_ready(server, lambda: http_status(http, "GET", "/readyz") == 200)
    assert '"insecure"' in log.read_text()
