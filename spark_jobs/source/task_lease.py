"""Renews the lease of a batch read in the tasks that read.

Spark plans a read in a separate process, which has ended when the tasks run. So each task renews
the lease when it begins and while it reads. Between two actions the lease is not renewed. If a
DataFrame is not used for longer than the lease's time to live, records may be deleted, and a later
action then fails with a typed error.
"""

from __future__ import annotations

import logging
from collections.abc import Iterator
from contextlib import contextmanager
from typing import TYPE_CHECKING, Final

from broker.errors import HeadwaterError, UnavailableError, UnknownLeaseError
from broker.model.cut import Lease
from broker.model.ids import LeaseId
from headwater.reads.lease_keeper import KEEPER, LEASE_TTL_MS_DEFAULT, LeaseKeeper

if TYPE_CHECKING:
    from headwater.client import Client

_EXPIRES_UNKNOWN_US: Final = 0

_log = logging.getLogger("headwater.read")


@contextmanager
def kept_alive(
    client: Client,
    stream: str,
    lease_id: LeaseId | None,
    *,
    ttl_ms: int = LEASE_TTL_MS_DEFAULT,
    keeper: LeaseKeeper = KEEPER,
) -> Iterator[None]:
    """Renew a lease while the block runs; None if another process renews it.

    An expired lease is replaced for this task, to keep the records that still exist. If the broker
    does not answer now, it is asked again later: the task may not need the broker.
    """
    if lease_id is None:
        yield
        return
    lease, is_new = _living(client, stream, lease_id, ttl_ms)
    keeper.hold(
        lease,
        client=client,
        ttl_ms=ttl_ms,
        drop_at_end=is_new,
        what=f"stream={stream} task",
    )
    try:
        yield
    finally:
        keeper.release(lease.lease_id)


def _living(client: Client, stream: str, lease_id: LeaseId, ttl_ms: int) -> tuple[Lease, bool]:
    """Return the renewed lease or a new one, and whether it is new."""
    known = Lease(lease_id=lease_id, expires_us=_EXPIRES_UNKNOWN_US)
    try:
        return client.renew_lease(lease_id, ttl_ms=ttl_ms), False
    except UnknownLeaseError:
        _log.info("lease_ran_out lease_id=%s stream=%s: taking another", lease_id, stream)
    except UnavailableError:
        return known, False
    try:
        return client.take_lease(stream, ttl_ms=ttl_ms), True
    except HeadwaterError as error:  # the read itself raises it
        _log.info("no_lease stream=%s error=%s", stream, error)
        return known, False
