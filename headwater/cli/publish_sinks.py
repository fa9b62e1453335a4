"""The two ways of ``headwater publish`` to a broker: NATS messages, or Arrow batches by Flight."""

from __future__ import annotations

from collections import defaultdict, deque
from collections.abc import Iterator
from concurrent.futures import Future
from contextlib import ExitStack
from types import TracebackType
from typing import TYPE_CHECKING, Final, Self

import pyarrow as pa

from broker.codec.schema import HEADERS_TYPE
from broker.errors import InvalidRequestError
from broker.model.records import AckPolicy, AppendResult
from broker.model.stream import Stream
from headwater.cli.publish_records import OutgoingRecord
from headwater.nats_login import NatsLogin
from headwater.nats_publisher import NatsMessage, NatsPublisher

if TYPE_CHECKING:
    from headwater.client import Client, Producer

_RECORD_OVERHEAD_BYTES: Final = 40  # of a record or header in a batch: offsets, time, bitmaps


class NatsSink:
    """Publishes as any NATS client does; the broker acknowledges each record once it is durable."""

    def __init__(
        self,
        url: str,
        stream: Stream,
        headers: list[tuple[str, str]],
        *,
        window: int,
        acks: bool,
        login: NatsLogin | None = None,
    ) -> None:
        """Prepare; connects on entering.

        Raises:
            InvalidRequestError: a header is given twice; this client cannot send that by NATS.
        """
        names = [name for name, _ in headers]
        if len(set(names)) != len(names):
            raise InvalidRequestError("a header given twice can only be sent with --via flight")
        self._headers = dict(headers)
        self._key_header = stream.config.key_header
        self._publisher = NatsPublisher(url, stream=stream, window=window, acks=acks, login=login)

    @property
    def acked(self) -> int:
        """Records that were acknowledged; they are durable, except for the duplicates."""
        return self._publisher.counts.acked

    @property
    def duplicates(self) -> int:
        """Of the acknowledged: the stream had a record with the message id that the user gave."""
        return self._publisher.counts.named_duplicates

    def send(self, records: list[OutgoingRecord]) -> None:
        """Send in order; blocks while the window is full."""
        self._publisher.publish([self._message(record) for record in records])

    def finish(self) -> None:
        """Block until every record is acknowledged."""
        self._publisher.finish()

    def _message(self, record: OutgoingRecord) -> NatsMessage:
        if record.key is None:
            return NatsMessage(record.subject, record.value, self._headers or None)
        try:
            key = record.key.decode()
        except UnicodeDecodeError as cause:
            raise InvalidRequestError(
                f"key {record.key!r} is not UTF-8 text, as a NATS header must be: use --via flight"
            ) from cause
        if key != key.strip() or "\n" in key or "\r" in key:
            raise InvalidRequestError(
                f"key {key!r} cannot be sent unchanged in a NATS header: use --via flight"
            )
        return NatsMessage(record.subject, record.value, {**self._headers, self._key_header: key})

    def __enter__(self) -> Self:
        self._publisher.__enter__()
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        self._publisher.__exit__(kind, error, trace)


class FlightSink:
    """Sends Arrow batches, one producer per partition; under ALL a retry is stored once."""

    def __init__(
        self,
        client: Client,
        stream: Stream,
        headers: list[tuple[str, str]],
        acks: AckPolicy = AckPolicy.ALL,
        *,
        placed_by: int | None = None,
    ) -> None:
        """Prepare; the first record of a partition opens the partition's producer.

        ``placed_by``: the number of partitions with which keys were placed; None: no key was.
        """
        self._placed_by = placed_by
        self._client = client
        self._stream = stream
        self._acks = acks
        entries = [{"key": name, "value": value.encode()} for name, value in headers]
        self._headers_bytes = sum(
            len(name) + len(value.encode()) + _RECORD_OVERHEAD_BYTES for name, value in headers
        )
        self._headers = pa.scalar(entries or None, HEADERS_TYPE)
        self._producers: dict[int, Producer] = {}
        self._stack = ExitStack()
        self._unanswered: deque[Future[AppendResult]] = deque()
        self._acked = 0

    @property
    def acked(self) -> int:
        """Records that were acknowledged under the ack policy; 0 under NONE."""
        since = [one.result() for one in self._unanswered if one.done() and not one.exception()]
        return self._acked + sum(map(_acked_count, since))

    @property
    def duplicates(self) -> int:
        """None: by Flight a header is no message id, and a retry is stored once."""
        return 0

    def send(self, records: list[OutgoingRecord]) -> None:
        """Send a batch per partition; blocks while a window is full."""
        by_partition: defaultdict[int, list[OutgoingRecord]] = defaultdict(list)
        for record in records:
            by_partition[record.partition].append(record)
        for partition, group in by_partition.items():
            for piece in self._pieces(group):
                future = self._producer(partition).send(self._batch(partition, piece))
                self._unanswered.append(future)
        while self._unanswered and self._unanswered[0].done():
            self._count_next()

    def finish(self) -> None:
        """Block until every batch is answered."""
        for producer in self._producers.values():
            producer.flush()
        while self._unanswered:
            self._count_next()

    def _producer(self, partition: int) -> Producer:
        found = self._producers.get(partition)
        if found is None:
            opened = self._client.producer(
                self._stream.name,
                partition=partition,
                acks=self._acks.value,
                placed_by=self._placed_by,
            )
            found = self._producers[partition] = self._stack.enter_context(opened)
        return found

    def _pieces(self, records: list[OutgoingRecord]) -> Iterator[list[OutgoingRecord]]:
        """Cut records into batches of half a segment at most: one that fits in none is refused."""
        room = self._stream.config.segment_bytes_max // 2
        piece: list[OutgoingRecord] = []
        left = room
        for record in records:
            size = len(record.value) + len(record.key or b"") + len(record.subject)
            size += self._headers_bytes + _RECORD_OVERHEAD_BYTES
            if size > left and piece:
                yield piece
                piece, left = [], room
            piece.append(record)
            left -= size
        yield piece

    def _batch(self, partition: int, records: list[OutgoingRecord]) -> pa.RecordBatch:
        own = self._stream.config.partition_subject(partition)
        subjects = [None if record.subject == own else record.subject for record in records]
        return pa.RecordBatch.from_arrays(
            [
                pa.array([record.key for record in records], pa.binary()),
                pa.array([record.value for record in records], pa.binary()),
                pa.repeat(self._headers, len(records)),
                pa.array(subjects, pa.string()),
            ],
            names=["key", "value", "headers", "subject"],
        )

    def _count_next(self) -> None:
        """Count the oldest batch: wait for its answer; raises the broker's error if refused."""
        self._acked += _acked_count(self._unanswered.popleft().result())

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        self._stack.__exit__(kind, error, trace)


def _acked_count(result: AppendResult) -> int:
    return 0 if result.acks is AckPolicy.NONE else result.records_count
