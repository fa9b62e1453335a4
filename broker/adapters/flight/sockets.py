"""Breaks connections of a Flight server, and turns new ones away; pyarrow has no call for this.

At the end: gRPC's orderly shutdown waits for every running call, and a do_put whose client is
silent never ends. So the TCP connections of calls that still run are broken. The client sees a
broken connection, after which a producer retries.

While it serves: gRPC accepts every connection, as long as the process has a descriptor. So beyond a
bound connections are broken: first those without an admitted call, and of them the idlest. gRPC
accepts a flood faster than it frees what was broken, so a tenth beyond the bound the kernel drops
attempts to connect until it has. The kernel's queue of connections is short, because gRPC accepts
what is in it whatever the kernel does by then. Honest newcomers are turned away with all others, so
the check is repeated until there is room.
"""

from __future__ import annotations

import socket
import threading
import time
from typing import Final
from urllib.parse import quote

import structlog

from broker import own_sockets

_log = structlog.get_logger(__name__)
_CHECK_INTERVAL_S: Final = 0.5  # connections are counted
_CHECK_SHARE: Final = 0.2  # of the time goes into checks while newcomers are turned away, at most
_LOOK_INTERVAL_S: Final = 0.02  # it is looked whether there are many more descriptors than then
_LOG_INTERVAL_S: Final = 60.0
_IPV4_IN_IPV6: Final = "::ffff:"
_QUEUE_MAX: Final = 128  # connections that gRPC has not accepted yet; its own choice is 4096


def sever_connections(port: int) -> int:
    """Shut down every accepted TCP connection of this process on ``port``; return how many."""
    return own_sockets.sever(lambda connection: connection.getsockname()[1] == port)


class KnownPeers:
    """Which connections have had a call that was admitted; strangers have none. Thread-safe."""

    def __init__(self, peers_max: int) -> None:
        self._peers_max = peers_max
        self._lock = threading.Lock()
        self._peers: dict[str, None] = {}  # as gRPC writes them; the newest last

    def add(self, peer: str) -> None:
        """Note an admitted call of a connection; the one that called longest ago is forgotten."""
        with self._lock:
            self._peers.pop(peer, None)
            self._peers[peer] = None
            if len(self._peers) > self._peers_max:
                del self._peers[next(iter(self._peers))]

    def has(self, connection: socket.socket) -> bool:
        """Tell whether an accepted connection is among them; raises OSError if it has ended."""
        name = peer_name(connection)
        with self._lock:
            return name in self._peers


def peer_name(connection: socket.socket) -> str:
    """Return the peer of a TCP connection as gRPC writes it, ``ipv4:127.0.0.1:7410``."""
    host, port = connection.getpeername()[:2]
    if connection.family == socket.AF_INET:
        return f"ipv4:{host}:{port}"
    if host.startswith(_IPV4_IN_IPV6):
        return f"ipv4:{host.removeprefix(_IPV4_IN_IPV6)}:{port}"
    return f"ipv6:{quote(f'[{host}]', safe=':')}:{port}"


class ConnectionBound:
    """Keeps the connections on one port below a bound; a thread of its own."""

    def __init__(self, port: int, connections_max: int, known: KnownPeers) -> None:
        """Check nothing before :meth:`start`."""
        self._port = port
        self._known = known
        self._connections_max = connections_max
        self._flood_from = connections_max + connections_max // 10
        self._listeners = own_sockets.listeners_on(port)
        for one in self._listeners:
            one.listen(_QUEUE_MAX)
        self._wanted = threading.Event()
        self._ended = False
        self._others_count = 0  # descriptors that are not such connections
        self._turns_away = False
        self._check_took_s = 0.0
        self._checked_s = self._logged_s = float("-inf")
        self._thread = threading.Thread(target=self._run, name="flight-connections", daemon=True)
        self.severed_count = 0

    def start(self) -> None:
        """Begin to check twice a second, and at once when there are suddenly too many."""
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
        for one in self._listeners:
            one.close()

    def _run(self) -> None:
        while not self._ended:
            wanted = self._wanted.wait(_LOOK_INTERVAL_S)
            self._wanted.clear()
            count = own_sockets.descriptor_count()
            flood = count - self._others_count > self._flood_from
            due = time.monotonic() - self._checked_s > self._interval_s(flood)
            if wanted or due or (flood and not self._turns_away):
                self._turn_away(flood)  # before the check, which takes time
                flood = self._check()
            self._turn_away(flood)

    def _interval_s(self, flood: bool) -> float:
        """Return how long to wait after a check; what waits in the queue comes in after a check."""
        if flood and self._turns_away:
            return min(_CHECK_INTERVAL_S, self._check_took_s / _CHECK_SHARE)
        return _CHECK_INTERVAL_S

    def _check(self) -> bool:
        """Break the connections beyond the bound; return whether there were far more."""
        began_s = time.monotonic()
        found, severed = own_sockets.sever_most_idle(
            lambda connection: connection.getsockname()[1] == self._port,
            kept_max=self._connections_max,
            is_last=self._known.has,
        )
        self._others_count = max(0, own_sockets.descriptor_count() - found)
        self._checked_s = time.monotonic()
        self._check_took_s = self._checked_s - began_s
        self.severed_count += severed
        self._log_severed(severed)
        return found > self._flood_from

    def _turn_away(self, newcomers: bool) -> None:
        if newcomers != self._turns_away:
            self._turns_away = newcomers
            for one in self._listeners:
                own_sockets.turn_away(one, newcomers=newcomers)

    def _log_severed(self, severed: int) -> None:
        """Log broken connections once a minute at most, so that a flood does not fill the log."""
        if severed and self._checked_s - self._logged_s > _LOG_INTERVAL_S:
            _log.warning(
                "flight_connections_full",
                limit=self._connections_max,
                severed=severed,
                effect="connections without a call, then the idlest, were broken; clients retry",
            )
            self._logged_s = self._checked_s
