"""Leaves a leader that does not answer, such as a paused process, while its connection is open.

pyarrow has no way to cancel a do_put, and TCP keeps the connection of a paused process for minutes.
So while batches get no answer, this asks the other brokers for the leader. If another broker leads,
this breaks the connections to the old leader; a producer then reconnects and sends again.
"""

from __future__ import annotations

import socket
import threading
from collections.abc import Callable
from contextlib import suppress
from typing import Final

from broker import own_sockets

CHECK_S: Final = 0.5


class StallWatch:
    """Checks for progress every ``CHECK_S``, on a thread of its own, after :meth:`start`.

    Args:
        progress: Returns a value that changes with every answer; None while none is awaited.
        leave: Asks whether another broker leads, and if so breaks the connection. May block.
    """

    def __init__(self, progress: Callable[[], object], leave: Callable[[], None]) -> None:
        self._progress = progress
        self._leave = leave
        self._ended = threading.Event()
        self._thread: threading.Thread | None = None

    def start(self) -> None:
        """Start the thread; a second call does nothing."""
        if self._thread is None:
            self._thread = threading.Thread(target=self._run, name="headwater-stall", daemon=True)
            self._thread.start()

    def end(self) -> None:
        """Tell the thread to end; does not wait for it."""
        self._ended.set()

    def _run(self) -> None:
        before: object = None
        while not self._ended.wait(CHECK_S):
            now = self._progress()
            if now is not None and now == before:
                self._leave()
            before = now


def sever(host: str, port: int) -> int:
    """Shut down every TCP connection of this process to a server; return their number."""
    hosts = {host}
    with suppress(OSError):
        hosts |= {str(found[4][0]) for found in socket.getaddrinfo(host, port)}

    def goes_there(connection: socket.socket) -> bool:
        peer = connection.getpeername()
        return peer[1] == port and str(peer[0]).removeprefix("::ffff:") in hosts

    return own_sockets.sever(goes_there)
