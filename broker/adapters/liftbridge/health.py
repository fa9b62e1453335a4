"""The standard health service of gRPC, for this server and its one service.

Its two messages have one field each, so that they are read and written here by hand. Source: the
gRPC project's "Health Checking Protocol" (grpc.health.v1).
"""

from __future__ import annotations

from typing import Final

from broker.adapters.liftbridge.statuses import Code, StatusError

CHECK: Final = "/grpc.health.v1.Health/Check"
_SERVICES: Final = (b"", b"proto.API")
_SERVICE_TAG: Final = 0x0A  # field 1, a text
_SERVING: Final = b"\x08\x01"  # field 1, an enum: SERVING
_NOT_SERVING: Final = b"\x08\x02"


def check(payload: bytes, not_ready: str | None) -> bytes:
    """Answer Check; ``not_ready`` is why the broker should get no work.

    Raises:
        StatusError: the service is not known here, or the request is malformed.
    """
    service = b""
    if payload:
        if payload[0] != _SERVICE_TAG or len(payload) < 2 or payload[1] != len(payload) - 2:
            raise StatusError(Code.INVALID_ARGUMENT, "the request is not a HealthCheckRequest")
        service = payload[2:]
    if service not in _SERVICES:
        raise StatusError(Code.NOT_FOUND, "unknown service")
    return _SERVING if not_ready is None else _NOT_SERVING
