"""One client per broker in each process: the driver, and every Python worker that Spark reuses."""

from __future__ import annotations

import threading
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from headwater.client import Client

_lock = threading.Lock()
_clients: dict[str | None, Client] = {}


def client_of(server: str | Client | None) -> Client:
    """Return this process's client of a broker; None means HEADWATER_SERVER or the default.

    A client made here stays open until the process ends; a given client is returned as it is.
    Makes no request.
    """
    from headwater.client import Client  # noqa: PLC0415  (many importers never need a client)

    if isinstance(server, Client):
        return server
    with _lock:
        client = _clients.get(server)
        if client is None:
            client = _clients[server] = Client(server)
        return client
