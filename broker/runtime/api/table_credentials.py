"""Gives readers that may consume a stream credentials for its tables, and for nothing else."""

from __future__ import annotations

from collections.abc import Callable

from broker.core.access.table_policy import partition_of, reading_policy, session_name
from broker.errors import InvalidRequestError, NotShippedError
from broker.model.stream import Stream
from broker.model.table_credentials import StorePlace, TableCredentials
from broker.model.tiering import TableState
from broker.ports.access import RoleSessions


class VendedCredentials:
    """Implements ``TableCredentialsApi``."""

    def __init__(
        self,
        stream_of: Callable[[str], Stream],
        table_state: Callable[[Stream], TableState],
        key_snapshot: Callable[[Stream], str | None],
        sessions: RoleSessions,
        *,
        role_arn: str,
        place: StorePlace,
    ) -> None:
        """Look at tables by the two functions; ``key_snapshot`` returns a URI if there is one."""
        self._stream_of = stream_of
        self._table_state = table_state
        self._key_snapshot = key_snapshot
        self._sessions = sessions
        self._partition = partition_of(role_arn)
        self._place = place

    def vend(self, name: str, principal: str) -> TableCredentials:
        """See ``TableCredentialsApi.vend``.

        Only folders that hold a table of this very stream are opened to the reader: a folder that
        is empty now may become another stream's.
        """
        stream = self._stream_of(name)
        if not stream.config.tiering:
            raise InvalidRequestError(f"stream {name!r} has no table: its tiering is off")
        state = self._table_state(stream)
        if state.version is None:
            raise NotShippedError(f"stream {name!r} has no table yet: nothing of it was shipped")
        snapshot = self._key_snapshot(stream)
        tables = (state.table_uri, *([] if snapshot is None else [snapshot]))
        policy = reading_policy(tables, partition=self._partition)
        keys = self._sessions.open(session_name(principal), policy)
        return TableCredentials(tables=tables, keys=keys, place=self._place)
