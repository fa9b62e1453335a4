"""Sends records to all partitions of a stream, each to the partition that its key chooses.

One Producer per partition does the sending; this module only divides batches. The rule is that of
broker/model/partitioner.py, so the `headwater publish` command and Spark's sink put a key into the
same partition.
"""

from __future__ import annotations

import threading
from collections.abc import Callable
from concurrent.futures import Future
from contextlib import ExitStack
from types import TracebackType
from typing import Self

import numpy as np
import pyarrow as pa

from broker.errors import InvalidRequestError
from broker.model.partitioner import partition_of_key
from broker.model.records import AppendResult
from broker.model.stream import Stream
from headwater.client.producer import Producer
from headwater.client.records import Records, to_batch


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


class PartitionedProducer:
    """Sends batches to all partitions of a stream. Thread-safe.

    Batches keep the order of their ``send`` within each partition. Use it in a ``with`` statement,
    or call :meth:`close`: without a flush, the last batches may not be stored.
    """

    def __init__(self, stream: Stream, opened: Callable[[int], Producer]) -> None:
        """``opened`` returns a new producer of a partition."""
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
        self._lock = threading.Lock()  # guards the fields above, and the order within partitions

    def send(self, records: Records) -> Future[dict[int, AppendResult]]:
        """Send records, as one batch per partition; the future gets the result of each of them.

        The result has the offsets by partition. The future fails with the first error; batches of
        other partitions may be stored then. Blocks while a partition's window is full.

        Raises:
            InvalidRequestError, SchemaMismatchError: the argument is not a batch of records.
            CommitTimeoutError: a partition's producer has given up.
        """
        batch = to_batch(records)
        with self._lock:
            parts = self._divided(batch)
            sent = {number: self._producer(number).send(part) for number, part in parts.items()}
        return _together(sent)

    def flush(self, timeout_ms: int = 60_000) -> None:
        """Wait until every batch sent before is settled; raises as :meth:`Producer.flush`."""
        for producer in list(self._producers.values()):
            producer.flush(timeout_ms)

    def close(self, timeout_ms: int = 60_000) -> None:
        """Flush, then end the connections; a second call does nothing."""
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

    def _producer(self, partition: int) -> Producer:
        if partition not in self._producers:
            self._producers[partition] = self._opened(partition)
        return self._producers[partition]

    def _divided(self, batch: pa.RecordBatch) -> dict[int, pa.RecordBatch]:
        """Return the rows of each partition, in their order."""
        if self._count == 1:
            return {0: batch}
        keys = batch.column("key").to_pylist() if "key" in batch.schema.names else None
        if keys is None or not any(key is not None for key in keys):
            return {self._next_turn(): batch}
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


def _together(sent: dict[int, Future[AppendResult]]) -> Future[dict[int, AppendResult]]:
    """Return one future of all results; it cannot be cancelled, because batches may be stored."""
    together: Future[dict[int, AppendResult]] = Future()
    together.set_running_or_notify_cancel()
    lock, left = threading.Lock(), len(sent)

    def settled(_: Future[AppendResult]) -> None:
        nonlocal left
        with lock:
            left -= 1
            if left:
                return
        failed = next((one.exception() for one in sent.values() if one.exception()), None)
        if failed is not None:
            together.set_exception(failed)
        else:
            together.set_result({number: one.result() for number, one in sent.items()})

    for one in sent.values():
        one.add_done_callback(settled)
    return together
