"""Leaving a leader that is mute: paused, or cut off, with its connection still open.

gRPC offers pyarrow no way to cancel a do_put, and TCP keeps a paused process's connection for
minutes. So while batches wait in vain, the other brokers are asked who leads; when it is somebody
else, the connections to the old leader are broken, which a producer survives by design.
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
    """Looks from time to time, on a thread of its own, once it is started.

    Args:
        progress: something that changes whenever an answer comes; None while none is awaited.
        leave: asks whether somebody else leads, and if so breaks the connection. May block.
    """

    def __init__(self, progress: Callable[[], object], leave: Callable[[], None]) -> None:
        self._progress = progress
        self._leave = leave
        self._ended = threading.Event()
        self._thread: threading.Thread | None = None

    def start(self) -> None:
        """Begin; again is fine."""
        if self._thread is None:
            self._thread = threading.Thread(target=self._run, name="headwater-stall", daemon=True)
            self._thread.start()

    def end(self) -> None:
        """End; does not wait."""
        self._ended.set()

    def _run(self) -> None:
        before: object = None
        while not self._ended.wait(CHECK_S):
            now = self._progress()
            if now is not None and now == before:
                self._leave()
            before = now


def sever(host: str, port: int) -> int:
    """Shut down every TCP connection of this process to a server; return how many."""
    hosts = {host}
    with suppress(OSError):
        hosts |= {str(found[4][0]) for found in socket.getaddrinfo(host, port)}

    def goes_there(connection: socket.socket) -> bool:
        peer = connection.getpeername()
        return peer[1] == port and str(peer[0]).removeprefix("::ffff:") in hosts

    return own_sockets.sever(goes_there)
