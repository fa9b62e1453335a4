"""Breaking the connections that keep a Flight server from stopping.

gRPC's orderly shutdown waits for every running call, and a do_put whose client is silent never
ends. pyarrow offers no deadline. So the TCP connections of calls that still run are broken. The
client sees a broken connection, after which a producer retries.
"""

from __future__ import annotations

from broker import own_sockets


def sever_connections(port: int) -> int:
    """Shut down every accepted TCP connection of this process on ``port``; return how many."""
    return own_sockets.sever(lambda connection: connection.getsockname()[1] == port)
