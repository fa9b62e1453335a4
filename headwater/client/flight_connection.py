"""The only file of the client that knows pyarrow.flight; what leaves it is bytes and our errors."""

from __future__ import annotations

import json
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from typing import Any, Final

import pyarrow as pa
from pyarrow import flight

from broker.codec.flight_actions import encode_body
from broker.codec.flight_protocol import ReadRequest, StreamPath
from broker.errors import HeadwaterError, InvalidRequestError, NoAnswerError, from_wire
from headwater.client.address import Address

CALL_TIMEOUT_MS: Final = 30_000
_FLIGHT_ERRORS: Final = (flight.FlightError, pa.ArrowException, OSError)
# A broker that restarts is found again within a fraction of a second, not after gRPC's minutes.
_CHANNEL_OPTIONS: Final = [
    ("grpc.initial_reconnect_backoff_ms", 50),
    ("grpc.min_reconnect_backoff_ms", 50),
    ("grpc.max_reconnect_backoff_ms", 1_000),
    ("grpc.use_local_subchannel_pool", 1),  # one TCP connection each, not one per process
]


class Connection:
    """One Flight channel to a broker. Connects lazily; any thread."""

    def __init__(self, address: Address) -> None:
        self.address = address
        self._client = flight.FlightClient(
            address.url,
            tls_root_certs=address.ca,
            cert_chain=address.cert,
            private_key=address.key,
            generic_options=[*_CHANNEL_OPTIONS],
        )

    def close(self) -> None:
        """Close the channel; running calls end with an error."""
        self._client.close()

    def action(
        self, name: str, values: Mapping[str, Any], *, timeout_ms: int = CALL_TIMEOUT_MS
    ) -> list[dict[str, Any]]:
        """Run an action and return its results.

        Raises:
            HeadwaterError: what the broker answered, or NoAnswerError when it does not.
        """
        options = flight.FlightCallOptions(timeout=timeout_ms / 1000)
        with translated(self.address):
            results = self._client.do_action(
                flight.Action(name, encode_body(name, values)), options
            )
            return [json.loads(result.body.to_pybytes()) for result in results]

    def put(self, path: StreamPath, schema: pa.Schema) -> PutCall:
        """Open a do_put."""
        with translated(self.address):
            descriptor = flight.FlightDescriptor.for_path(*path.to_path())
            writer, reader = self._client.do_put(descriptor, schema)
        return PutCall(self.address, writer, reader)

    def get(self, request: ReadRequest) -> GetCall:
        """Open a do_get; errors may come with the first read."""
        with translated(self.address):
            return GetCall(self.address, self._client.do_get(flight.Ticket(request.to_ticket())))


class PutCall:
    """A do_put: one thread writes, another reads the answers."""

    def __init__(self, address: Address, writer: Any, reader: Any) -> None:
        self._address = address
        self._writer = writer
        self._reader = reader

    def write(self, batch: pa.RecordBatch, mark: bytes) -> None:
        """Send a batch; may block while the broker does not read."""
        try:
            self._writer.write_with_metadata(batch, mark)
        except _FLIGHT_ERRORS as error:
            raise _ours(error, self._address) from error

    def finish(self) -> None:
        """Tell the broker that nothing more comes; its remaining answers still do."""
        with translated(self._address):
            self._writer.done_writing()

    def read(self) -> bytes | None:
        """Return the next answer; None once the broker has ended the call. Blocks."""
        try:
            frame = self._reader.read()
        except _FLIGHT_ERRORS as error:
            raise _ours(error, self._address) from error
        return None if frame is None else bytes(frame)

    def close(self) -> None:
        """End the call; raises what the broker ended it with. After the last :meth:`read` only."""
        with translated(self._address):
            self._writer.close()


class GetCall:
    """A do_get: batches with their metadata."""

    def __init__(self, address: Address, reader: Any) -> None:
        self._address = address
        self._reader = reader

    def read(self) -> tuple[pa.RecordBatch, bytes] | None:
        """Return the next batch and its mark, or None at the end. Blocks."""
        with translated(self._address):
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
def translated(address: Address) -> Iterator[None]:
    """Raise our errors instead of Flight's and Arrow's."""
    try:
        yield
    except _FLIGHT_ERRORS as error:
        raise _ours(error, address) from error


def _ours(error: BaseException, address: Address) -> HeadwaterError:
    extra = getattr(error, "extra_info", None)
    if extra:
        known = from_wire(bytes(extra).decode(errors="replace"))
        if known is not None:
            return known
    # Flight appends its own diagnosis to the text, over several sentences; the first says it.
    text = str(error).split(". gRPC client debug context", maxsplit=1)[0]
    text = text.split(". Detail: ", maxsplit=1)[0]
    if isinstance(error, flight.FlightUnauthenticatedError | flight.FlightUnauthorizedError):
        return InvalidRequestError(f"the broker at {address.url} refuses us: {text}")
    if isinstance(error, pa.ArrowInvalid):
        return InvalidRequestError(text)
    return NoAnswerError(f"no answer from the broker at {address.url}: {text}", address=address.url)
