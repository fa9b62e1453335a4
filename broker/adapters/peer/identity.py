"""The identity of the other broker of a connection: TLS 1.3, with certificates on both sides.

A broker's certificate is signed by the cluster's CA, and has the broker's name as the URI
``headwater://CLUSTER/broker/NODE`` (subject alternative name). No other field is checked.
"""

from __future__ import annotations

import ssl
from dataclasses import dataclass
from functools import partial

from broker.adapters.tls.context import LiveContext, TlsFiles, load


@dataclass(frozen=True, slots=True)
class PeerAddress:
    """The address on which a broker listens for other brokers."""

    host: str
    port: int


def contexts(tls: TlsFiles) -> tuple[LiveContext, LiveContext]:
    """Return the TLS contexts of the accepting and of the connecting side.

    Raises:
        InvalidConfigError: the certificate, its key or the CA cannot be used.
    """
    accepting = LiveContext(partial(_accepting, tls))
    return accepting, LiveContext(partial(_context, ssl.PROTOCOL_TLS_CLIENT, tls))


def certified_uris(secured: ssl.SSLSocket) -> list[str]:
    """Return the URIs in the verified certificate of the other side."""
    certificate = secured.getpeercert() or {}
    names = certificate.get("subjectAltName", ())
    return [str(value) for kind, value in names if kind == "URI"]  # type: ignore[str-unpack]


def certified_number(secured: ssl.SSLSocket) -> int:
    """Return the serial number of the verified certificate of the other side; 0 without one."""
    certificate = secured.getpeercert() or {}
    return int(str(certificate.get("serialNumber", "0")), 16)


def _accepting(tls: TlsFiles) -> ssl.SSLContext:
    context = _context(ssl.PROTOCOL_TLS_SERVER, tls)
    context.num_tickets = 0  # the accepting side never writes, so no bytes stay unread
    return context


def _context(protocol: int, tls: TlsFiles) -> ssl.SSLContext:
    context = ssl.SSLContext(protocol)
    context.minimum_version = ssl.TLSVersion.TLSv1_3
    context.check_hostname = False  # the URI in the certificate is checked instead
    context.verify_mode = ssl.CERT_REQUIRED
    load(context, tls)
    return context
