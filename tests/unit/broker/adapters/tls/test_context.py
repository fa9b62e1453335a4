"""A connection that is reset before its TLS begins stays with the caller, who closes it."""

from __future__ import annotations

import select
import socket
import ssl
import struct

import pytest

from broker.adapters.tls.context import wrapped


def test_a_reset_connection_keeps_its_descriptor() -> None:
    """Without the question for the peer's name, wrap_socket has taken it and lost it."""
    with socket.create_server(("127.0.0.1", 0)) as listener:
        caller = socket.create_connection(listener.getsockname())
        plain, _ = listener.accept()
    with plain:
        caller.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, struct.pack("ii", 1, 0))
        caller.close()  # with this option, a reset
        select.select([plain], [], [])  # the reset has arrived
        context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
        with pytest.raises(OSError, match="not connected"):
            wrapped(context, plain, server_side=True)
        assert plain.fileno() >= 0
