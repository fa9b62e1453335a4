"""Liftbridge's API by its plain stubs, for tests that are written from its specification."""

from __future__ import annotations

import itertools
import time
import zlib
from collections.abc import Callable, Iterator
from contextlib import suppress
from typing import Any, Final, Self

import grpc
import pytest

from broker.codec.nats import envelope
from broker.codec.nats.envelope import EnvelopeKind
from broker.wire.liftbridge import api_pb2 as api
from broker.wire.liftbridge import message_pb2 as wire
from broker.wire.liftbridge.api_pb2_grpc import APIStub

WAIT_S: Final = 60.0
_names: Final = itertools.count()


def new_name() -> str:
    """Return a name that no stream of this process has had."""
    return f"n{next(_names)}"


class LiftCalls:
    """The calls of one broker. A context manager, which closes the connection."""

    def __init__(self, address: str) -> None:
        self._channel = grpc.insecure_channel(address)
        self.stub: Any = APIStub(self._channel)  # type: ignore[no-untyped-call]  # generated

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self._channel.close()

    def ask(self, name: str, timeout: float | None = WAIT_S, /, **fields: Any) -> Any:
        """Make a unary call."""
        request = getattr(api, f"{name}Request")(**fields)
        return getattr(self.stub, name)(request, timeout=timeout)

    def refused(self, name: str, timeout: float = WAIT_S, /, **fields: Any) -> grpc.StatusCode:
        """Return the status with which a call is refused; a subscription is read to its end."""
        code: grpc.StatusCode = self.refusal(name, timeout, **fields).code()
        return code

    def refusal(self, name: str, timeout: float = WAIT_S, /, **fields: Any) -> Any:
        """Return how a call is refused; see :meth:`refused`."""

        def whole() -> None:
            found = self.ask(name, timeout, **fields)
            if name == "Subscribe":
                list(found)

        with pytest.raises(grpc.RpcError) as told:
            whole()
        return told.value

    def create(self, **fields: Any) -> str:
        """Create a stream, by default on a subject of its name; return the name."""
        name = fields.pop("name", None) or new_name()
        self.ask("CreateStream", name=name, subject=fields.pop("subject", name), **fields)
        return str(name)

    def publish(self, stream: str, value: bytes = b"x", **fields: Any) -> wire.Ack:
        """Publish one message and return its acknowledgement."""
        ack: wire.Ack = self.ask("Publish", stream=stream, value=value, **fields).ack
        return ack

    def subscribe(self, stream: str, **fields: Any) -> Any:
        """Return a subscription behind its first message, which is empty."""
        call = self.ask("Subscribe", stream=stream, **fields)
        assert next(call) == wire.Message()
        return call

    def read(self, stream: str, **fields: Any) -> list[wire.Message]:
        """Return all that a subscription gets until it ends: from earliest to latest by default."""
        fields = {"startPosition": api.EARLIEST, "stopPosition": api.STOP_LATEST, **fields}
        call = self.subscribe(stream, **fields)
        found: list[wire.Message] = []
        with pytest.raises(grpc.RpcError) as ended:
            found.extend(call)
        assert ended.value.code() is grpc.StatusCode.RESOURCE_EXHAUSTED, ended.value
        return found

    def first(self, stream: str, count: int, **fields: Any) -> list[wire.Message]:
        """Return the first messages from earliest; waits for them."""
        call = self.subscribe(stream, **{"startPosition": api.EARLIEST, **fields})
        found = list(itertools.islice(call, count))
        call.cancel()
        return found

    def partition(self, stream: str, number: int = 0) -> api.PartitionMetadata:
        """Return a partition's metadata as this broker tells."""
        told = self.ask("FetchMetadata", streams=[stream])
        found: api.PartitionMetadata = told.streamMetadata[0].partitions[number]
        return found


def publish_async(calls: LiftCalls, requests: list[api.PublishRequest]) -> list[Any]:
    """Send requests in one call; return the answers, in their order."""
    return list(calls.stub.PublishAsync(iter(requests), timeout=WAIT_S))


def until(condition: Callable[[], bool], what: str, timeout_s: float = WAIT_S) -> None:
    """Ask until it holds; a call that is refused means not yet."""
    deadline = time.monotonic() + timeout_s
    while True:
        with suppress(grpc.RpcError):
            if condition():
                return
        assert time.monotonic() < deadline, f"not within {timeout_s} s: {what}"
        time.sleep(0.02)


def in_envelope(value: bytes, **fields: Any) -> bytes:
    """Return a message in Liftbridge's envelope, for any offset by default."""
    message = wire.Message(value=value, **{"offset": -1, **fields})
    return envelope.encode(EnvelopeKind.PUBLISH, message.SerializeToString())


def ack_of(payload: bytes) -> wire.Ack:
    """Read an acknowledgement in its envelope."""
    return wire.Ack.FromString(envelope.decode(payload, EnvelopeKind.ACK))


def crc_partition(key: bytes, count: int) -> int:
    """Return the partition of a key as Liftbridge's clients choose it."""
    return zlib.crc32(key) % count


def offsets(messages: list[wire.Message]) -> list[int]:
    """Return the offsets."""
    return [one.offset for one in messages]


def values(messages: list[wire.Message]) -> Iterator[bytes]:
    """Yield the values."""
    return (one.value for one in messages)
