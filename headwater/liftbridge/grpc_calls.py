"""The connections to the servers: the only file of this client that imports gRPC.

A call that a server refuses raises :class:`CallRefused`, with the name of gRPC's status.
"""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Awaitable, Callable, Iterator
from contextlib import suppress
from pathlib import Path
from typing import Any, Final

import grpc
import grpc.aio

from broker.errors import (
    AccessDeniedError,
    CommitTimeoutError,
    HeadwaterError,
    InvalidConfigError,
    InvalidRequestError,
    NotLeaderError,
    StreamExistsError,
    UnauthenticatedError,
    UnavailableError,
    UnknownStreamError,
)
from broker.model.secret import Secret
from broker.wire.liftbridge.api_pb2_grpc import APIStub
from headwater.liftbridge.values import Tls

_OPTIONS: Final = (
    ("grpc.max_receive_message_length", 128 * 1024 * 1024),
    ("grpc.max_send_message_length", 128 * 1024 * 1024),
    ("grpc.keepalive_time_ms", 20_000),
    ("grpc.initial_reconnect_backoff_ms", 100),
    ("grpc.min_reconnect_backoff_ms", 2_000),  # a connection may take as long, whatever its name
    ("grpc.max_reconnect_backoff_ms", 1_000),
)
_KINDS: Final[dict[str, type[HeadwaterError]]] = {
    "NOT_FOUND": UnknownStreamError,
    "ALREADY_EXISTS": StreamExistsError,
    "INVALID_ARGUMENT": InvalidRequestError,
    "UNIMPLEMENTED": InvalidRequestError,
    "PERMISSION_DENIED": AccessDeniedError,
    "UNAUTHENTICATED": UnauthenticatedError,
    "RESOURCE_EXHAUSTED": InvalidRequestError,
    "FAILED_PRECONDITION": NotLeaderError,
    "DEADLINE_EXCEEDED": CommitTimeoutError,
}


class CallRefused(Exception):  # noqa: N818  # internal: callers get HeadwaterErrors
    """A call ended with another status than OK."""

    def __init__(self, code: str, text: str) -> None:
        super().__init__(f"{code}: {text}")
        self.code = code
        self.text = text

    def error(self) -> HeadwaterError:
        """Return the error for the caller of the client."""
        return _KINDS.get(self.code, UnavailableError)(self.text or self.code)


class ServerConnections:
    """A connection to each server, made when it is needed. Owner: one event loop."""

    def __init__(self, tls: Tls | None, token: Secret | None = None) -> None:
        """Read the certificates. gRPC sends the token over TLS and over the loopback only.

        Raises:
            InvalidConfigError: a file of them cannot be read.
        """
        self._credentials = _credentials(tls, token)
        self._open: dict[str, tuple[Any, Any]] = {}

    def at(self, address: str) -> Any:
        """Return the stubs of a server."""
        if address not in self._open:
            channel = (
                grpc.aio.insecure_channel(address, options=_OPTIONS)
                if self._credentials is None
                else grpc.aio.secure_channel(address, self._credentials, options=_OPTIONS)
            )
            self._open[address] = (channel, APIStub(channel))  # type: ignore[no-untyped-call]
        return self._open[address][1]

    async def close(self) -> None:
        """Close every connection."""
        for channel, _ in self._open.values():
            await channel.close()
        self._open.clear()


def _credentials(tls: Tls | None, token: Secret | None) -> Any:
    channel = _channel_credentials(tls)
    if token is None:
        return channel
    proof = grpc.access_token_call_credentials(token.reveal())
    return grpc.composite_channel_credentials(channel or grpc.local_channel_credentials(), proof)


def _channel_credentials(tls: Tls | None) -> Any:
    if tls is None:
        return None
    try:
        ca = Path(tls.ca_file).read_bytes()
        key = Path(tls.key_file).read_bytes() if tls.key_file else None
        cert = Path(tls.cert_file).read_bytes() if tls.cert_file else None
    except OSError as cause:
        raise InvalidConfigError(f"a certificate cannot be read: {cause}") from cause
    return grpc.ssl_channel_credentials(ca, key, cert)


async def ask(call: Callable[..., Awaitable[Any]], request: Any, timeout_s: float) -> Any:
    """Make a unary call.

    Raises:
        CallRefused: it ended with another status than OK.
    """
    try:
        return await call(request, timeout=timeout_s)
    except grpc.aio.AioRpcError as error:
        raise CallRefused(error.code().name, error.details() or "") from error


async def answers(call: Any) -> AsyncIterator[Any]:
    """Yield the answers of a call that streams.

    Raises:
        CallRefused: it ended with another status than OK.
    """
    try:
        async for answer in call:
            yield answer
    except grpc.aio.AioRpcError as error:
        raise CallRefused(error.code().name, error.details() or "") from error
    except asyncio.CancelledError:
        call.cancel()
        raise


async def write(call: Any, request: Any) -> bool:
    """Send a message in a call; False: the call is over, and the message was not sent."""
    with suppress(grpc.aio.AioRpcError, asyncio.InvalidStateError, grpc.aio.UsageError):
        await call.write(request)
        return True
    return False


def in_turn(addresses: list[str], first: str | None) -> Iterator[str]:
    """Yield addresses for ever, ``first`` first."""
    order = [first] if first else []
    order += [one for one in addresses if one != first]
    while order:
        yield from order
