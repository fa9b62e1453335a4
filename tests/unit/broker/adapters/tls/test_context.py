"""A connection that is reset before its TLS begins is not lost: its owner closes it."""

from __future__ import annotations

import select
import socket
import struct
from collections.abc import Iterator
from pathlib import Path

import pytest

from broker.adapters.tls.context import server_context, wrapped
from simkit.servers.certificates import Authority


class _ResetAtDetach(socket.socket):
    """Its connection is reset when wrap_socket takes its descriptor."""

    caller: socket.socket | None = None

    def detach(self) -> int:
        """Reset the connection, then give the descriptor away."""
        if self.caller is not None:
            _reset(self.caller)
            select.select([self], [], [])  # the reset has arrived
        return super().detach()


@pytest.fixture
def pair() -> Iterator[tuple[socket.socket, _ResetAtDetach]]:
    """Return both sides of a connection, the accepted one last."""
    with socket.create_server(("127.0.0.1", 0)) as listener:
        caller = socket.create_connection(listener.getsockname())
        accepted, _ = listener.accept()
    with caller, _ResetAtDetach(fileno=accepted.detach()) as plain:
        yield caller, plain


@pytest.mark.parametrize("when", ["before", "within"])
def test_the_handshake_of_a_reset_connection_fails(
    pair: tuple[socket.socket, _ResetAtDetach], when: str, tmp_path: Path
) -> None:
    """Python 3.11's wrap_socket raises in its middle, and nobody closes what it has taken."""
    caller, plain = pair
    context = server_context(Authority(days=1).files(tmp_path, uris=()))
    if when == "within":
        plain.caller = caller
    else:
        _reset(caller)
        select.select([plain], [], [])
    with wrapped(context, plain, server_side=True) as secured:
        with pytest.raises(OSError, match="reset"):
            secured.do_handshake()
        assert secured.getpeername() is None


def test_a_connection_tells_its_peer(
    pair: tuple[socket.socket, _ResetAtDetach], tmp_path: Path
) -> None:
    """Only a connection that is gone has no peer."""
    caller, plain = pair
    context = server_context(Authority(days=1).files(tmp_path, uris=()))
    with wrapped(context, plain, server_side=True) as secured:
        assert secured.getpeername() == caller.getsockname()


def _reset(caller: socket.socket) -> None:
    """Close one side so that the other side's connection is reset."""
    caller.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, struct.pack("ii", 1, 0))
    caller.close()
