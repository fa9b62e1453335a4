"""A TCP proxy on the loopback that a test can cut, stall or point elsewhere.

The client keeps its address while connections break under it, as when a broker restarts.
"""

from __future__ import annotations

import contextlib
import socket
import threading
from types import TracebackType
from typing import Final, Self

_CHUNK: Final = 64 * 1024


class TcpProxy:
    """Forwards every connection to ``target_port`` on the loopback until it is told otherwise."""

    def __init__(self, target_port: int, *, greeting_s: float = 0.0) -> None:
        """``greeting_s``: how long nothing passes on a new connection, as from a far server."""
        self.target_port = target_port
        self.greeting_s = greeting_s
        self.closed = threading.Event()
        self.connections_count = 0
        self._answers_left: int | None = None  # bytes of answers let through before the next cut
        self._lock = threading.Lock()
        self._links: set[_Link] = set()
        self._refusing = False
        self._listener = socket.create_server(("127.0.0.1", 0))
        self.port = int(self._listener.getsockname()[1])
        self._acceptor = threading.Thread(target=self._accept, name="proxy-accept", daemon=True)
        self._acceptor.start()

    def cut(self) -> None:
        """Break every connection now; new ones are still accepted."""
        with self._lock:
            links, self._links = self._links, set()
        for link in links:
            link.shut()

    def cut_after_answers(self, size: int) -> None:
        """Break everything as soon as ``size`` more bytes came back from the server."""
        with self._lock:
            self._answers_left = size

    def refuse(self, refusing: bool) -> None:
        """Close new connections at once, as a broker that is down; or serve again."""
        self._refusing = refusing

    def close(self) -> None:
        """Break every connection and stop listening."""
        self.closed.set()
        _shut(self._listener)
        self._acceptor.join(10)
        self._listener.close()
        with self._lock:
            links = list(self._links)
        self.cut()
        for link in links:
            link.thread.join(10)

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        self.close()

    def _accept(self) -> None:
        while True:
            try:
                client, _ = self._listener.accept()
            except OSError:
                return
            try:
                if self._refusing:
                    raise ConnectionRefusedError
                server = socket.create_connection(("127.0.0.1", self.target_port))
            except OSError:
                client.close()
                continue
            self.connections_count += 1
            link = _Link(self, client, server)
            with self._lock:
                self._links.add(link)
            link.thread.start()

    def let_through(self, size: int) -> int:
        """Return how many of ``size`` bytes of an answer may pass."""
        with self._lock:
            if self._answers_left is None:
                return size
            passed = min(size, self._answers_left)
            self._answers_left -= passed
            if self._answers_left == 0:
                self._answers_left = None
            return passed

    def forget(self, link: _Link) -> None:
        """Stop counting a connection that has ended."""
        with self._lock:
            self._links.discard(link)


class _Link:
    """One connection through the proxy: two sockets, a pump in each direction."""

    def __init__(self, proxy: TcpProxy, client: socket.socket, server: socket.socket) -> None:
        self._proxy = proxy
        self._client = client
        self._server = server
        self.thread = threading.Thread(target=self._run, name="proxy-link", daemon=True)

    def shut(self) -> None:
        """Break both connections; the pumps end."""
        _shut(self._client)
        _shut(self._server)

    def _run(self) -> None:
        self._proxy.closed.wait(self._proxy.greeting_s)
        for end in (self._client, self._server):
            end.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
        requests = threading.Thread(target=self._pump_requests, name="proxy-pump", daemon=True)
        requests.start()
        self._pump_answers()
        self.shut()
        requests.join()
        self._client.close()
        self._server.close()
        self._proxy.forget(self)

    def _pump_requests(self) -> None:
        with contextlib.suppress(OSError):
            while data := self._client.recv(_CHUNK):
                self._server.sendall(data)
        self.shut()

    def _pump_answers(self) -> None:
        with contextlib.suppress(OSError):
            while data := self._server.recv(_CHUNK):
                passed = self._proxy.let_through(len(data))
                self._client.sendall(data[:passed])
                if passed < len(data):
                    self._proxy.cut()
                    return


def _shut(end: socket.socket) -> None:
    with contextlib.suppress(OSError):
        end.shutdown(socket.SHUT_RDWR)
