"""Connections whose client never says anything cost no thread.

For doors where the client speaks first, and each connection that is let in gets a thread.
"""

from __future__ import annotations

import contextlib
import socket
from typing import Final

_SILENT_S: Final = 1  # then the connection is handed over as it is
_DEFER_ACCEPT: Final = getattr(socket, "TCP_DEFER_ACCEPT", None)  # of Linux; elsewhere all come


def defer_silent(listener: socket.socket) -> None:
    """Let the kernel keep a new connection until its client has said something, or hung up.

    A connection that stays silent comes after a second, or later. A system that cannot do this
    hands each connection over at once.
    """
    if _DEFER_ACCEPT is not None:
        with contextlib.suppress(OSError):
            listener.setsockopt(socket.IPPROTO_TCP, _DEFER_ACCEPT, _SILENT_S)


def has_hung_up(accepted: socket.socket) -> bool:
    """Tell whether the client of a connection has gone without a word; never waits."""
    before_s = accepted.gettimeout()
    try:
        accepted.settimeout(0)
        return not accepted.recv(1, socket.MSG_PEEK)
    except BlockingIOError:
        return False  # silent, but there
    except OSError:
        return True
    finally:
        with contextlib.suppress(OSError):
            accepted.settimeout(before_s)
