"""Issue 11, item 15: user, password and token for NATS are options of the command."""

from __future__ import annotations

import socket
import struct
import threading
from collections.abc import Callable, Iterator
from typing import Any

import pytest
from typer.main import get_command

from broker.errors import InvalidConfigError, UnavailableError
from broker.model.ids import StreamUuid
from broker.model.stream import Stream, StreamConfig
from headwater.cli.main import app
from headwater.local.embedded import (
    EmbeddedServer,
    free_port,
    nats_server_binary,
    spawn,
    wait_ready,
)
from headwater.nats_login import NatsLogin
from headwater.nats_publisher import NatsMessage, NatsPublisher, check_connection

pytestmark = pytest.mark.integration

STREAM = Stream(
    name="s",
    uuid=StreamUuid("00000000-0000-4000-8000-000000000001"),
    config=StreamConfig(subject="s", puback=True),
    created_us=1,
    table_name="s",
)


@pytest.fixture(scope="module")
def guarded(tmp_path_factory: pytest.TempPathFactory) -> Iterator[str]:
    """Start a NATS server that wants a user and a password; return its address."""
    log, port = tmp_path_factory.mktemp("nats") / "log", free_port()
    words = [nats_server_binary(), "-a", "127.0.0.1", "-p", str(port), "--user", "me"]
    process = spawn([*words, "--pass", "secret"], log)
    server = EmbeddedServer("nats", f"nats://127.0.0.1:{port}", port, log, process)
    with server:
        wait_ready(server, lambda: b"Server is ready" in log.read_bytes())
        yield server.address


def _publish(url: str, login: NatsLogin | None) -> int:
    with NatsPublisher(url, stream=STREAM, acks=False, login=login) as publisher:
        publisher.publish([NatsMessage("s", b"x")])
        return publisher.finish().sent


def test_the_right_password_opens(guarded: str) -> None:
    """What `--nats-user` and HEADWATER_NATS_PASSWORD give reaches the server."""
    assert _publish(guarded, NatsLogin(user="me", password="secret")) == 1


@pytest.mark.parametrize("login", [None, NatsLogin(user="me", password="wrong")])
def test_a_wrong_password_is_told_at_once(guarded: str, login: NatsLogin | None) -> None:
    """The command fails with the server's own message and does not wait for an answer."""
    with pytest.raises(UnavailableError, match=r"(?i)authorization"):
        _publish(guarded, login)


@pytest.mark.parametrize(
    "ask", [lambda url: _publish(url, None), lambda url: check_connection(url, NatsLogin())]
)
def test_a_server_that_refuses_and_resets_is_unavailable(ask: Callable[[str], Any]) -> None:
    """Its refusal may be lost with the connection; the error is typed all the same."""
    with socket.create_server(("127.0.0.1", 0)) as listener:

        def refuse() -> None:
            connection, _ = listener.accept()
            with connection:
                connection.sendall(b'INFO {"server_id":"x","max_payload":1048576}\r\n')
                heard = b""
                while b"PING" not in heard and (more := connection.recv(65_536)):
                    heard += more
                connection.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, struct.pack("ii", 1, 0))
                connection.sendall(b"-ERR 'Authorization Violation'\r\n")

        server = threading.Thread(target=refuse)
        server.start()
        with pytest.raises(UnavailableError, match=r"(?i)authorization|reset"):
            ask(f"nats://127.0.0.1:{listener.getsockname()[1]}")
        server.join()


@pytest.mark.parametrize(
    ("values", "words"),
    [
        ({"password": "x"}, "needs a user"),
        ({"tls_cert_file": "x"}, "together"),
        ({"creds_file": "absent"}, "cannot read absent"),
        ({"tls_ca_file": __file__}, "not usable as certificates"),
    ],
)
def test_what_cannot_be_used_is_named(values: dict[str, Any], words: str) -> None:
    """The error comes before a connection is made."""
    with pytest.raises(InvalidConfigError, match=words):
        NatsLogin(**values).arguments()


def test_the_command_has_the_options() -> None:
    """Each has the name of the broker's setting, and its variable."""
    given = {
        option: parameter.envvar
        for parameter in get_command(app).commands["publish"].params  # type: ignore[attr-defined]
        for option in parameter.opts
    }
    for name in NatsLogin.__dataclass_fields__:
        assert given[f"--nats-{name.replace('_', '-')}"] == f"HEADWATER_NATS_{name.upper()}"
