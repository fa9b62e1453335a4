"""``/metrics``, ``/healthz`` and ``/readyz`` over HTTP or HTTPS, by default on the loopback only.

``/healthz`` says that the process answers. ``/readyz`` says whether to send it work: 503 with the
reason while it recovers, closes, or a log has failed. A ready broker's answer names each service
that it cannot reach now. Standard library only. Connections, request sizes and times are bounded.
When all places are taken, the oldest connection is broken for a new one, so that slow clients
cannot lock out a probe. A TLS handshake counts as part of a request, on the connection's thread.
Only GET and HEAD are answered, and no request is logged.
"""

from __future__ import annotations

import contextlib
import socket
import ssl
import threading
import time
from collections.abc import Callable, Sequence
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from typing import Any, Final

from broker.adapters.first_bytes import defer_silent, has_hung_up
from broker.adapters.http.shared_answer import SharedAnswer
from broker.adapters.tls.context import wrapped
from broker.core.access.certificates import principal_of
from broker.errors import AccessError, InvalidConfigError, UnauthenticatedError

_CONNECTIONS_MAX: Final = 32
_WAITING_MAX: Final = 512  # to be accepted; beyond it a probe tries again after a second only
_REQUEST_TIMEOUT_S: Final = 5.0
_PLACE_KEPT_S: Final = 0.25  # an older connection may be broken to make room for a new one
_TEXT: Final = "text/plain; charset=utf-8"

Readiness = Callable[[], str | None]  # None: ready; else the reason why not
# Raises AccessError unless the metrics may be seen: by the header Authorization, the name in the
# verified certificate of the client, and the address.
MetricsGuard = Callable[[str | None, str | None, str], None]
Missing = Callable[[], Sequence[str]]  # services that a ready broker cannot reach, a line each


class HealthServer:
    """A small HTTP server in a thread of its own."""

    def __init__(
        self,
        *,
        host: str,
        port: int,
        metrics: Callable[[], bytes],
        metrics_content_type: str,
        not_ready_reason: Readiness,
        missing: Missing = tuple,
        guard: MetricsGuard = lambda _authorization, _certificate, _peer: None,
        tls: ssl.SSLContext | None = None,
    ) -> None:
        """Bind the port (0 takes a free one); nothing is answered before :meth:`start`.

        ``metrics`` may be costly: callers who wait at the same time share an answer, and making
        answers takes at most a tenth of a processor. ``guard`` tells whether a caller may see the
        metrics; the two probes ask nobody. With ``tls`` only HTTPS is spoken.

        Raises:
            InvalidConfigError: the address cannot be bound.
        """
        try:
            self._server = _BoundedServer(
                (host, port),
                _handler(
                    SharedAnswer(metrics).get,
                    metrics_content_type,
                    not_ready_reason,
                    missing,
                    guard,
                ),
                tls,
            )
        except OSError as cause:
            raise InvalidConfigError(
                f"cannot listen on {host}:{port} for health and metrics: {cause.strerror}",
                host=host,
                port=port,
            ) from cause
        self._thread = threading.Thread(
            target=self._server.serve_forever, name="health-http", daemon=True
        )

    @property
    def port(self) -> int:
        """Port that it listens on."""
        return self._server.server_port

    def start(self) -> None:
        """Begin to answer; returns at once."""
        self._thread.start()

    def stop(self) -> None:
        """Stop answering and free the port. Blocks for at most half a second."""
        if self._thread.is_alive():
            self._server.shutdown()
            self._thread.join()
        self._server.server_close()


