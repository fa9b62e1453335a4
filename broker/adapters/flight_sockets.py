"""Breaking the connections that keep a Flight server from stopping.

gRPC's orderly shutdown waits for every running call, and a do_put whose client is silent never
ends. pyarrow offers no deadline, so what is left after the orderly part loses its TCP connection:
to the client that is a broken connection, which a producer survives by design.
"""

from __future__ import annotations

import os
import socket
from pathlib import Path
from typing import Final

_DESCRIPTORS: Final = Path("/proc/self/fd")  # Linux; elsewhere nothing is found, nothing is broken


def sever_connections(port: int) -> int:
    """Shut down every accepted TCP connection of this process on ``port``; return how many."""
    return sum(_sever(int(entry.name), port) for entry in _entries())


def _entries() -> list[Path]:
    try:
        return list(_DESCRIPTORS.iterdir())
    except OSError:
        return []


def _sever(descriptor: int, port: int) -> bool:
    """Shut one descriptor down if it is such a connection; its owner still closes it."""
    try:
        copy = socket.socket(fileno=os.dup(descriptor))
    except OSError:
        return False  # not a socket, or closed since we listed it
    with copy:
        try:
            inet = copy.family in (socket.AF_INET, socket.AF_INET6)
            if not inet or copy.getsockname()[1] != port:
                return False
            copy.getpeername()  # a listening socket has none
            copy.shutdown(socket.SHUT_RDWR)
        except OSError:
            return False
    return True
