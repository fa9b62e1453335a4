"""The leases of a streaming query, one per stream, held by the process that plans its batches.

A lease keeps the local log from the cold end at the time when the lease was taken. A query may run
for years, so its lease is regularly replaced by a new one; otherwise the local disk would fill up.
Records that the old lease held and the new one does not are in the table by then.

A lost lease is not an error by itself. The planner gets the loss and checks whether records that it
still needs are gone.
"""

from __future__ import annotations

import logging
import math
import time
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import TYPE_CHECKING, Final

from broker.errors import HeadwaterError, UnknownStreamError
from broker.model.cut import Lease
from broker.model.ids import LeaseId, StreamUuid
from broker.model.offsets import Offset
from headwater.reads.lease_keeper import KEEPER, LEASE_TTL_MS_DEFAULT, LeaseKeeper
from spark_jobs.source.lookup import patiently
from spark_jobs.source.partitions import TableRef

if TYPE_CHECKING:
    from headwater.client import Client

_YOUNG_S: Final = 120.0  # a lease older than this is replaced
_CUT_TTL_MS: Final = 1000  # for a cut that is taken only to find the table's location
_TABLE_RETRY_S: Final = 60.0  # pause before the table is searched again after a failure

_log = logging.getLogger("headwater.read")


@dataclass(slots=True)
class _StreamHold:
    lease_id: LeaseId
    since_s: float


class StreamHolds:
    """Takes and renews the leases of a query's streams. One thread."""

    def __init__(
        self,
        client: Client,
        *,
        keeper: LeaseKeeper = KEEPER,
        ttl_ms: int = LEASE_TTL_MS_DEFAULT,
        monotonic_s: Callable[[], float] = time.monotonic,
    ) -> None:
        self._client = client
        self._keeper = keeper
        self._ttl_ms = ttl_ms
        self._monotonic_s = monotonic_s
        self._held: dict[str, _StreamHold] = {}
        self._tables: dict[StreamUuid, TableRef] = {}
        self._table_again_s = -math.inf  # after a failure: no new search before this time

    def hold(self, stream: str) -> HeadwaterError | None:
        """Make sure that a lease holds a stream; return the error if the lease before was lost.

        A stream that does not exist is not held; the next look-up of the stream raises the error.
        """
        held = self._held.get(stream)
        lost = None if held is None else self._keeper.lost(held.lease_id)
        if held is not None and lost is None and self._monotonic_s() - held.since_s < _YOUNG_S:
            return None
        try:
            lease = patiently(lambda: self._client.take_lease(stream, ttl_ms=self._ttl_ms))
        except UnknownStreamError:
            return lost
        self._keep(stream, lease)
        if held is not None:
            self._keeper.release(held.lease_id)
        return lost

    def table(self, stream: str, uuid: StreamUuid, starts: Mapping[int, Offset]) -> TableRef | None:
        """Return the location of the stream's table; None if it is not known, or not needed.

        A batch that begins above the cold end needs no table, and must not wait for a store that
        does not answer. After a failure the broker is asked again later; until then each task asks.

        Args:
            stream: the stream's name.
            uuid: its incarnation.
            starts: the first offset of the batch in each partition.
        """
        if uuid in self._tables:
            return self._tables[uuid]
        if self._monotonic_s() < self._table_again_s:
            return None
        try:
            cold = any(
                status.cold.end > starts.get(status.partition, status.cold.end)
                for status in self._client.tier_status(stream)
            )
            ref = find_table(self._client, stream, uuid) if cold else None
        except HeadwaterError as error:
            _log.info("table_not_known stream=%s error=%s", stream, error)
            self._table_again_s = self._monotonic_s() + _TABLE_RETRY_S
            return None
        if ref is not None:
            self._tables[uuid] = ref
        return ref

    def release(self) -> None:
        """End every lease."""
        held, self._held = self._held, {}
        for one in held.values():
            self._keeper.release(one.lease_id)

    def _keep(self, stream: str, lease: Lease) -> None:
        self._held[stream] = _StreamHold(lease.lease_id, self._monotonic_s())
        self._keeper.hold(
            lease,
            client=self._client,
            ttl_ms=self._ttl_ms,
            drop_at_end=True,
            what=f"stream={stream} query",
        )


def find_table(client: Client, stream: str, uuid: StreamUuid | None) -> TableRef | None:
    """Ask the broker for the location of a stream's table.

    None if there is no table, or if it belongs to another incarnation than ``uuid``.

    Raises:
        HeadwaterError: the broker or the table does not answer, or there is no such stream.
    """
    cut = client.cut(stream, ttl_ms=_CUT_TTL_MS)
    client.drop_lease(cut.lease.lease_id)
    if cut.table_version is None or uuid not in {None, cut.stream_uuid}:
        return None
    return TableRef(cut.table_uri, cut.cluster)
