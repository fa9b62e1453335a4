"""What an operator may choose about the Flight service, and which values contradict each other."""

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
    port: int = 7410  # 0: any free one
    tls_cert: bytes | None = None  # the chain, the server's own certificate first
    tls_key: bytes | None = None
    tls_client_ca: bytes | None = None
    streams_max: int = 512  # do_put and do_get at once; each holds one thread
    put_batch_bytes_max: int = 64 * MIB  # Arrow bytes of one batch; a body may be a little larger
    put_inflight_bytes_max: int = 64 * MIB  # per do_put: received and not yet acknowledged
    put_inflight_batches_max: int = 1024
    put_alone_bytes_max: int = 64 * 1024  # what comes alone is committed at once; 0: never
    put_alone_wait_us: int = 50  # a small batch that was here already is read in less
    put_alone_after: int = 16  # so many must have come alone before, else a window is suspected
    commit_timeout_ms: int = 30_000  # a do_put that ends waits this long for its last outcomes
    idle_check_ms: int = 250  # how late an idle follower notices that its client has gone

    def __post_init__(self) -> None:
        if (self.tls_cert is None) != (self.tls_key is None):
            raise InvalidConfigError("tls_cert and tls_key come together")
        if self.tls_client_ca is not None and self.tls_cert is None:
            raise InvalidConfigError("tls_client_ca needs tls_cert and tls_key")
        if not 0 <= self.port <= 65_535:
            raise InvalidConfigError(f"port {self.port} is not one of 0 to 65535")
        if not 0 < self.put_batch_bytes_max <= self.put_inflight_bytes_max:
            raise InvalidConfigError("put_inflight_bytes_max must hold one put_batch_bytes_max")
        limits = (
            self.streams_max,
            self.put_inflight_batches_max,
            self.commit_timeout_ms,
            self.idle_check_ms,
        )
        if min(limits) < 1:
            raise InvalidConfigError("limits and timeouts of the Flight service are at least 1")
