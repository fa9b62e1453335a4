"""The principal that a client certificate names, by the rule of gRPC, as at Flight's door."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, Final

_COMMON_NAME: Final = "commonName"


def principal_of(certificate: Mapping[str, Any]) -> str | None:
    """Return the first name of a certificate's SAN, else its common name, else None.

    ``certificate`` is what Python's ``ssl`` tells of a certificate that it has verified.
    """
    for _, name in certificate.get("subjectAltName", ()):
        return str(name)
    for part in certificate.get("subject", ()):
        for kind, name in part:
            if kind == _COMMON_NAME:
                return str(name)
    return None
