"""The settings of the Flight service, from the daemon's configuration."""

from __future__ import annotations

from pathlib import Path

from broker.adapters.flight.config import FlightServiceConfig
from broker.config import FlightConfig
from broker.errors import InvalidConfigError


def flight_service_config(
    config: FlightConfig, *, nats_url: str, connections_max: int
) -> FlightServiceConfig:
    """Return the service's settings; reads the certificates.

    Raises:
        InvalidConfigError: a file cannot be read.
    """

    def pem(path: str | None) -> bytes | None:
        if path is None:
            return None
        try:
            return Path(path).read_bytes()
        except OSError as cause:
            raise InvalidConfigError(f"cannot read {path}: {cause.strerror}") from cause

    return FlightServiceConfig(
        host=config.host,
        port=config.port,
        nats_url=nats_url or None,
        connections_max=connections_max,
        tls_cert=pem(config.tls_cert_file),
        tls_key=pem(config.tls_key_file),
        tls_client_ca=pem(config.tls_client_ca_file),
    )
