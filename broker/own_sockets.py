"""Breaking TCP connections of this process that a library holds and offers no way to end."""

from __future__ import annotations

import errno
import os
import resource
import socket
import stat
import struct
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import Final

_DESCRIPTORS: Final = Path("/proc/self/fd")  # Linux; elsewhere nothing is found, nothing is broken
_LISTED_MAX: Final = 65_536  # descriptors looked at when they cannot be listed
_U32: Final = struct.Struct("@I")
_LAST_DATA_AT: Final = (44, 52)  # tcpi_last_data_sent, tcpi_last_data_recv of Linux's tcp_info
_TCP_INFO_BYTES: Final = 104


def sever(is_meant: Callable[[socket.socket], bool]) -> int:
    """Shut down every connected TCP socket that is meant; return how many. Its owner closes it.

    ``is_meant`` gets a copy of each socket, closed afterwards. An OSError from it means no.
    """
    try:
        descriptors = [int(entry.name) for entry in _DESCRIPTORS.iterdir()]
    except OSError:
        return 0
    return sum(_sever(one, is_meant) for one in descriptors)


def sever_most_idle(is_meant: Callable[[socket.socket], bool], *, kept_max: int) -> int:
    """Shut down the connections that are meant beyond ``kept_max``, those that are idle longest.

    Linux only: elsewhere it is not known how long a connection is idle, and nothing is broken.
    """
    try:
        descriptors = [int(entry.name) for entry in _DESCRIPTORS.iterdir()]
    except OSError:  # no descriptor is free for the listing
        descriptors = list(range(_highest()))
    if len(descriptors) <= kept_max:
        return 0
    idle: list[tuple[int, int]] = []
    for one in descriptors:
        with suppress(OSError):
            if stat.S_ISSOCK(os.fstat(one).st_mode):
                idle += [(-ms, one) for ms in _idle_ms(one, is_meant)]
    idle.sort()
    return sum(_sever(one, is_meant) for _, one in idle[: max(0, len(idle) - kept_max)])


def _highest() -> int:
    return min(resource.getrlimit(resource.RLIMIT_NOFILE)[0], _LISTED_MAX)


def _idle_ms(descriptor: int, is_meant: Callable[[socket.socket], bool]) -> list[int]:
    """Return the milliseconds since bytes came or went; [] if the socket is not meant."""
    with _borrowed(descriptor) as connection:
        if connection.family not in (socket.AF_INET, socket.AF_INET6) or not is_meant(connection):
            return []
        connection.getpeername()  # a listening socket has none
        facts = connection.getsockopt(socket.IPPROTO_TCP, socket.TCP_INFO, _TCP_INFO_BYTES)
        sent_ms, received_ms = (_U32.unpack_from(facts, at)[0] for at in _LAST_DATA_AT)
        return [min(sent_ms, received_ms)]


@contextmanager
def _borrowed(descriptor: int) -> Iterator[socket.socket]:
    """Lend a socket object for a descriptor that another owns: a copy, or without room itself.

    Without a copy the owner may close the descriptor meanwhile, and it may become another socket.
    The worst that follows is that another connection is broken, after which its client retries.
    """
    try:
        copied = os.dup(descriptor)
    except OSError as cause:
        if cause.errno not in (errno.EMFILE, errno.ENFILE):
            raise
        itself = socket.socket(fileno=descriptor)
        try:
            yield itself
        finally:
            itself.detach()
        return
    try:
        copy = socket.socket(fileno=copied)
    except OSError:
        os.close(copied)  # another file has the number by now; `socket` does not close it
        raise
    with copy:
        yield copy


def _sever(descriptor: int, is_meant: Callable[[socket.socket], bool]) -> bool:
    with suppress(OSError):  # it was closed since it was listed, or is not connected
        if not stat.S_ISSOCK(os.fstat(descriptor).st_mode):
            return False
        with _borrowed(descriptor) as copy:
            if copy.family in (socket.AF_INET, socket.AF_INET6) and is_meant(copy):
                copy.getpeername()  # a listening socket has none
                copy.shutdown(socket.SHUT_RDWR)
                return True
    return False
