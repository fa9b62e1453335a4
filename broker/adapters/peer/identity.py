"""The identity of the other broker of a connection: TLS 1.3, with certificates on both sides.

A broker's certificate is signed by the cluster's CA, and has the broker's name as the URI
``headwater://CLUSTER/broker/NODE`` (subject alternative name). No other field is checked.
"""

from __future__ import annotations

import ssl
from dataclasses import dataclass
from pathlib import Path

from broker.errors import InvalidConfigError


@dataclass(frozen=True, slots=True, kw_only=True)
class PeerTls:
    """PEM files: the cluster's CA, this broker's certificate and its key."""

    ca_file: Path
    cert_file: Path
    key_file: Path


@dataclass(frozen=True, slots=True)
class PeerAddress:
    """The address on which a broker listens for other brokers."""

    host: str
    port: int


def contexts(tls: PeerTls) -> tuple[ssl.SSLContext, ssl.SSLContext]:
    """Return the TLS contexts of the accepting and of the connecting side.

    Raises:
        InvalidConfigError: the certificate, its key or the CA cannot be used.
    """
    try:
        server = _context(ssl.PROTOCOL_TLS_SERVER, tls)
        server.num_tickets = 0  # the accepting side never writes, so no bytes stay unread
        return server, _context(ssl.PROTOCOL_TLS_CLIENT, tls)
    except (OSError, ssl.SSLError) as cause:
        raise InvalidConfigError(f"the broker's certificates cannot be used: {cause}") from cause


def certified_uris(secured: ssl.SSLSocket) -> list[str]:
    """Return the URIs in the verified certificate of the other side."""
    certificate = secured.getpeercert() or {}
    names = certificate.get("subjectAltName", ())
    return [str(value) for kind, value in names if kind == "URI"]  # type: ignore[str-unpack]


def _context(protocol: int, tls: PeerTls) -> ssl.SSLContext:
    context = ssl.SSLContext(protocol)
    context.minimum_version = ssl.TLSVersion.TLSv1_3
    context.check_hostname = False  # the URI in the certificate is checked instead
    context.verify_mode = ssl.CERT_REQUIRED
    context.load_verify_locations(tls.ca_file)
    context.load_cert_chain(tls.cert_file, tls.key_file)
    return context
