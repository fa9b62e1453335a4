"""Reads a range or the live tail, and checks that no offset is missing or doubled.

A position is the next offset and the leader epoch of the record before that offset. If a broker
fails, the read continues at another broker from its position. That broker answers TruncatedError if
its log does not have the record before the position.
"""

from __future__ import annotations

import queue
import threading
from contextlib import suppress
from dataclasses import dataclass, replace
from types import TracebackType
from typing import Final, Protocol, Self

import pyarrow as pa

from broker.codec.flight.protocol import ReadRequest, RowsMark
from broker.errors import GapError, HeadwaterError, OverlapError, StaleLeaderEpochError
from broker.model.epochs import LeaderEpoch
from broker.model.offsets import Offset
from headwater.client import open_calls
from headwater.client.read_route import IDLE_MS, Call, ReadOpener

_AHEAD_MAX: Final = 4  # batches that the thread may have received before the caller takes them


@dataclass(frozen=True, slots=True)
class Fetched:
    """Rows of ``[base_offset, end_offset)`` of one partition, each offset once, in order.

    Key compaction may have removed some of them, perhaps all.
    """

    batch: pa.RecordBatch
    base_offset: Offset
    end_offset: Offset
    high_watermark: Offset  # as the broker saw it when it sent these rows
    leader_epoch: LeaderEpoch  # of the last row

    @property
    def removed_count(self) -> int:
        """Number of records that key compaction removed from this range."""
        rows: int = self.batch.num_rows
        return self.end_offset - self.base_offset - rows


class Fetch:
    """An iterator over the batches of one read; close it, or use it in a ``with`` statement.

    The iteration raises:
        GapError, OverlapError: the broker's batches are not contiguous, or end too early.
        TruncatedError: the log no longer has records that this read has returned.
        HeadwaterError: the error with which the broker ended the read.
    """

    def __init__(
        self, route: ReadOpener, request: ReadRequest, *, leader_epoch: LeaderEpoch | None = None
    ) -> None:
        self._route = route
        self._request = request
        self._position = Offset(request.start) if isinstance(request.start, int) else None
        self._leader_epoch = leader_epoch
        self._cancelled = threading.Event()
        self._source: _Source | None = None
        self._failure: HeadwaterError | None = None  # raised by the next call of __next__
        try:
            self._open()
        except HeadwaterError as error:
            self._failure = error

    @property
    def position(self) -> Offset | None:
        """The next offset; None before the first batch if the start was not an offset."""
        return self._position

    @property
    def leader_epoch(self) -> LeaderEpoch | None:
        """The leader epoch of the record before :attr:`position`; None: not known."""
        return self._leader_epoch

    def __iter__(self) -> Fetch:
        return self

    def __next__(self) -> Fetched:
        """Return the next batch; blocks. With ``follow``, Ctrl-C interrupts the wait.

        After an interrupt the iteration may go on: it opens the read again at its position.
        """
        try:
            received = self._receive()
        except HeadwaterError:
            raise
        except BaseException:
            source, self._source = self._source, None  # it may have given a batch that nobody has
            if source is not None:
                source.cancel()
            raise
        if received is None:
            self._check_end()
            raise StopIteration
        rows, metadata = received
        mark = RowsMark.from_bytes(metadata, uncommitted=self._request.uncommitted)
        self._check_next(mark, rows.num_rows)
        self._position, self._leader_epoch = mark.end_offset, mark.leader_epoch
        self._route.progressed()
        return Fetched(
            rows, mark.base_offset, mark.end_offset, mark.high_watermark, mark.leader_epoch
        )

    def _open(self) -> None:
        request = self._request
        if self._position is not None:
            known = self._leader_epoch if self._position else None
            request = replace(request, start=self._position, leader_epoch=known)
        call = self._route.get(request)
        self._source = _Ahead(call, self._route) if request.follow else call
        if self._cancelled.is_set():
            call.cancel()

    def _receive(self) -> tuple[pa.RecordBatch, bytes] | None:
        """Return the next batch and its mark, from another broker if one fails; None at the end."""
        while not self._cancelled.is_set():
            try:
                if self._failure is not None:
                    error, self._failure = self._failure, None
                    raise error
                if self._source is None:
                    self._open()
                assert self._source is not None, "opened a moment ago"
                return self._source.read()
            except HeadwaterError as error:
                source, self._source = self._source, None
                if self._cancelled.is_set():
                    break
                if source is not None:
                    source.cancel()
                if not self._route.again(error):
                    self._failure = error  # every later call raises the same error
                    raise
        return None

    def cancel(self) -> None:
        """End the read from any thread; the iteration stops without an error."""
        self._cancelled.set()
        self._route.stop()
        source = self._source
        if source is not None:
            source.cancel()

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
        if self._leader_epoch is not None and mark.leader_epoch < self._leader_epoch:
            raise StaleLeaderEpochError(
                f"a record of leader epoch {mark.leader_epoch} came after one of "
                f"{self._leader_epoch}",
                got=mark.leader_epoch,
                current=self._leader_epoch,
            )
        where = f"{self._request.stream}/{self._request.partition}"
        if mark.base_offset > expected or rows_count != mark.rows_count:
            raise GapError(
                f"{where}: offset {expected} was expected, but a batch of {rows_count} rows for "
                f"[{mark.base_offset}, {mark.end_offset}) came",
                partition=self._request.partition,
                start=expected,
                end=mark.base_offset,
            )
        if mark.base_offset < expected:
            raise OverlapError(
                f"{where}: offset {expected} was expected, but {mark.base_offset} came again",
                partition=self._request.partition,
                start=mark.base_offset,
                end=expected,
            )
        end = self._request.end
        if end is not None and mark.end_offset > end:
            raise OverlapError(
                f"{where}: the read ends at {end}, but the broker sent rows up to "
                f"{mark.end_offset}",
                partition=self._request.partition,
                start=end,
                end=mark.end_offset,
            )

    def _check_end(self) -> None:
        """Raise GapError if a read with a given end, not cancelled, has not reached that end."""
        end = self._request.end
        if (
            self._cancelled.is_set()
            or end is None
            or self._position is None
            or self._position == end
        ):
            return
        raise GapError(
            f"{self._request.stream}/{self._request.partition}: the read ended at "
            f"{self._position}, before {end}",
            partition=self._request.partition,
            start=self._position,
            end=end,
        )


