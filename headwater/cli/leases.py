"""Holding a cut for as long as a command works on it."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from typing import TYPE_CHECKING, Final

if TYPE_CHECKING:
    from broker.model.cut import Cut
    from headwater.client import Client

_TTL_MS: Final = 600_000  # renewed three times within; a killed command holds nothing for longer


@contextmanager
def held_cut(client: Client, stream: str) -> Iterator[Cut]:
    """Take a cut, renew its lease meanwhile, drop it at the end."""
    from spark_jobs.read.leases import KEEPER

    cut = client.cut(stream, ttl_ms=_TTL_MS)
    KEEPER.hold(cut.lease, client=client, ttl_ms=_TTL_MS, drop_at_end=True, what=f"stream={stream}")
    try:
        yield cut
    finally:
        KEEPER.release(cut.lease.lease_id)
