"""Holds the lease of a cut for the time that a read works with the cut."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from typing import TYPE_CHECKING, Final

from headwater.reads.lease_keeper import KEEPER

if TYPE_CHECKING:
    from broker.model.cut import Cut
    from headwater.client import Client

_TTL_MS: Final = 600_000  # renewed 3 times within; the lease of a killed command ends after this


@contextmanager
def held_cut(client: Client, stream: str) -> Iterator[Cut]:
    """Take a cut, renew its lease in the background, and drop the lease at the end."""
    cut = client.cut(stream, ttl_ms=_TTL_MS)
    KEEPER.hold(cut.lease, client=client, ttl_ms=_TTL_MS, drop_at_end=True, what=f"stream={stream}")
    try:
        yield cut
    finally:
        KEEPER.release(cut.lease.lease_id)
