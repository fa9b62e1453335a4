"""The address of Liftbridge's API, and the limits of its callers."""

from __future__ import annotations

import ssl
from dataclasses import dataclass, field
from typing import Final

from broker.adapters.liftbridge.http2 import Http2Limits
from broker.adapters.liftbridge.unfinished import SHARED_BYTES_MAX
from broker.config import LiftbridgeConfig

MIB: Final = 1024 * 1024


@dataclass(frozen=True, slots=True, kw_only=True)
class LiftbridgeServiceConfig:
    """The service's address, TLS and limits."""

    host: str = "127.0.0.1"
    port: int = 9292  # Liftbridge's; 0 takes a free one
    advertised: str | None = None  # host:port in the metadata for clients; None: host and port
    tls: ssl.SSLContext | None = None  # with the protocol h2; None: no TLS
    connections_max: int = 256
    gives_way_per_s: int = 64  # connections that give way to new ones; beyond it these are refused
    handshakes_max: int = 64  # of TLS, at one time; beyond it the oldest gives way
    handshake_s: float = 10.0  # a handshake may take so long
    subscriptions_max: int = 512  # a thread each
    commands_max: int = 32  # calls that change or ask metadata, at one time
    request_bytes_max: int = 256 * 1024  # of one that holds no record; as the body of an action
    unfinished_bytes_max: int = SHARED_BYTES_MAX  # of all connections, beyond 1 MiB of each
    answer_bytes_max: int = MIB  # encoded for one subscriber and not yet taken by its connection
    http2: Http2Limits = field(default_factory=Http2Limits)


def service_config(
    config: LiftbridgeConfig, *, tls: ssl.SSLContext | None, connections_max: int
) -> LiftbridgeServiceConfig:
    """Return the service's settings for the daemon's."""
    return LiftbridgeServiceConfig(
        host=config.host,
        port=config.port,
        advertised=config.advertised or None,
        tls=tls,
        connections_max=connections_max,
    )
