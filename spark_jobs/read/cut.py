"""Takes a cut whose rows are read later, perhaps by another process."""

from __future__ import annotations

from typing import TYPE_CHECKING

from headwater.reads.lease_keeper import LEASE_TTL_MS_DEFAULT
from spark_jobs.clients import client_of

if TYPE_CHECKING:
    from broker.model.cut import Cut
    from headwater.client import Client


def cut(
    stream: str, *, server: str | Client | None = None, lease_ttl_ms: int = LEASE_TTL_MS_DEFAULT
) -> Cut:
    """Take a cut of a stream; its lease ends after ``lease_ttl_ms`` unless a read renews it.

    ``cut.save()`` is one line of text; ``read(spark, stream, as_of=text)`` reads its rows.

    Args:
        stream: a stream's name.
        server: a client of the broker, or its address ``grpc://host:port``; by default
            HEADWATER_SERVER.
        lease_ttl_ms: how long retention and compaction keep what the cut needs.

    Raises:
        UnknownStreamError, UnavailableError.
    """
    return client_of(server).cut(stream, ttl_ms=lease_ttl_ms)
