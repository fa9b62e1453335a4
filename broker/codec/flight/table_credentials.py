"""Credentials for tables as the answer of a Flight action: JSON with the secrets in plain text.

A broker sends them over TLS or the loopback only; its configuration sees to that.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from broker.errors import EnvelopeError
from broker.model.secret import Secret
from broker.model.table_credentials import StorePlace, TableCredentials, TemporaryKeys


def to_values(found: TableCredentials) -> dict[str, Any]:
    """Return the fields of the answer."""
    return {
        "tables": list(found.tables),
        "access_key_id": found.keys.access_key_id,
        "secret_access_key": found.keys.secret_access_key.reveal(),
        "session_token": found.keys.session_token.reveal(),
        "expires_us": found.keys.expires_us,
        "endpoint": found.place.endpoint,
        "region": found.place.region,
        "path_style": found.place.path_style,
    }


def from_values(values: Mapping[str, Any]) -> TableCredentials:
    """Return what an answer says.

    Raises:
        EnvelopeError: it is not such an answer. The error shows none of it.
    """
    try:
        return TableCredentials(
            tables=tuple(str(one) for one in values["tables"]),
            keys=TemporaryKeys(
                access_key_id=str(values["access_key_id"]),
                secret_access_key=Secret(values["secret_access_key"]),
                session_token=Secret(values["session_token"]),
                expires_us=int(values["expires_us"]),
            ),
            place=StorePlace(
                endpoint=values["endpoint"],
                region=values["region"],
                path_style=bool(values["path_style"]),
            ),
        )
    except (KeyError, TypeError, ValueError, OverflowError):
        raise EnvelopeError("the broker's answer has no credentials for tables") from None
