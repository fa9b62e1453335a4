"""The only file of the client that uses pyarrow.flight; it returns batches and our own errors."""

from __future__ import annotations

import json
import re
import threading
import time
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from functools import partial
from typing import Any, Final

import pyarrow as pa
from pyarrow import flight

from broker.codec.flight.protocol import ReadRequest, StreamPath, encode_body
from broker.errors import (
    EnvelopeError,
    HeadwaterError,
    InvalidRequestError,
    NoAnswerError,
    QuotaExceededError,
    from_wire,
)
from headwater.client import open_calls
from headwater.client.address import Address
from headwater.client.throttle import throttle_ms

CALL_TIMEOUT_MS: Final = 30_000
_FLIGHT_SAYS: Final = re.compile(r"^Flight returned [a-z ]+ error, with message: ")
_FLIGHT_ERRORS: Final = (flight.FlightError, pa.ArrowException, OSError)
# Reconnect within a second after a broker's restart; gRPC's own backoff grows to minutes.
_CHANNEL_OPTIONS: Final = [
    ("grpc.initial_reconnect_backoff_ms", 50),
    ("grpc.max_reconnect_backoff_ms", 1_000),
    ("grpc.use_local_subchannel_pool", 1),  # one TCP connection each, not one per process
]
_CONNECT_MS: Final = 2_000  # for a connection, with TLS; then another broker is asked
# If there is no other broker: the kernel asks four times (0, 1, 3, 7 s) if no answer comes, because
# a broker in a flood of connections does not answer every one.
_CONNECT_ALONE_MS: Final = 8_000


class _Channel:
    """Holds a Flight client until :meth:`give_up` or :meth:`close`.

    A call holds the client while it begins, so the last one closes it. ``FlightClient.close`` would
    free what another thread is about to begin a call with: a segmentation fault. The traceback of a
    kept error refers to this object only, so it does not keep the client alive.
    """

    def __init__(self, client: flight.FlightClient) -> None:
        self._client: flight.FlightClient | None = client
        self._is_closed = False

    @property
    def client(self) -> flight.FlightClient:
        """The Flight client.

        Raises:
            FlightUnavailableError: after :meth:`give_up`.
            InvalidRequestError: after :meth:`close`.
        """
        client = self._client
        if client is None:
            if self._is_closed:
                raise _closed_error()
            raise flight.FlightUnavailableError("another call has just failed to connect")
        return client

    def give_up(self) -> None:
        """Drop the client; it is closed when the last call that uses it ends."""
        self._client = None

    def close(self) -> None:
        """Give the client up for good; calls that begin later say that it was closed."""
        self._is_closed = True
        self.give_up()


class Connection:
    """One Flight channel to a broker at a time. Connects lazily; thread-safe.

    A gRPC channel that could not connect retries forever, even without calls, and another process
    may use that port by then. So the channel is dropped, and the next call makes a new one.
    """

    def __init__(self, address: Address, *, is_alone: Callable[[], bool] = lambda: False) -> None:
        """Connect later. ``is_alone``: no other broker is known, so it is worth waiting longer."""
        self.address = address
        self._is_alone = is_alone
        self._lock = threading.RLock()  # a signal handler may close the client
        self._channel: _Channel | None = None
        self._closed = threading.Event()

    def _options(self, timeout_ms: int | None = None) -> flight.FlightCallOptions:
        token = self.address.token
        headers = [] if token is None else [(b"authorization", f"Bearer {token.reveal()}".encode())]
        timeout_s = None if timeout_ms is None else timeout_ms / 1000
        return flight.FlightCallOptions(timeout=timeout_s, headers=headers)

    def close(self) -> None:
        """Let no call begin any more; the last one that has begun closes the channel."""
        with self._lock:
            self._closed.set()
            channel, self._channel = self._channel, None
        if channel is not None:
            channel.close()

    def _open(self) -> _Channel:
        with self._lock:
            if self._closed.is_set():
                raise _closed_error()
            if self._channel is None:
                connect_ms = _CONNECT_ALONE_MS if self._is_alone() else _CONNECT_MS
                with open_calls.process.inside(begins=True):
                    self._channel = self._channel_of(connect_ms)
            return self._channel

    def _channel_of(self, connect_ms: int) -> _Channel:
        return _Channel(
            flight.FlightClient(
                self.address.url,
                tls_root_certs=self.address.ca,
                cert_chain=self.address.cert,
                private_key=self.address.key,
                generic_options=[
                    *_CHANNEL_OPTIONS,
                    # Whatever its name, it is how long a connection may take.
                    ("grpc.min_reconnect_backoff_ms", connect_ms),
                ],
            )
        )

    def _give_up(self, channel: _Channel) -> None:
        with self._lock:
            channel.give_up()
            if self._channel is channel:
                self._channel = None

    def action(
        self, name: str, values: Mapping[str, Any], *, timeout_ms: int = CALL_TIMEOUT_MS
    ) -> list[dict[str, Any]]:
        """Run an action and return its results; wait before, if a quota asks for it.

        Raises:
            HeadwaterError: the error that the broker answered.
            NoAnswerError: the broker does not answer.
        """
        deadline_s = time.monotonic() + timeout_ms / 1000
        while True:
            try:
                return self._action(name, values, timeout_ms)
            except QuotaExceededError as error:
                pause_s = throttle_ms(error) / 1000
                if not pause_s or time.monotonic() + pause_s > deadline_s:
                    raise
            if self._closed.wait(pause_s):
                raise NoAnswerError(f"the connection to {self.address.url} was closed")

    def _action(
        self, name: str, values: Mapping[str, Any], timeout_ms: int
    ) -> list[dict[str, Any]]:
        options = self._options(timeout_ms)
        channel = self._open()
        with translated(self.address, partial(self._give_up, channel), begins=True):
            results = channel.client.do_action(flight.Action(name, encode_body(values)), options)
            return [result_of(result.body.to_pybytes()) for result in results]

    def put(self, path: StreamPath, schema: pa.Schema) -> PutCall:
        """Open a do_put."""
        channel = self._open()
        unreachable = partial(self._give_up, channel)
        with translated(self.address, unreachable, begins=True):
            descriptor = flight.FlightDescriptor.for_path(*path.to_path())
            writer, reader = channel.client.do_put(descriptor, schema, self._options())
        return PutCall(self.address, writer, reader, unreachable)

    def get(self, request: ReadRequest) -> GetCall:
        """Open a do_get; errors may come with the first read."""
        channel = self._open()
        unreachable = partial(self._give_up, channel)
        with translated(self.address, unreachable, begins=True):
            reader = channel.client.do_get(flight.Ticket(request.to_ticket()), self._options())
        return GetCall(self.address, reader, unreachable)


