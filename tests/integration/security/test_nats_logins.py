"""A login for NATS leaves by TLS only, if TLS is asked for, whatever the server says.

The server's greeting tells a client whether to begin TLS. Whoever answers in the server's place, or
changes the greeting on its way, would get the password.
"""

from __future__ import annotations

import socket
import threading
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from dataclasses import replace
from pathlib import Path
from typing import Any, Final

import pytest

from broker.config import NatsConfig
from broker.errors import UnavailableError
from broker.model.secret import Secret
from simkit.brokers.ingest_rig import IngestRig
from simkit.servers.certificates import Authority

pytestmark = pytest.mark.integration

WAIT_S: Final = 60.0
NO_TLS: Final = "does not offer TLS"
GREETING: Final = b'INFO {"server_id":"x","version":"2.11.0","max_payload":1048576%s}\r\n'


@contextmanager
def impostor(greeting: bytes) -> Iterator[tuple[int, list[bytes]]]:
    """Answer as a NATS server without TLS; give the port and what was heard."""
    heard: list[bytes] = []

    def serve(listener: socket.socket) -> None:
        with suppress(OSError):  # the test has ended
            while True:
                connection = listener.accept()[0]
                with connection, suppress(OSError):
                    connection.settimeout(WAIT_S)
                    connection.sendall(greeting)
                    while data := connection.recv(65_536):
                        heard.append(data)
                        if b"PING" in data:
                            connection.sendall(b"PONG\r\n")

    with socket.create_server(("127.0.0.1", 0)) as listener:
        thread = threading.Thread(target=serve, args=(listener,))
        thread.start()
        yield listener.getsockname()[1], heard
        listener.shutdown(socket.SHUT_RDWR)
    thread.join(WAIT_S)


@pytest.mark.parametrize("said", [b"", b',"tls_required":false', b',"tls_available":true'])
@pytest.mark.parametrize("asks", ["ca file", "tls://", "one tls:// of two"])
def test_a_password_does_not_leave_in_plain_text(tmp_path: Path, asks: str, said: bytes) -> None:
    """Nothing at all does, and the error says why there is no connection."""
    with impostor(GREETING % said) as (port, heard):
        url, files = f"nats://127.0.0.1:{port}", dict[str, Any]()
        if asks == "ca file":
            (tmp_path / "ca").write_bytes(Authority().cert)
            files = {"tls_ca_file": str(tmp_path / "ca")}
        else:
            url = f"{url},tls://127.0.0.1:{port}" if "two" in asks else f"tls://127.0.0.1:{port}"
        config = NatsConfig(url=url, user="u", password=Secret("hidden"), **files)
        told = refusal(config, 700)
        if NO_TLS not in told:  # on a busy machine the greeting may have come late
            told = refusal(config, 10_000)
        assert NO_TLS in told
    assert heard == []


def refusal(config: NatsConfig, timeout_ms: int) -> str:
    """Return why there is no connection after this time."""
    patient = replace(config, connect_timeout_ms=timeout_ms)
    with pytest.raises(UnavailableError) as refused, IngestRig(patient):
        pass
    return refused.value.message


def test_the_same_server_gets_the_login_if_nobody_asks_for_tls() -> None:
    """So the impostor above would have got it."""
    with impostor(GREETING % b"") as (port, heard):
        config = NatsConfig(url=f"nats://127.0.0.1:{port}", user="u", password=Secret("hidden"))
        with IngestRig(config) as rig:
            assert rig.transport.connected
    assert b"hidden" in b"".join(heard)
