"""All decoders of bytes from outside, by name."""

from __future__ import annotations

from functools import cache

from fuzzkit.decoder import Decoder
from fuzzkit.entries import (
    at_flight,
    at_liftbridge,
    between_brokers,
    in_lake,
    in_logs,
    in_metadata,
    in_raft,
    in_spark,
    of_access,
    of_clients,
    over_nats,
)

ROOMS = (
    in_logs, in_raft, in_metadata, between_brokers, at_flight, at_liftbridge, over_nats, of_access,
    in_lake, of_clients, in_spark,
)  # fmt: skip


@cache
def decoders() -> dict[str, Decoder]:
    """Return each decoder by its name."""
    found: dict[str, Decoder] = {}
    for room in ROOMS:
        for one in room.decoders():
            assert one.name not in found, f"two decoders have the name {one.name}"
            found[one.name] = one
    return found
