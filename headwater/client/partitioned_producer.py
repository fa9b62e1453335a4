"""Sends records to all partitions of a stream, each to the partition that its key chooses.

One Producer per partition does the sending; this module only divides batches. The rule is that of
broker/model/partitioner.py, so the `headwater publish` command and Spark's sink put a key into the
same partition.
"""

from __future__ import annotations

import threading
import time
from collections.abc import Callable
from concurrent.futures import Future
from contextlib import ExitStack
from dataclasses import dataclass
from functools import partial
from types import TracebackType
from typing import Self

import numpy as np
import pyarrow as pa

from broker.errors import (
    CommitTimeoutError,
    HeadwaterError,
    InvalidRequestError,
    PartitionsAddedError,
    ShuttingDownError,
)
from broker.model.partitioner import partition_of_key
from broker.model.records import AppendResult
from broker.model.stream import Stream
from headwater.client.producer import Producer
from headwater.client.records import Records, sendable, to_batch


def only_partition(stream: Stream) -> int:
    """Return partition 0 if a producer of one partition may take it without being told.

    Raises:
        InvalidRequestError: the stream has several partitions, and its keys choose among them.
    """
    config = stream.config
    if config.partitions > 1 and config.partitioner == "crc32":
        raise InvalidRequestError(
            f"stream {stream.name!r} has {config.partitions} partitions: use "
            "client.partitioned_producer(stream), where the key of each record chooses, or give "
            "this producer its partition",
            stream=stream.name,
            field="partition",
        )
    return 0  # several partitions without crc32: producers of release 0.1 chose 0, too


@dataclass(slots=True, eq=False)
class _Part:
    """The rows of one batch for one partition, until they are stored or refused for good."""

    place: int  # in the order of `send`
    partition: int
    rows: pa.RecordBatch
    future: Future[dict[int, AppendResult]]


