"""Breaks connections of a Flight server; pyarrow has no call for this.

At the end: gRPC's orderly shutdown waits for every running call, and a do_put whose client is
silent never ends. So the TCP connections of calls that still run are broken. The client sees a
broken connection, after which a producer retries.

While it serves: gRPC accepts every connection, as long as the process has a descriptor. So beyond a
bound the connections that are idle longest are broken.
"""

from __future__ import annotations

import threading
from typing import Final

import structlog

from broker import own_sockets

_log = structlog.get_logger(__name__)
_CHECK_INTERVAL_S: Final = 0.5
_LOG_INTERVAL_S: Final = 60.0


def sever_connections(port: int) -> int:
    """Shut down every accepted TCP connection of this process on ``port``; return how many."""
    return own_sockets.sever(lambda connection: connection.getsockname()[1] == port)


class ConnectionBound:
    """Keeps the connections on one port below a bound; a thread of its own."""

    def __init__(self, port: int, connections_max: int) -> None:
        """Check nothing before :meth:`start`."""
        self._port = port
        self._connections_max = connections_max
        self._wanted = threading.Event()
        self._ended = False
        self._checks_until_log = 0
        self._thread = threading.Thread(target=self._run, name="flight-connections", daemon=True)
        self.severed_count = 0

    def start(self) -> None:
        """Begin to check twice a second."""
        self._thread.start()

    def check_now(self) -> None:
        """Check at once: the process has no free descriptor. Any thread; does not block."""
        self._wanted.set()

    def stop(self) -> None:
        """End the thread."""
        self._ended = True
        self._wanted.set()
        if self._thread.is_alive():
            self._thread.join()

    def _run(self) -> None:
        while not self._ended:
            self._wanted.wait(_CHECK_INTERVAL_S)
            self._wanted.clear()
            severed = own_sockets.sever_most_idle(
                lambda connection: connection.getsockname()[1] == self._port,
                kept_max=self._connections_max,
            )
            self.severed_count += severed
            self._log_severed(severed)

    def _log_severed(self, severed: int) -> None:
        """Log broken connections once a minute at most, so that a flood does not fill the log."""
        if severed and self._checks_until_log <= 0:
            _log.warning(
                "flight_connections_full",
                limit=self._connections_max,
                severed=severed,
                effect="the connections that were idle longest were broken; clients connect again",
            )
            self._checks_until_log = int(_LOG_INTERVAL_S / _CHECK_INTERVAL_S)
        self._checks_until_log -= 1
