"""Publishes records while the demo reads: flights again, marked as live, in small groups."""

from __future__ import annotations

import itertools
import threading
from types import TracebackType
from typing import Any, Final, Self

import pyarrow as pa

from broker.errors import HeadwaterError
from broker.model.stream import Stream
from headwater.demo.flights import message
from headwater.nats_publisher import NatsPublisher

_GROUP: Final = 20
_PAUSE_S: Final = 0.1  # 200 records a second


class LivePublisher:
    """Publishes on a thread of its own until it is stopped; every record is acknowledged."""

    def __init__(
        self, nats_url: str, stream: Stream, flights: pa.Table, *, first_number: int
    ) -> None:
        """Prepare; ``first_number`` is the number of the first record."""
        self._nats_url, self._stream = nats_url, stream
        self._flights: list[dict[str, Any]] = flights.slice(0, 2000).to_pylist()
        self._number = first_number
        self._stop = threading.Event()
        self._thread = threading.Thread(target=self._run, name="live-publisher")
        self._failure: HeadwaterError | None = None
        self.sent = 0  # handed to the publisher
        self.acked = 0  # known to be durable

    def stop(self) -> int:
        """Stop, wait for every answer, and return the number of durable records.

        Raises:
            HeadwaterError: the error of a record that was not acknowledged.
        """
        self._stop.set()
        self._thread.join()
        if self._failure is not None:
            raise self._failure
        return self.acked

    def _run(self) -> None:
        flights = itertools.cycle(self._flights)
        try:
            with NatsPublisher(self._nats_url, stream=self._stream) as publisher:
                while not self._stop.wait(_PAUSE_S):
                    group = []
                    for flight in itertools.islice(flights, _GROUP):
                        group.append(message(flight, self._number, live=True))
                        self._number += 1
                    self.sent += len(group)
                    publisher.publish(group)
                    self.acked = publisher.counts.acked
                self.acked = publisher.finish().acked
        except HeadwaterError as error:
            self._failure = error

    def __enter__(self) -> Self:
        self._thread.start()
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        self._stop.set()
        self._thread.join()
