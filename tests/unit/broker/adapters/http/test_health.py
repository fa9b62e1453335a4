"""The health endpoints answer what a supervisor and a load balancer need, and nothing else."""

from __future__ import annotations

import http.client
import socket
import ssl
import time
from collections.abc import Iterator
from contextlib import ExitStack, suppress
from pathlib import Path

import pytest

from broker.adapters.http.health import HealthServer
from broker.adapters.tls.context import server_context
from broker.errors import (
    AccessDeniedError,
    AccessError,
    InvalidConfigError,
    UnauthenticatedError,
)
from simkit.servers.certificates import Authority

WAIT_S = 60


class Broker:
    """The broker that the server asks."""

    def __init__(self) -> None:
        self.reason: str | None = "recovering"
        self.broken = False

    def metrics(self) -> bytes:
        """Return a scrape, or fail."""
        if self.broken:
            raise RuntimeError("the source fails")
        return b"up 1\n"

    def not_ready_reason(self) -> str | None:
        """Return why it is not ready."""
        return self.reason


@pytest.fixture
def broker() -> Broker:
    """Return a broker that recovers."""
    return Broker()


@pytest.fixture
def server(broker: Broker) -> Iterator[HealthServer]:
    """Run a health server in front of it."""
    running = HealthServer(
        host="127.0.0.1",
        port=0,
        metrics=broker.metrics,
        metrics_content_type="text/plain",
        not_ready_reason=broker.not_ready_reason,
    )
    running.start()
    yield running
    running.stop()


def _ask(server: HealthServer, path: str, method: str = "GET") -> tuple[int, bytes]:
    connection = http.client.HTTPConnection("127.0.0.1", server.port, timeout=WAIT_S)
    try:
        connection.request(method, path)
        response = connection.getresponse()
        return response.status, response.read()
    finally:
        connection.close()


def test_readyz_follows_the_broker(server: HealthServer, broker: Broker) -> None:
    """While it recovers the answer is 503 with the reason; once it serves, 200."""
    assert _ask(server, "/readyz") == (503, b"not ready: recovering\n")
    broker.reason = None
    assert _ask(server, "/readyz") == (200, b"ready\n")


def test_a_ready_broker_names_what_it_goes_without(broker: Broker) -> None:
    """It is ready without its object store, because local records are served."""
    broker.reason = None
    running = HealthServer(
        host="127.0.0.1",
        port=0,
        metrics=broker.metrics,
        metrics_content_type="text/plain",
        not_ready_reason=broker.not_ready_reason,
        missing=lambda: ["the lake at s3://x: no answer", "NATS"],
    )
    running.start()
    try:
        told = b"ready\nmissing: the lake at s3://x: no answer\nmissing: NATS\n"
        assert _ask(running, "/readyz") == (200, told)
    finally:
        running.stop()


@pytest.mark.parametrize(
    ("refusal", "status", "told"),
    [
        (UnauthenticatedError("who are you"), 401, b"Authorization: Bearer"),
        (AccessDeniedError("no grant lets 'shop' describe the cluster"), 403, b"'shop'"),
    ],
)
def test_a_refused_scrape_says_whether_a_proof_or_a_grant_is_missing(
    broker: Broker, refusal: AccessError, status: int, told: bytes
) -> None:
    """Who gave a token is not told to give one; the probes ask nobody."""

    def refuse(_authorization: str | None, _certificate: str | None, _peer: str) -> None:
        raise refusal

    guarded = HealthServer(
        host="127.0.0.1",
        port=0,
        metrics=broker.metrics,
        metrics_content_type="text/plain",
        not_ready_reason=lambda: None,
        guard=refuse,
    )
    guarded.start()
    found = _ask(guarded, "/metrics")
    assert found[0] == status
    assert told in found[1]
    assert _ask(guarded, "/readyz")[0] == 200
    guarded.stop()


