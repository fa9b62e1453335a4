"""A server that takes connections and answers no call, for clients that must not wait for ever."""

from __future__ import annotations

import socket
import threading
from collections.abc import Iterator
from contextlib import contextmanager, suppress

_SETTINGS = bytes(3) + b"\x04" + bytes(5)  # an empty frame of HTTP/2, type SETTINGS


@contextmanager
def silent_server(*, greets: bool) -> Iterator[str]:
    """Listen; yields the Flight address.

    With ``greets`` a connection is greeted as HTTP/2 wants, so that gRPC takes it for a server;
    without, not a byte is sent.
    """
    taken: list[socket.socket] = []
    with socket.create_server(("127.0.0.1", 0), backlog=64) as listening:

        def take() -> None:
            with suppress(OSError):  # the end: nobody listens any more
                while True:
                    one, _ = listening.accept()
                    taken.append(one)
                    with suppress(OSError):
                        if greets:
                            one.sendall(_SETTINGS)

        thread = threading.Thread(target=take, name="silent-server")
        thread.start()
        try:
            yield f"grpc://127.0.0.1:{listening.getsockname()[1]}"
        finally:
            listening.shutdown(socket.SHUT_RDWR)  # accept returns
            thread.join()
            for one in taken:
                one.close()