class _Source(Protocol):
    """A call, or a thread that reads the call ahead."""

    def read(self) -> tuple[pa.RecordBatch, bytes] | None:
        """Return the next batch and its mark, or None at the end. Blocks."""

    def cancel(self) -> None:
        """End the call. Any thread."""


class _Ahead:
    """Reads a call on a thread of its own, so that the caller's wait can be interrupted.

    Arrow waits in C++, where Python's signal handlers do not run. While no batch comes, the route
    checks whether the read should still wait for this broker.
    """

    def __init__(self, call: Call, route: ReadOpener) -> None:
        self._call = call
        self._route = route
        self._received: queue.Queue[tuple[pa.RecordBatch, bytes] | HeadwaterError | None] = (
            queue.Queue(_AHEAD_MAX)
        )
        self._cancelled = False
        self._thread = threading.Thread(target=self._run, name="headwater-fetch", daemon=True)
        self._thread.start()
        open_calls.process.note(self)

    def read(self) -> tuple[pa.RecordBatch, bytes] | None:
        """Return what :meth:`Call.read` returned on the other thread, or raise its error."""
        while True:
            try:
                received = self._received.get(timeout=IDLE_MS / 1000)
            except queue.Empty:
                lost = None if self._cancelled else self._route.lost()
                if lost is not None:
                    raise lost from None
                continue
            if isinstance(received, HeadwaterError):
                raise received
            return received

    def cancel(self) -> None:
        """End the call. Any thread."""
        self._cancelled = True
        self._call.cancel()

    def leave(self) -> None:
        """See ``OpenCall.leave``; what was read ahead is dropped, so that the thread can end."""
        self.cancel()
        with suppress(queue.Empty):
            while True:
                self._received.get_nowait()

    def join(self, timeout_ms: int) -> bool:
        """See ``OpenCall.join``."""
        self._thread.join(timeout_ms / 1000)
        return not self._thread.is_alive()

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
