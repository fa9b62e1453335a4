"""Leaving a leader that is mute: paused, or cut off, with its connection still open.

gRPC offers pyarrow no way to cancel a do_put, and TCP keeps a paused process's connection for
minutes. So while batches wait in vain, the other brokers are asked who leads; when it is somebody
else, the connections to the old leader are broken, which a producer survives by design.
"""

from __future__ import annotations

import os
import socket
import threading
from collections.abc import Callable
from contextlib import suppress
from pathlib import Path
from typing import Final

CHECK_S: Final = 0.5
_DESCRIPTORS: Final = Path("/proc/self/fd")  # Linux; elsewhere nothing is found, nothing is broken


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
    try:
        descriptors = [int(entry.name) for entry in _DESCRIPTORS.iterdir()]
    except OSError:
        return 0
    return sum(_sever(one, hosts, port) for one in descriptors)


def _sever(descriptor: int, hosts: set[str], port: int) -> bool:
    """Shut one descriptor down if it is such a connection; its owner still closes it."""
    try:
        copy = socket.socket(fileno=os.dup(descriptor))
    except OSError:
        return False  # not a socket, or closed since we listed it
    with copy:
        try:
            if copy.family not in (socket.AF_INET, socket.AF_INET6):
                return False
            peer = copy.getpeername()
            if peer[1] != port or str(peer[0]).removeprefix("::ffff:") not in hosts:
                return False
            copy.shutdown(socket.SHUT_RDWR)
        except OSError:
            return False
    return True
