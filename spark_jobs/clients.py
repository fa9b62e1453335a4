"""A process's clients, one per broker and user: the driver, and every worker that Spark reuses."""

from __future__ import annotations

import os
import threading
from typing import TYPE_CHECKING, Final

if TYPE_CHECKING:
    from headwater.client import Client

# A client reads these variables once: another address, certificate or token needs another client.
_VARIABLES: Final = ("HEADWATER_SERVER", "HEADWATER_TLS_", "HEADWATER_TOKEN")
_lock = threading.Lock()
_clients: dict[tuple[str | None, frozenset[tuple[str, str]]], Client] = {}


def client_of(server: str | Client | None) -> Client:
    """Return this process's client of a broker; None means HEADWATER_SERVER or the default.

    A client made here stays open until the process ends; a given client is returned as it is.
    Makes no request.
    """
    from headwater.client import Client  # noqa: PLC0415  (many importers never need a client)

    if isinstance(server, Client):
        return server
    variables = frozenset(one for one in os.environ.items() if one[0].startswith(_VARIABLES))
    with _lock:
        client = _clients.get((server, variables))
        if client is None:
            client = _clients[server, variables] = Client(server)
        return client
