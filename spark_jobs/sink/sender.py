"""Sends one task's cuts to one partition; each is stored once, even if attempts run concurrently.

Only one cut is in flight: if a cut is refused, there must be no later cut under another producer
id, which a retry would not recognise. A cut that the broker has already is fetched and compared. So
a plan whose rows differ between attempts ends with an error, and never with wrong rows. If an
attempt succeeds, its rows are in the log once, in its order.

If the input of a task fails, Spark just ends the rows. Such a failed attempt stores a last cut that
is too short. The next attempt's cut is refused there, and the answer has the number of rows that
are stored. The attempt then sends exactly these rows under the same sequence numbers, gets their
offset, and goes on in a new segment. No attempt adds to a segment that ended like this, so all
later attempts find the same state.
"""

from __future__ import annotations

from concurrent.futures import Future
from contextlib import suppress
from typing import TYPE_CHECKING, Final

import pyarrow as pa

from broker.codec.schema import HEADERS_TYPE, TIMESTAMP_TYPE
from broker.errors import HeadwaterError, InvalidRequestError, SequenceGapError
from broker.model.ids import ProducerId, StreamUuid
from spark_jobs.sink.cuts import CUTS_PER_PRODUCER, Origin, producer_id

if TYPE_CHECKING:
    from broker.model.records import AppendResult
    from headwater.client import Client
    from headwater.client.producer import Producer

_PROBE_SEQUENCE: Final = 2**62  # never the expected number: the refusal has the expected one
_ADVICE: Final = (
    "the plan gives other rows, or another order, when Spark computes it again: sort within "
    "partitions by a unique key, keep the number of partitions, or write from a checkpoint()"
)


