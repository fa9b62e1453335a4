"""One client per broker and process: the driver's, and one in each Python worker Spark reuses."""

from __future__ import annotations

import threading
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from headwater.client import Client

_lock = threading.Lock()
_clients: dict[str | None, Client] = {}


def client_of(server: str | None) -> Client:
    """Return this process's client of a broker; None means HEADWATER_SERVER or the default.

    It stays open until the process ends. Makes no request.
    """
    from headwater.client import Client  # noqa: PLC0415  (Spark imports us where it is not needed)

    with _lock:
        client = _clients.get(server)
        if client is None:
            client = _clients[server] = Client(server)
        return client
