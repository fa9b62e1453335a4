"""Reading a range or the live tail, with its own proof that no offset is missing or doubled."""

from __future__ import annotations

import queue
import threading
from dataclasses import dataclass
from types import TracebackType
from typing import Final, Self

import pyarrow as pa

from broker.codec.flight_protocol import ReadRequest, RowsMark
from broker.errors import GapError, HeadwaterError, OverlapError
from broker.model.offsets import Offset
from headwater.client.flight_connection import Connection, GetCall

_AHEAD_MAX: Final = 4  # batches that a follower may have received and its caller not yet taken


@dataclass(frozen=True, slots=True)
class Fetched:
    """Rows of ``[base_offset, end_offset)`` of one partition, each offset once, in order."""

    batch: pa.RecordBatch
    base_offset: Offset
    end_offset: Offset
    high_watermark: Offset  # as the broker saw it when it sent these rows


class Fetch:
    """An iterator over the batches of one read; close it, or use it in a ``with`` statement.

    Raises while it is iterated:
        GapError, OverlapError: the broker's batches are not contiguous, or end too early.
        HeadwaterError: what the broker ended the read with.
    """

    def __init__(self, connection: Connection, request: ReadRequest) -> None:
        self._request = request
        self._call = connection.get(request)
        self._position = Offset(request.start) if isinstance(request.start, int) else None
        self._cancelled = False
        self._source = _Ahead(self._call) if request.follow else self._call

    @property
    def position(self) -> Offset | None:
        """The next offset to come; None before the first batch of a symbolic start."""
        return self._position

    def __iter__(self) -> Fetch:
        return self

    def __next__(self) -> Fetched:
        """Return the next batch; blocks. A follower's wait can be interrupted by Ctrl-C."""
        try:
            received = None if self._cancelled else self._source.read()
        except HeadwaterError:
            if not self._cancelled:
                raise
            received = None
        if received is None:
            self._check_end()
            raise StopIteration
        rows, metadata = received
        mark = RowsMark.from_bytes(metadata)
        self._check_next(mark, rows.num_rows)
        self._position = mark.end_offset
        return Fetched(rows, mark.base_offset, mark.end_offset, mark.high_watermark)

    def cancel(self) -> None:
        """End the read from any thread; the iteration stops without an error."""
        self._cancelled = True
        self._call.cancel()

    close = cancel

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        self.close()

    def _check_next(self, mark: RowsMark, rows_count: int) -> None:
        expected = mark.base_offset if self._position is None else self._position
        where = f"{self._request.stream}/{self._request.partition}"
        if mark.base_offset > expected or rows_count != mark.end_offset - mark.base_offset:
            raise GapError(
                f"{where}: offset {expected} was due, a batch of {rows_count} rows for "
                f"[{mark.base_offset}, {mark.end_offset}) came",
                partition=self._request.partition,
                start=expected,
                end=mark.base_offset,
            )
        if mark.base_offset < expected:
            raise OverlapError(
                f"{where}: offset {expected} was due, {mark.base_offset} came again",
                partition=self._request.partition,
                start=mark.base_offset,
                end=expected,
            )
        end = self._request.end
        if end is not None and mark.end_offset > end:
            raise OverlapError(
                f"{where}: asked up to {end}, got up to {mark.end_offset}",
                partition=self._request.partition,
                start=end,
                end=mark.end_offset,
            )

    def _check_end(self) -> None:
        """A read with a known end that was not cancelled must have reached it."""
        end = self._request.end
        if self._cancelled or end is None or self._position is None or self._position == end:
            return
        raise GapError(
            f"{self._request.stream}/{self._request.partition}: the read ended at "
            f"{self._position}, before {end}",
            partition=self._request.partition,
            start=self._position,
            end=end,
        )


class _Ahead:
    """Reads a call on a thread of its own, so that the caller's wait can be interrupted.

    Arrow waits in C++, where Python's signal handlers do not run.
    """

    def __init__(self, call: GetCall) -> None:
        self._call = call
        self._received: queue.Queue[tuple[pa.RecordBatch, bytes] | HeadwaterError | None] = (
            queue.Queue(_AHEAD_MAX)
        )
        threading.Thread(target=self._run, name="headwater-fetch", daemon=True).start()

    def read(self) -> tuple[pa.RecordBatch, bytes] | None:
        """Return what :meth:`GetCall.read` returned on the other thread, or raise its error."""
        received = self._received.get()
        if isinstance(received, HeadwaterError):
            raise received
        return received

    def _run(self) -> None:
        received: tuple[pa.RecordBatch, bytes] | HeadwaterError | None
        while True:
            try:
                received = self._call.read()
            except HeadwaterError as error:
                received = error
            self._received.put(received)
            if not isinstance(received, tuple):
                return
