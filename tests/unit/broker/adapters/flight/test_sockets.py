"""The bound of connections, on sockets of this process."""

from __future__ import annotations

import ctypes
import os
import selectors
import socket
import threading
import time
from collections.abc import Callable
from contextlib import ExitStack
from pathlib import Path

import pytest

from broker.adapters.flight.sockets import ConnectionBound

KEPT = 4
FLOOD = 200  # far more than other descriptors of this process may hide
WAIT_S = 60
FREED_BYTES = 64 * 1024 * 1024
PAGE = os.sysconf("SC_PAGE_SIZE")


def test_the_kernel_keeps_a_short_queue_for_the_library() -> None:
    """Otherwise the library accepts thousands after the kernel was told to let nobody in."""
    with ExitStack() as stack:
        server = stack.enter_context(socket.create_server(("127.0.0.1", 0), backlog=1000))
        stack.callback(ConnectionBound(server.getsockname()[1], KEPT).stop)
        came = [stack.enter_context(socket.socket()) for _ in range(FLOOD)]
        for one in came:
            one.setblocking(False)
            one.connect_ex(server.getsockname())
        assert 0 < sum(map(_is_connected, came)) < FLOOD


@pytest.mark.skipif(not hasattr(ctypes.CDLL(None), "malloc_trim"), reason="not glibc")
def test_the_memory_of_broken_connections_goes_back_to_the_system() -> None:
    """A library frees it in pieces between others that stay, which the C library keeps."""
    with ExitStack() as stack:
        server = stack.enter_context(socket.create_server(("127.0.0.1", 0), backlog=FLOOD))
        where = server.getsockname()
        strangers = [stack.enter_context(socket.create_connection(where)) for _ in range(FLOOD)]
        served = [stack.enter_context(server.accept()[0]) for _ in range(FLOOD)]
        stack.callback(_scattered(FREED_BYTES))
        held = _resident_bytes()
        bound = ConnectionBound(where[1], KEPT)
        bound.start()
        stack.callback(bound.stop)
        looked = stack.enter_context(selectors.DefaultSelector())
        for stranger in strangers:
            looked.register(stranger, selectors.EVENT_READ)
        assert looked.select(WAIT_S), "none was broken"
        for one in served:
            one.close()
        until_s, pause = time.monotonic() + WAIT_S, threading.Event()
        while _resident_bytes() > held - FREED_BYTES // 2:
            assert time.monotonic() < until_s, f"{held >> 20} MiB, {_resident_bytes() >> 20} now"
            pause.wait(0.01)


def test_nobody_is_let_in_until_a_flood_is_freed() -> None:
    """The library that owns the connections frees them later than they are broken."""
    with ExitStack() as stack:
        server = stack.enter_context(socket.create_server(("127.0.0.1", 0), backlog=FLOOD))
        where = server.getsockname()
        strangers = [stack.enter_context(socket.create_connection(where)) for _ in range(FLOOD)]
        served = [stack.enter_context(server.accept()[0]) for _ in range(FLOOD)]
        bound = ConnectionBound(where[1], KEPT)
        bound.start()
        stack.callback(bound.stop)
        looked = stack.enter_context(selectors.DefaultSelector())
        for stranger in strangers:
            looked.register(stranger, selectors.EVENT_READ)
        assert looked.select(WAIT_S), "none was broken"
        late = stack.enter_context(socket.socket())
        late.setblocking(False)
        late.connect_ex(where)
        assert not _is_connected(late)
        for one in served:
            one.close()
        server.settimeout(WAIT_S)
        admitted = stack.enter_context(server.accept()[0])
        assert admitted.getpeername() == late.getsockname()


def _scattered(freed_bytes: int) -> Callable[[], None]:
    """Free memory between blocks that stay; return what frees those."""
    library = ctypes.CDLL(None)
    library.malloc.restype = ctypes.c_void_p
    size = 16 * 1024
    blocks = [ctypes.c_void_p(library.malloc(size)) for _ in range(2 * freed_bytes // size)]
    for block in blocks:
        ctypes.memset(block, 1, size)
    for block in blocks[::2]:
        library.free(block)

    def end() -> None:
        for block in blocks[1::2]:
            library.free(block)

    return end


def _resident_bytes() -> int:
    return int(Path("/proc/self/statm").read_text().split()[1]) * PAGE


def _is_connected(client: socket.socket) -> bool:
    try:
        client.getpeername()
    except OSError:
        return False
    return True
