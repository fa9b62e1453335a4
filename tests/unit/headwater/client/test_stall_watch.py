"""Breaking the connections to one server, and no others."""

from __future__ import annotations

import socket

from headwater.client.stall_watch import sever


def test_only_connections_to_that_server_end() -> None:
    """Neither another server's connection nor a server's own end of it is touched."""
    with (
        socket.create_server(("127.0.0.1", 0)) as left,
        socket.create_server(("127.0.0.1", 0)) as kept,
        socket.create_connection(left.getsockname()) as one,
        socket.create_connection(kept.getsockname()) as two,
    ):
        for each in (one, two):
            each.settimeout(10)
        accepted, _ = kept.accept()
        with accepted:
            assert sever("127.0.0.1", left.getsockname()[1]) == 1
            assert one.recv(1) == b""
            accepted.sendall(b"x")
            assert two.recv(1) == b"x"