def test_healthz_and_metrics(server: HealthServer) -> None:
    """A live process is healthy also when it is not ready; a query string changes nothing."""
    assert _ask(server, "/healthz") == (200, b"ok\n")
    assert _ask(server, "/metrics?name=up") == (200, b"up 1\n")


def test_head_has_no_body(server: HealthServer) -> None:
    """HEAD tells the status only."""
    assert _ask(server, "/healthz", "HEAD") == (200, b"")


def test_other_paths_and_methods_are_refused(server: HealthServer) -> None:
    """Nothing else is served, and nothing can be written."""
    assert _ask(server, "/etc/passwd")[0] == 404
    assert _ask(server, "/metrics", "POST")[0] == 501


def test_garbage_does_not_stop_it(server: HealthServer) -> None:
    """A client that does not speak HTTP, or goes away, costs only its own connection."""
    for data in (b"\x00" * 300, b"GET " + b"x" * 100_000, b"GET / HTTP/1.1\r\n"):
        with (
            suppress(OSError),  # it may have hung up on the long line before that is sent whole
            socket.create_connection(("127.0.0.1", server.port), timeout=WAIT_S) as client,
        ):
            client.sendall(data)
    assert _ask(server, "/healthz")[0] == 200


def test_slow_clients_do_not_keep_a_probe_out(server: HealthServer) -> None:
    """Strangers hold every connection and send a byte now and then: the oldest gives way."""
    with ExitStack() as stack:
        held = [
            stack.enter_context(
                socket.create_connection(("127.0.0.1", server.port), timeout=WAIT_S)
            )
            for _ in range(40)
        ]
        answers = []
        deadline_s = time.monotonic() + WAIT_S
        while 200 not in answers and time.monotonic() < deadline_s:
            for one in held:
                with suppress(OSError):
                    one.send(b"G")
            with suppress(OSError, http.client.HTTPException):
                answers.append(_ask(server, "/healthz")[0])
        assert 200 in answers


def test_a_client_that_never_ends_its_handshake_keeps_nobody_out(
    broker: Broker, tmp_path: Path
) -> None:
    """With TLS. Plain HTTP gets no answer; the guard hears whom a certificate names."""
    authority = Authority()
    files = authority.files(tmp_path)
    seen: list[str | None] = []
    running = HealthServer(
        host="127.0.0.1",
        port=0,
        metrics=broker.metrics,
        metrics_content_type="text/plain",
        not_ready_reason=broker.not_ready_reason,
        guard=lambda _authorization, certificate, _peer: seen.append(certificate),
        tls=server_context(files),
    )
    running.start()
    client = ssl.create_default_context(cafile=files.ca_file)
    client.load_cert_chain(files.cert_file, files.key_file)
    with socket.create_connection(("127.0.0.1", running.port), timeout=WAIT_S):
        secured = http.client.HTTPSConnection(
            "localhost", running.port, timeout=WAIT_S, context=client
        )
        secured.request("GET", "/metrics")
        assert secured.getresponse().read() == b"up 1\n"
        secured.close()
        assert seen == ["localhost"]
        with pytest.raises((http.client.HTTPException, ConnectionError)):
            _ask(running, "/healthz")
    running.stop()


def test_a_failing_source_costs_one_scrape(server: HealthServer, broker: Broker) -> None:
    """An error inside a scrape closes that connection; the next request is answered."""
    broker.broken = True
    with pytest.raises((http.client.HTTPException, ConnectionError)):
        _ask(server, "/metrics")
    broker.broken = False
    assert _ask(server, "/metrics")[0] == 200


def test_a_taken_port_is_a_configuration_error(server: HealthServer) -> None:
    """The message names the address."""
    with pytest.raises(InvalidConfigError, match=str(server.port)):
        HealthServer(
            host="127.0.0.1",
            port=server.port,
            metrics=lambda: b"",
            metrics_content_type="text/plain",
            not_ready_reason=lambda: None,
        )