class PartitionSender:
    """The cuts of one task for one partition of the stream, in order. One thread."""

    def __init__(
        self,
        client: Client,
        origin: Origin,
        *,
        stream: str,
        stream_uuid: StreamUuid,
        partition: int,
        timeout_ms: int,
    ) -> None:
        self._client = client
        self._origin = origin
        self._stream = stream
        self._stream_uuid = stream_uuid
        self._partition = partition
        self._timeout_ms = timeout_ms
        self._segment = 0
        self._cuts = 0  # of this segment
        self._sequence = 0  # rows of this segment
        self._producer: Producer | None = None
        self._waiting: tuple[pa.RecordBatch, int, Future[AppendResult]] | None = None
        self.records_count = 0
        self.repeated_count = 0  # those of them that an earlier attempt stored

    def send(self, cut: pa.RecordBatch) -> None:
        """Send a cut after the previous cut is stored. Blocks.

        Raises:
            InvalidRequestError: an earlier attempt stored other rows; or the rows are refused.
            HeadwaterError: the broker does not accept the rows.
        """
        self._settle()
        if self._cuts == CUTS_PER_PRODUCER:
            self._next_segment()
        self._send(cut)

    def finish(self) -> None:
        """Wait for the last cut; check that no earlier attempt stored more than this one.

        Raises:
            As :meth:`send`.
        """
        self._settle()
        self._close()
        if not self.repeated_count:
            return
        stored = self._stored(self._segment)
        more = stored != self._sequence or (
            self._cuts == CUTS_PER_PRODUCER and self._stored(self._segment + 1) != 0
        )
        if more:
            raise self._differs("an earlier attempt stored more rows than this one has")

    def abandon(self) -> None:
        """Close the connection; a cut without an answer may or may not be stored."""
        self._waiting = None
        with suppress(HeadwaterError):
            self._close(timeout_ms=0)

    def _send(self, cut: pa.RecordBatch) -> None:
        if self._producer is None:
            self._producer = self._open(self._id(self._segment), sequence=self._sequence)
        self._waiting = (cut, self._sequence, self._producer.send(cut))
        self._cuts += 1
        self._sequence += cut.num_rows

    def _settle(self) -> None:
        """Wait for the answer to the cut in flight; to two, if that cut had to be divided."""
        while self._waiting is not None:
            (cut, sequence, future), self._waiting = self._waiting, None
            try:
                result = future.result()
            except SequenceGapError as error:
                self._resume(cut, sequence, int(error.expected) - sequence)
                continue
            self._count(cut, result)

    def _resume(self, cut: pa.RecordBatch, sequence: int, stored: int) -> None:
        """Go on after a failed attempt whose last cut was only the beginning of this cut."""
        if not 0 < stored < cut.num_rows:
            raise self._differs("an earlier attempt stored batches of other sizes")
        self._close()
        head = cut.slice(0, stored)
        again = self._open(self._id(self._segment), sequence=sequence)
        try:
            result = again.send(head).result()
        except SequenceGapError as error:
            raise self._differs("an earlier attempt stored batches of other sizes") from error
        finally:
            with suppress(HeadwaterError):
                again.close()
        self._count(head, result)
        self._next_segment()
        self._send(cut.slice(stored))

    def _next_segment(self) -> None:
        self._close()
        self._segment, self._cuts, self._sequence = self._segment + 1, 0, 0

    def _count(self, cut: pa.RecordBatch, result: AppendResult) -> None:
        self.records_count += cut.num_rows
        if result.duplicate:
            self.repeated_count += cut.num_rows
            self._compare(cut, result.base_offset)

    def _compare(self, cut: pa.RecordBatch, start: int) -> None:
        """Compare a cut with the records that the log has at its offsets."""
        names = cut.schema.names
        with self._client.fetch(
            self._stream,
            self._partition,
            start,
            start + cut.num_rows,
            columns=names,
            stream_uuid=self._stream_uuid,
        ) as fetch:
            stored = pa.Table.from_batches([piece.batch for piece in fetch])
        for name in names:
            ours, theirs = _comparable(name, cut.column(name), stored.column(name))
            if not ours.equals(theirs):
                raise self._differs(
                    f"the log has another {name} in offsets {start} to {start + cut.num_rows}"
                )

    def _stored(self, segment: int) -> int:
        """Return how many rows of a segment are stored: a refused probe batch tells it."""
        producer = self._open(self._id(segment), sequence=_PROBE_SEQUENCE)
        try:
            producer.send([None]).result()
        except SequenceGapError as error:
            return int(error.expected)
        finally:
            with suppress(HeadwaterError):
                producer.close(timeout_ms=0)
        raise AssertionError("the broker stored a batch with a gap before it")

    def _open(self, identity: ProducerId, *, sequence: int = 0) -> Producer:
        return self._client.producer(
            self._stream,
            self._partition,
            stream_uuid=self._stream_uuid,
            producer_id=identity,
            sequence=sequence,
            retry_ms_max=self._timeout_ms,
        )

    def _close(self, timeout_ms: int = 60_000) -> None:
        producer, self._producer = self._producer, None
        if producer is not None:
            with suppress(SequenceGapError):  # the answer to the cut has raised it already
                producer.close(timeout_ms)

    def _id(self, segment: int) -> ProducerId:
        return producer_id(self._origin, self._stream_uuid, self._partition, segment)

    def _differs(self, how: str) -> InvalidRequestError:
        origin = self._origin
        return InvalidRequestError(
            f"task {origin.task} of {origin.kind} {origin.key}, batch {origin.batch}, was repeated "
            f"with other rows for {self._stream}/{self._partition}: {how}; {_ADVICE}",
            stream=self._stream,
            partition=self._partition,
            batch=origin.batch,
            task=origin.task,
        )


def _comparable(
    name: str, ours: pa.Array, theirs: pa.ChunkedArray
) -> tuple[pa.ChunkedArray, pa.ChunkedArray]:
    """Return both columns in one type, without values that the broker filled in for a null."""
    mine = pa.chunked_array([ours])
    if name == "timestamp":
        given = ours.is_valid()
        return mine.cast(TIMESTAMP_TYPE).filter(given), theirs.cast(TIMESTAMP_TYPE).filter(given)
    if name == "subject":
        given = ours.is_valid()
        return mine.filter(given), theirs.filter(given)
    kind = HEADERS_TYPE if name == "headers" else mine.type
    return mine.cast(kind).combine_chunks(), theirs.cast(kind).combine_chunks()
