"""The settings of the Flight service, and which values contradict each other."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Final

from broker.errors import InvalidConfigError

MIB: Final = 1024 * 1024


@dataclass(frozen=True, slots=True, kw_only=True)
class FlightServiceConfig:
    """Address, certificates (PEM bytes) and limits of the Flight service.

    With ``tls_cert`` and ``tls_key`` the service speaks TLS only; with ``tls_client_ca`` too, a
    client must show a certificate that this authority signed (mutual TLS).
    """

    host: str = "127.0.0.1"
    port: int = 7410  # 0 means any free port
    nats_url: str | None = None  # of the NATS server for publishers; describe_stream returns it
    tls_cert: bytes | None = None  # the chain, the server's own certificate first
    tls_key: bytes | None = None
    tls_client_ca: bytes | None = None
    connections_max: int = 10_000  # beyond it strangers, then the idlest, are broken
    streams_max: int = 512  # of do_put, of reads with an end, and of followers; a thread each
    followers_of_connection_max: int = 256
    waits_max: int = 16  # actions that wait for the lake, at the same time; a thread each
    reads_bytes_max: int = 16 * MIB  # the k-th open read gets batches of this size divided by k
    put_batch_bytes_max: int = 64 * MIB  # Arrow bytes of one batch; a body may be a little larger
    put_inflight_bytes_max: int = 64 * MIB  # of one do_put: received and not yet acknowledged
    put_inflight_batches_max: int = 1024
    # A batch "comes alone" if no other batch of the call waits: its client waits for each answer.
    # Such a batch of at most put_alone_bytes_max is committed at once; 0: never.
    put_alone_bytes_max: int = 64 * 1024
    put_alone_wait_us: int = 50  # a batch that has already arrived is read in less time
    put_alone_after: int = 16  # how many batches in a row must have come alone before that
    commit_timeout_ms: int = 30_000  # how long an ending do_put waits for its last outcomes
    idle_check_ms: int = 250  # how late an idle follower notices that its client has gone

    def __post_init__(self) -> None:
        if (self.tls_cert is None) != (self.tls_key is None):
            raise InvalidConfigError("tls_cert and tls_key must be set together")
        if self.tls_client_ca is not None and self.tls_cert is None:
            raise InvalidConfigError("tls_client_ca needs tls_cert and tls_key too")
        if not 0 <= self.port <= 65_535:
            raise InvalidConfigError(f"port must be 0 to 65535, not {self.port}")
        if not 0 < self.put_batch_bytes_max <= self.put_inflight_bytes_max:
            raise InvalidConfigError(
                "put_inflight_bytes_max must not be smaller than put_batch_bytes_max"
            )
        limits = (
            self.connections_max,
            self.streams_max,
            self.followers_of_connection_max,
            self.waits_max,
            self.reads_bytes_max,
            self.put_inflight_batches_max,
            self.commit_timeout_ms,
            self.idle_check_ms,
        )
        if min(limits) < 1:
            raise InvalidConfigError("limits and timeouts of the Flight service must be at least 1")