class _BoundedServer(ThreadingHTTPServer):
    """Bounds the connections, a thread each; breaks the oldest unless it has just begun."""

    daemon_threads = True
    block_on_close = False
    request_queue_size = _WAITING_MAX

    def __init__(
        self,
        address: tuple[str, int],
        handler: type[BaseHTTPRequestHandler],
        tls: ssl.SSLContext | None,
    ) -> None:
        if ":" in address[0]:
            self.address_family = socket.AF_INET6
        self._tls = tls
        self._lock = threading.Lock()
        self._open: dict[socket.socket, float] = {}  # when each began, the oldest first
        super().__init__(address, handler)
        defer_silent(self.socket)

    def get_request(self) -> tuple[socket.socket, Any]:
        raw, address = super().get_request()
        if has_hung_up(raw):
            raw.close()
            raise ConnectionAbortedError("the client has gone")  # socketserver takes the next one
        if self._tls is None:
            return raw, address
        return wrapped(self._tls, raw, server_side=True), address

    def finish_request(self, request: Any, client_address: Any) -> None:
        if isinstance(request, ssl.SSLSocket):
            request.settimeout(_REQUEST_TIMEOUT_S)
            request.do_handshake()
        super().finish_request(request, client_address)

    def process_request(self, request: Any, client_address: Any) -> None:
        if not self._make_room():
            self.shutdown_request(request)
            return
        with self._lock:
            self._open[request] = time.monotonic()
        try:
            super().process_request(request, client_address)
        except BaseException:  # no thread was started that would end it
            self._forget(request)
            raise

    def process_request_thread(self, request: Any, client_address: Any) -> None:
        try:
            super().process_request_thread(request, client_address)
        finally:
            self._forget(request)

    def _forget(self, request: socket.socket) -> None:
        with self._lock:
            self._open.pop(request, None)

    def _make_room(self) -> bool:
        """Break the oldest connection if there are too many; tell whether there is room now."""
        now_s = time.monotonic()
        with self._lock:
            self._end_late(now_s)
            if len(self._open) < _CONNECTIONS_MAX:
                return True
            oldest, began_s = next(iter(self._open.items()))
            if now_s - began_s < _PLACE_KEPT_S:
                return False
            self._break(oldest)
            return True

    def _end_late(self, now_s: float) -> None:
        """Break connections whose time for a request is over, even if bytes still arrive."""
        for request, began_s in list(self._open.items()):
            if now_s - began_s < _REQUEST_TIMEOUT_S:
                return
            self._break(request)

    def _break(self, request: socket.socket) -> None:
        del self._open[request]
        with contextlib.suppress(OSError):  # it has ended by itself
            # The socket, not TLS: after TLS's own shutdown the thread would read plain bytes.
            socket.socket.shutdown(request, socket.SHUT_RDWR)

    def handle_error(self, request: Any, client_address: Any) -> None:
        """Forget a client that went away; the base class would print a traceback."""


def _handler(
    metrics: Callable[[], bytes],
    metrics_content_type: str,
    not_ready_reason: Readiness,
    missing: Missing,
    guard: MetricsGuard,
) -> type[BaseHTTPRequestHandler]:
    """Return the request handler class that answers with these functions."""

    class Handler(BaseHTTPRequestHandler):
        timeout = _REQUEST_TIMEOUT_S
        server_version = "headwater"
        sys_version = ""

        def do_GET(self) -> None:
            """Answer one of the three paths."""
            match self.path.partition("?")[0]:
                case "/metrics":
                    self._answer(*self._seen_metrics())
                case "/healthz":
                    self._answer(200, _TEXT, b"ok\n")
                case "/readyz":
                    reason = not_ready_reason()
                    if reason is None:
                        lines = ["ready", *(f"missing: {one}" for one in missing())]
                        self._answer(200, _TEXT, "".join(f"{one}\n" for one in lines).encode())
                    else:
                        self._answer(503, _TEXT, f"not ready: {reason}\n".encode())
                case _:
                    self._answer(
                        404, _TEXT, b"not found: this port has /metrics, /healthz and /readyz\n"
                    )

        def _seen_metrics(self) -> tuple[int, str, bytes]:
            secured = self.request if isinstance(self.request, ssl.SSLSocket) else None
            certificate = None if secured is None else principal_of(secured.getpeercert() or {})
            try:
                guard(self.headers.get("Authorization"), certificate, self.client_address[0])
            except AccessError as error:
                proved = not isinstance(error, UnauthenticatedError)
                told = "" if proved else "; give a token as Authorization: Bearer ..."
                return 403 if proved else 401, _TEXT, f"{error.message}{told}\n".encode()
            return 200, metrics_content_type, metrics()

        do_HEAD = do_GET  # noqa: N815  # the base class calls it so

        def log_message(self, format: str, *args: Any) -> None:  # noqa: A002
            """Write nothing: probes come every few seconds for ever."""

        def _answer(self, status: int, content_type: str, body: bytes) -> None:
            self.send_response(status)
            self.send_header("Content-Type", content_type)
            self.send_header("Content-Length", str(len(body)))
            self.send_header("Cache-Control", "no-store")
            if status == 401:
                self.send_header("WWW-Authenticate", "Bearer")
            self.end_headers()
            if self.command != "HEAD":
                self.wfile.write(body)

    return Handler
