"""A TLS handshake in memory: what the other side of a connection would see of a certificate."""

from __future__ import annotations

import ssl
from pathlib import Path


def shown_uris(ca: Path, certificate: Path, key: Path) -> list[str]:
    """Return the URIs in a certificate, as a client that trusts ``ca`` sees and verifies it.

    Raises:
        ssl.SSLCertVerificationError: ``ca`` did not sign the certificate, or it has expired.
        ssl.SSLError, OSError: a file cannot be used.
    """
    accepting = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
    accepting.load_cert_chain(certificate, key)
    connecting = ssl.SSLContext(ssl.PROTOCOL_TLS_CLIENT)
    connecting.check_hostname = False
    connecting.load_verify_locations(ca)
    up, down = ssl.MemoryBIO(), ssl.MemoryBIO()
    server = accepting.wrap_bio(up, down, server_side=True)
    client = connecting.wrap_bio(down, up)
    waiting = [client, server]
    while waiting:
        side = waiting.pop(0)
        try:
            side.do_handshake()
        except ssl.SSLWantReadError:
            waiting.append(side)
    shown = client.getpeercert() or {}
    names = shown.get("subjectAltName", ())
    return [str(value) for kind, value in names if kind == "URI"]  # type: ignore[str-unpack]