class PutCall:
    """A do_put: one thread writes, another reads the answers."""

    def __init__(
        self, address: Address, writer: Any, reader: Any, unreachable: Callable[[], None]
    ) -> None:
        self._address = address
        self._unreachable = unreachable
        self._writer = writer
        self._reader = reader

    def write(self, batch: pa.RecordBatch, mark: bytes) -> None:
        """Send a batch; may block while the broker does not read."""
        with translated(self._address, self._unreachable):
            self._writer.write_with_metadata(batch, mark)

    def finish(self) -> None:
        """Tell the broker that no more batches come; its remaining answers can still be read."""
        with translated(self._address):
            self._writer.done_writing()

    def read(self) -> bytes | None:
        """Return the next answer; None once the broker has ended the call. Blocks."""
        with translated(self._address, self._unreachable):
            frame = self._reader.read()
        return None if frame is None else bytes(frame)

    def close(self) -> None:
        """End the call; raises the broker's final error. Only after the last :meth:`read`."""
        with translated(self._address):
            self._writer.close()


class GetCall:
    """A do_get: batches with their metadata."""

    def __init__(self, address: Address, reader: Any, unreachable: Callable[[], None]) -> None:
        self._address = address
        self._unreachable = unreachable
        self._reader = reader

    def read(self) -> tuple[pa.RecordBatch, bytes] | None:
        """Return the next batch and its mark, or None at the end. Blocks."""
        with translated(self._address, self._unreachable):
            try:
                chunk = self._reader.read_chunk()
            except StopIteration:
                return None
        metadata = chunk.app_metadata
        return chunk.data, b"" if metadata is None else metadata.to_pybytes()

    def cancel(self) -> None:
        """Make the running and every later read end. Any thread."""
        self._reader.cancel()


@contextmanager
def translated(
    address: Address, unreachable: Callable[[], None] | None = None, *, begins: bool = False
) -> Iterator[None]:
    """Go into Flight, and turn Flight's errors into Headwater's.

    Calls ``unreachable`` if there is no broker. ``begins``: see :meth:`OpenCalls.inside`.
    """
    try:
        with open_calls.process.inside(begins=begins):
            yield
    except _FLIGHT_ERRORS as error:
        raise _ours(error, address, unreachable) from error


def _ours(
    error: BaseException, address: Address, unreachable: Callable[[], None] | None
) -> HeadwaterError:
    extra = getattr(error, "extra_info", None)
    if extra:
        known = from_wire(bytes(extra).decode(errors="replace"))
        if known is not None:
            return known
    if unreachable is not None and isinstance(error, flight.FlightUnavailableError):
        unreachable()
    text = _reason(str(error))
    if isinstance(error, flight.FlightUnauthenticatedError | flight.FlightUnauthorizedError):
        return InvalidRequestError(
            f"the broker at {address.url} does not accept this client's identity: {text}"
        )
    if isinstance(error, pa.ArrowInvalid):
        return InvalidRequestError(text)
    if "handshake failed" in text.lower():
        return NoAnswerError(
            f"no answer from the broker at {address.url}, because the TLS handshake failed: "
            "perhaps the broker has no TLS (grpc://), or the CA file did not sign its certificate "
            f"(HEADWATER_TLS_CA_FILE): {text}",
            address=address.url,
        )
    if not address.tls and text.endswith("Socket closed"):
        text += "; perhaps it speaks TLS (grpc+tls://)"
    return NoAnswerError(f"no answer from the broker at {address.url}: {text}", address=address.url)


def _closed_error() -> InvalidRequestError:
    return InvalidRequestError("the client was closed, so it begins no call; make a new one")


def result_of(body: bytes) -> dict[str, Any]:
    """Return one result of an action; raises EnvelopeError if the bytes are not a JSON object."""
    try:
        found = json.loads(body)
    except (ValueError, RecursionError) as cause:
        raise EnvelopeError(f"a broker's answer is not JSON: {body[:80]!r}") from cause
    if not isinstance(found, dict):
        raise EnvelopeError(f"a broker's answer is not a JSON object: {body[:80]!r}")
    return found


def _reason(text: str) -> str:
    """Return the reason in a text of Flight, without what Flight and gRPC say around it."""
    text = text.split(". gRPC client debug context", maxsplit=1)[0]
    text = text.split(". Detail: ", maxsplit=1)[0]
    text = _FLIGHT_SAYS.sub("", text)
    return text.rpartition("Failed to connect to remote host: ")[2]
