"""Breaking the connections that keep a Flight server from stopping.

gRPC's orderly shutdown waits for every running call, and a do_put whose client is silent never
ends. pyarrow offers no deadline, so what is left after the orderly part loses its TCP connection:
to the client that is a broken connection, which a producer survives by design.
"""

from __future__ import annotations

from broker import own_sockets


def sever_connections(port: int) -> int:
    """Shut down every accepted TCP connection of this process on ``port``; return how many."""
    return own_sockets.sever(lambda connection: connection.getsockname()[1] == port)
