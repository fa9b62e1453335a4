"""The principal that a client certificate names; the rule is gRPC's, so all doors agree."""

from __future__ import annotations

import ipaddress
from collections.abc import Mapping
from typing import Any, Final

_COMMON_NAME: Final = "commonName"
_KINDS: Final = frozenset({"DNS", "URI", "email", "IP Address"})  # whose text is the whole name


def principal_of(certificate: Mapping[str, Any]) -> str | None:
    """Return the first name of a certificate's SAN, else its common name, else None.

    ``certificate`` has the form of ``ssl.SSLSocket.getpeercert``, and was verified. A first name of
    a kind that has no text of its own (``othername``, ``DirName``, …) is nobody's: OpenSSL gives
    one text for all of them, so other clients would have the same.
    """
    for kind, name in certificate.get("subjectAltName", ()):
        return _text_of(kind, str(name)) if kind in _KINDS else None
    for part in certificate.get("subject", ()):
        for kind, name in part:
            if kind == _COMMON_NAME:
                return str(name)
    return None


def _text_of(kind: str, name: str) -> str | None:
    if kind != "IP Address":
        return name
    try:
        return str(ipaddress.ip_address(name))  # ::1, as gRPC, not 0:0:0:0:0:0:0:1, as OpenSSL
    except ValueError:  # OpenSSL has one text for all that are none
        return None
