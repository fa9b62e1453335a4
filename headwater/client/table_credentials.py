"""Credentials for a stream's tables, from the broker: once on demand, or kept good for a reader.

They stay in the memory of this process. A source asks again before they end.
"""

from __future__ import annotations

import functools
import threading
import time
from typing import Final

from broker.codec.flight.table_credentials import from_values
from broker.errors import AccessError, EnvelopeError, InvalidRequestError
from broker.model.ids import StreamUuid
from broker.model.table_credentials import StorePlace, TableCredentials
from headwater.client.address import Addresses
from headwater.client.client import Client
from tiering.store.location import Credentials

_TIMEOUT_MS: Final = 30_000
_LEFT_US_MIN: Final = 300_000_000  # with less left, others are asked for
_SOURCES_MAX: Final = 64


def table_credentials(client: Client, stream: str) -> TableCredentials:
    """Ask for credentials that read the tables of a stream and nothing else.

    Raises:
        InvalidRequestError: the brokers vend no credentials (``lake.reader_role_arn``).
        AccessError: this client may not consume the stream.
        NotShippedError: the stream has no table yet.
        RemoteTierUnavailableError: the brokers cannot get credentials now.
        UnknownStreamError.
    """
    found = client.call("table_credentials", {"name": stream}, timeout_ms=_TIMEOUT_MS)
    if len(found) != 1:
        raise EnvelopeError(f"the broker answered with {len(found)} credentials, not 1")
    return from_values(found[0])


class VendedKeys:
    """Credentials for one stream's tables that do not end while somebody uses them. Any thread.

    It connects for itself, so it outlives the client of the reader that it was made for.
    """

    def __init__(self, addresses: Addresses, stream: str, _stream_uuid: StreamUuid) -> None:
        """Ask nothing yet. A stream that was created again has another table: another source."""
        self._addresses = addresses
        self._stream = stream
        self._lock = threading.Lock()
        self._held: TableCredentials | None = None

    @property
    def place(self) -> StorePlace:
        """How the brokers reach the store. May block, as :meth:`__call__`."""
        return self._good().place

    def __call__(self) -> Credentials:
        """Return keys that last for five minutes more. Raises as :func:`table_credentials`."""
        keys = self._good().keys
        return Credentials(
            access_key_id=keys.access_key_id,
            secret_access_key=keys.secret_access_key,
            session_token=keys.session_token,
            expires_us=keys.expires_us,
        )

    def may_read(self, uri: str) -> bool:
        """Tell whether the credentials are good for the table at a URI. May block."""
        return uri in self._good().tables

    def _good(self) -> TableCredentials:
        with self._lock:
            now_us = time.time_ns() // 1000
            if self._held is None or self._held.keys.expires_us - now_us < _LEFT_US_MIN:
                with Client(self._addresses) as client:
                    self._held = table_credentials(client, self._stream)
            return self._held


_source_of = functools.lru_cache(_SOURCES_MAX)(VendedKeys)  # shared by readers of a process


def vended_by(addresses: Addresses, stream: str, stream_uuid: StreamUuid) -> VendedKeys | None:
    """Return the source of credentials for a stream; None if the brokers vend none. May block.

    Raises as :func:`table_credentials`, for other reasons than that one.
    """
    source = _source_of(addresses, stream, stream_uuid)
    try:
        source()
    except AccessError:
        raise
    except InvalidRequestError as refused:
        if refused.facts.get("field") != "action":
            raise
        return None
    return source
