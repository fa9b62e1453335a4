"""Breaking TCP connections of this process that a library holds and offers no way to end."""

from __future__ import annotations

import os
import socket
import stat
from collections.abc import Callable
from contextlib import suppress
from pathlib import Path
from typing import Final

_DESCRIPTORS: Final = Path("/proc/self/fd")  # Linux; elsewhere nothing is found, nothing is broken


def sever(is_meant: Callable[[socket.socket], bool]) -> int:
    """Shut down every connected TCP socket that is meant; return how many. Its owner closes it.

    ``is_meant`` gets a copy of each socket, closed afterwards. An OSError from it means no.
    """
    try:
        descriptors = [int(entry.name) for entry in _DESCRIPTORS.iterdir()]
    except OSError:
        return 0
    return sum(_sever(one, is_meant) for one in descriptors)


def _sever(descriptor: int, is_meant: Callable[[socket.socket], bool]) -> bool:
    with suppress(OSError):  # it was closed since it was listed, or is not connected
        if not stat.S_ISSOCK(os.fstat(descriptor).st_mode):
            return False
        copied = os.dup(descriptor)
        try:
            copy = socket.socket(fileno=copied)
        except OSError:
            os.close(copied)  # another file has the number by now; `socket` does not close it
            raise
        with copy:
            if copy.family in (socket.AF_INET, socket.AF_INET6) and is_meant(copy):
                copy.getpeername()  # a listening socket has none
                copy.shutdown(socket.SHUT_RDWR)
                return True
    return False
