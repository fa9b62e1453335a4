"""Bounding TCP connections of this process that a library accepts and offers no way to refuse."""

from __future__ import annotations

import array
import errno
import os
import resource
import socket
import stat
import struct
import sys
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import Final, TypeVar

_DESCRIPTORS: Final = Path("/proc/self/fd")  # Linux; elsewhere nothing is found, nothing is broken
_LISTED_MAX: Final = 65_536  # descriptors looked at when they cannot be listed
_Said = TypeVar("_Said")
_U32: Final = struct.Struct("@I")
_LAST_DATA_AT: Final = (44, 52)  # tcpi_last_data_sent, tcpi_last_data_recv of Linux's tcp_info
_TCP_INFO_BYTES: Final = 104
_SO_ATTACH_FILTER, _SO_DETACH_FILTER = 26, 27  # of Linux
# A program of the kernel's packet filter: drop a segment with SYN, which begins a connection, and
# take every other. Each instruction: the operation, how far to jump if true and if not, a value.
_DROP_SYN: Final = (
    (0x30, 0, 0, 13),  # load the byte of the TCP header that has the flags
    (0x45, 0, 1, 0x02),  # is SYN set?
    (0x06, 0, 0, 0),  # take nothing of it
    (0x06, 0, 0, 0xFFFFFFFF),  # take all of it
)


def sever(is_meant: Callable[[socket.socket], bool]) -> int:
    """Shut down every connected TCP socket that is meant; return how many. Its owner closes it.

    ``is_meant`` gets a copy of each socket, closed afterwards. An OSError from it means no.
    """
    try:
        descriptors = _listed()
    except OSError:
        return 0
    return sum(_sever(one, is_meant) for one in descriptors)


def sever_most_idle(
    is_meant: Callable[[socket.socket], bool],
    *,
    kept_max: int,
    is_last: Callable[[socket.socket], bool] = lambda _: False,
) -> tuple[int, int]:
    """Shut down the connections that are meant beyond ``kept_max``, those that are idle longest.

    The connections that ``is_last`` accepts are shut down only if there are no others. Return how
    many were meant at most, and how many of them were shut down. Linux only: elsewhere it is not
    known how long a connection is idle, and nothing is broken.
    """
    if 0 < (count := descriptor_count()) <= kept_max:
        return count, 0
    try:
        descriptors = _listed()
    except OSError:  # no descriptor is free for the listing
        descriptors = list(range(_highest()))
    if len(descriptors) <= kept_max:
        return len(descriptors), 0
    meant = [one for one in descriptors if _said(one, lambda found: _is_connected(found, is_meant))]
    if len(meant) <= kept_max:
        return len(meant), 0
    idle = sorted(
        (said, one)
        for one in meant
        if (said := _said(one, lambda found: (is_last(found), -_idle_ms(found)))) is not None
    )
    beyond = idle[: max(0, len(idle) - kept_max)]
    return len(idle), sum(_sever(one, is_meant) for _, one in beyond)


def descriptor_count() -> int:
    """Return how many descriptors are open, at little cost; 0: unknown (before Linux 6.2)."""
    try:
        return _DESCRIPTORS.stat().st_size
    except OSError:
        return 0


def listeners_on(port: int) -> list[socket.socket]:
    """Return copies of this process' sockets that listen on ``port``; the caller closes them.

    There may be one for each address of a host's name. Linux only: elsewhere none is found.
    """
    try:
        descriptors = _listed()
    except OSError:
        return []
    listeners = []
    for one in descriptors:
        with suppress(OSError):
            if stat.S_ISSOCK(os.fstat(one).st_mode):
                with _borrowed(one) as found:
                    if _listens(found) and found.getsockname()[1] == port:
                        # socket.dup() would make the library's socket a blocking one.
                        listeners.append(socket.socket(fileno=os.dup(found.fileno())))
    return listeners


def turn_away(listener: socket.socket, *, newcomers: bool) -> None:
    """Let the kernel drop each attempt to connect to this listener, or take them again.

    A client whose attempt is dropped tries again by itself, after a second for the first time.
    Connections that exist go on. Where the kernel has no such filter, all are taken.
    """
    if sys.platform != "linux":
        return
    if not newcomers:
        with suppress(OSError):  # there is no filter
            listener.setsockopt(socket.SOL_SOCKET, _SO_DETACH_FILTER, 0)
        return
    program = array.array("B", b"".join(struct.pack("=HBBI", *one) for one in _DROP_SYN))
    where = struct.pack("@HP", len(_DROP_SYN), program.buffer_info()[0])
    with suppress(OSError):
        listener.setsockopt(socket.SOL_SOCKET, _SO_ATTACH_FILTER, where)


def _listed() -> list[int]:
    return [int(one) for one in os.listdir(_DESCRIPTORS)]  # noqa: PTH208 - ten thousand Paths cost


def _listens(found: socket.socket) -> bool:
    return found.family in (socket.AF_INET, socket.AF_INET6) and bool(
        found.getsockopt(socket.SOL_SOCKET, socket.SO_ACCEPTCONN)
    )


def _highest() -> int:
    return min(resource.getrlimit(resource.RLIMIT_NOFILE)[0], _LISTED_MAX)


def _said(descriptor: int, ask: Callable[[socket.socket], _Said]) -> _Said | None:
    """Return what ``ask`` says of a TCP socket; None for any other descriptor, and for an OSError.

    Ten thousand are looked at in a row, so the descriptor is not copied. If its owner closes it
    meanwhile, and it becomes another socket, the answer is wrong once.
    """
    with suppress(OSError):
        # Type and protocol are told, and so not asked. The family is asked: addresses depend on it.
        found = socket.socket(-1, socket.SOCK_STREAM, 0, fileno=descriptor)
        try:
            return ask(found)
        finally:
            found.detach()
    return None


def _is_connected(found: socket.socket, is_meant: Callable[[socket.socket], bool]) -> bool:
    """Tell whether a TCP connection is meant; raises OSError for a listener, which has no peer."""
    is_internet = found.family in (socket.AF_INET, socket.AF_INET6)
    return is_internet and is_meant(found) and bool(found.getpeername())


def _idle_ms(connection: socket.socket) -> int:
    """Return the milliseconds since bytes came or went."""
    facts = connection.getsockopt(socket.IPPROTO_TCP, socket.TCP_INFO, _TCP_INFO_BYTES)
    return int(min(_U32.unpack_from(facts, at)[0] for at in _LAST_DATA_AT))


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
            if _is_connected(copy, is_meant):
                copy.shutdown(socket.SHUT_RDWR)
                return True
    return False