class PartitionedProducer:
    """Sends batches to all partitions of a stream. Thread-safe.

    Batches keep the order of their ``send`` within each partition. Use it in a ``with`` statement,
    or call :meth:`close`: without a flush, the last batches may not be stored.

    When partitions are added to the stream, a leader refuses the next batch. Then nothing is sent
    until every batch before is answered; what was refused is placed by the new number of partitions
    and sent in the old order, before anything else. So the records of a key stay in their order:
    those in a lower partition were all stored before the first one in a higher partition was sent.
    Under ``acks="none"`` refused batches are lost, and the next :meth:`flush` says so.
    """

    def __init__(self, stream: Stream, opened: Callable[[int, int], Producer]) -> None:
        """``opened`` returns a new producer of a partition, for a number of partitions."""
        config = stream.config
        if config.partitioner != "crc32":
            raise InvalidRequestError(
                f"the partitioner of stream {stream.name!r} is {config.partitioner}: its producers "
                "choose for themselves, so use client.producer(stream, partition)",
                stream=stream.name,
                field="partitioner",
            )
        self._count = config.partitions
        self._opened = opened
        self._producers: dict[int, Producer] = {}
        self._turn = 0
        self._place = 0
        self._closed = False
        self._lock = threading.Lock()  # guards the fields above, and the order within partitions
        self._changed = threading.Condition(
            threading.RLock()
        )  # guards the fields below; never held for long
        self._unanswered: set[_Part] = set()  # a producer has them
        self._placing = False  # refused parts are being sent
        self._refused: list[_Part] = []  # because there are more partitions
        self._added: PartitionsAddedError | None = None  # the refusal with the highest number
        self._failed: HeadwaterError | None = None  # of producers that are closed; for `flush`

    def send(self, records: Records) -> Future[dict[int, AppendResult]]:
        """Send records, as one batch per partition; the future gets the result of each of them.

        The result has the offsets by partition. The future fails with the first error; batches of
        other partitions may be stored then. Blocks while a partition's window is full.

        Raises:
            InvalidRequestError, SchemaMismatchError: the argument is not a batch of records.
            RecordTooLargeError: as :meth:`Producer.send`, before anything is sent.
            CommitTimeoutError: a partition's producer has given up.
            ShuttingDownError: the producer is closed.
        """
        batch = to_batch(records)
        with self._lock:
            if self._closed:
                raise ShuttingDownError("the producer is closed")
            self._place += 1
            parts = [
                _Part(self._place, number, sendable(rows), _running())
                for number, rows in self._divided(batch).items()
            ]
            for part in parts:
                self._send(part)
        return _together([part.future for part in parts])

    def flush(self, timeout_ms: int = 60_000) -> None:
        """Wait until every batch sent before is settled; raises as :meth:`Producer.flush`.

        Raises also:
            PartitionsAddedError: under ``acks="none"``, batches were lost because partitions were
                added to the stream.
        """
        deadline_s = time.monotonic() + timeout_ms / 1000
        with self._changed:
            settled = self._changed.wait_for(
                lambda: not (self._unanswered or self._refused or self._placing), timeout_ms / 1000
            )
            failed, self._failed = self._failed, None
            left = len(self._unanswered) + len(self._refused)
        if failed is not None:
            raise failed
        if not settled:
            raise CommitTimeoutError(f"{left} batches are not settled after {timeout_ms} ms")
        for producer in list(self._producers.values()):
            try:
                producer.flush(max(0, round(1000 * (deadline_s - time.monotonic()))))
            except PartitionsAddedError as error:
                if self._heard_of(error):  # under NONE only: else the batch was placed anew
                    self._begin_anew()
                    raise

    def close(self, timeout_ms: int = 60_000) -> None:
        """Flush, then end the connections; a second call does nothing."""
        with self._lock:
            if self._closed:
                return
            self._closed = True
        try:
            self.flush(timeout_ms)
        finally:  # the flush may have placed batches anew, by other producers
            with ExitStack() as stack:  # closes each of them, then raises what a close has raised
                for producer in list(self._producers.values()):
                    stack.callback(producer.close, timeout_ms)

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        self.close()

    def _send(self, part: _Part) -> None:
        """Give a part to its producer; the caller has the lock."""
        if part.partition not in self._producers:
            self._producers[part.partition] = self._opened(part.partition, self._count)
        try:
            with self._changed:
                self._unanswered.add(part)
            sent = self._producers[part.partition].send(part.rows)
            sent.add_done_callback(partial(self._answered, part))
        except BaseException:
            with self._changed:
                self._unanswered.discard(part)
                self._changed.notify_all()
            raise

    def _answered(self, part: _Part, sent: Future[AppendResult]) -> None:
        """Take the answer to a part; on any thread."""
        error = sent.exception()
        begins = False
        with self._changed:
            if isinstance(error, PartitionsAddedError):
                begins = not self._refused
                self._refused.append(part)
                self._heard_of(error)
            self._unanswered.discard(part)
            self._changed.notify_all()
        if begins:
            threading.Thread(target=self._place_anew, name="headwater-placing", daemon=True).start()
        elif error is None:
            part.future.set_result({part.partition: sent.result()})
        elif not isinstance(error, PartitionsAddedError):
            part.future.set_exception(error)

    def _heard_of(self, error: PartitionsAddedError) -> bool:
        """Note how many partitions there are; return whether that is news."""
        with self._changed:
            known = self._count if self._added is None else int(self._added.partitions_count)
            if int(error.partitions_count) <= known:
                return False
            self._added = error
            return True

    def _place_anew(self) -> None:
        """Send the refused parts to the partitions that they belong to now; on its own thread."""
        with self._lock:  # nothing is sent meanwhile
            with self._changed:
                self._changed.wait_for(lambda: not self._unanswered)
                refused, self._refused = sorted(self._refused, key=lambda one: one.place), []
                self._placing = True  # so that `flush` waits
            self._count_anew()
            for part in refused:
                self._send_anew(part)
            with self._changed:
                self._placing = False
                self._changed.notify_all()

    def _begin_anew(self) -> None:
        with self._lock:
            self._count_anew()

    def _count_anew(self) -> None:
        """Go on with as many partitions as there are; the caller has the lock."""
        assert self._added is not None, "a leader has said how many there are"
        self._count = int(self._added.partitions_count)
        old, self._producers = self._producers, {}
        for producer in old.values():
            try:
                producer.close()  # every part was answered, so it does not wait
            except PartitionsAddedError:
                pass  # its batch was placed anew, or `flush` raises the error
            except HeadwaterError as error:
                self._note(error)

    def _send_anew(self, part: _Part) -> None:
        """Divide a refused part: its rows stay in its partition, or go to partitions above."""
        pieces = [
            _Part(part.place, number, rows, _running())
            for number, rows in self._divided(part.rows, keyless=part.partition).items()
        ]
        _pass_on(_together([piece.future for piece in pieces]), part.future)
        for piece in pieces:
            try:
                self._send(piece)
            except HeadwaterError as error:
                piece.future.set_exception(error)
                self._note(error)

    def _note(self, error: HeadwaterError) -> None:
        with self._changed:
            self._failed = self._failed or error

    def _divided(
        self, batch: pa.RecordBatch, *, keyless: int | None = None
    ) -> dict[int, pa.RecordBatch]:
        """Return the rows of each partition, in their order.

        Rows without a key go to ``keyless``, or to the next partition in turn.
        """
        if self._count == 1:
            return {0: batch}
        keys = batch.column("key").to_pylist() if "key" in batch.schema.names else None
        if keys is None or not any(key is not None for key in keys):
            return {self._next_turn() if keyless is None else keyless: batch}
        if keyless is None:
            keyless = self._next_turn() if any(key is None for key in keys) else 0
        chosen = np.array(
            [keyless if key is None else partition_of_key(key, self._count) for key in keys]
        )
        return {
            int(number): batch.filter(pa.array(chosen == number)) for number in np.unique(chosen)
        }

    def _next_turn(self) -> int:
        turn, self._turn = self._turn, (self._turn + 1) % self._count
        return turn


def _running() -> Future[dict[int, AppendResult]]:
    """Return a future that cannot be cancelled, because the records may be stored."""
    future: Future[dict[int, AppendResult]] = Future()
    future.set_running_or_notify_cancel()
    return future


def _pass_on(
    source: Future[dict[int, AppendResult]], target: Future[dict[int, AppendResult]]
) -> None:
    def settled(_: Future[dict[int, AppendResult]]) -> None:
        error = source.exception()
        if error is not None:
            target.set_exception(error)
        else:
            target.set_result(source.result())

    source.add_done_callback(settled)


def _together(parts: list[Future[dict[int, AppendResult]]]) -> Future[dict[int, AppendResult]]:
    """Return one future of all results."""
    together = _running()
    lock, left = threading.Lock(), len(parts)

    def settled(_: Future[dict[int, AppendResult]]) -> None:
        nonlocal left
        with lock:
            left -= 1
            if left:
                return
        failed = next((one.exception() for one in parts if one.exception()), None)
        if failed is not None:
            together.set_exception(failed)
        else:
            together.set_result({n: result for one in parts for n, result in one.result().items()})

    for one in parts:
        one.add_done_callback(settled)
    return together
