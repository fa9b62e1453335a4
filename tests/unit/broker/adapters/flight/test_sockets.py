"""The bound of connections, on sockets of this process."""

from __future__ import annotations

import selectors
import socket
from contextlib import ExitStack

from broker.adapters.flight.sockets import ConnectionBound

KEPT = 4
FLOOD = 200  # far more than other descriptors of this process may hide
WAIT_S = 30


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


def _is_connected(client: socket.socket) -> bool:
    try:
        client.getpeername()
    except OSError:
        return False
    return True
