"""The client for asyncio: the calls of :class:`headwater.Client`, each in a worker thread.

Arrow Flight's client blocks, so a call takes a thread of the event loop's pool while it runs. A
consumer takes one thread per partition besides.
"""

from __future__ import annotations

import asyncio
import os
import threading
from collections.abc import AsyncIterator, Callable, Iterator, Mapping, Sequence
from contextlib import asynccontextmanager
from functools import partial
from types import TracebackType
from typing import Any, Literal, Self, TypeVar, Unpack

from broker.codec.flight.protocol import AtTime
from broker.errors import InvalidRequestError
from broker.model.purge import Purged
from broker.model.records import AppendResult
from broker.model.secret import Secret
from broker.model.stream import AlteredStream, Stream
from headwater.client.client import Client
from headwater.client.consumer import Consumed, Consumer
from headwater.client.descriptions import StreamDescription
from headwater.client.group.consumer import CallBack, GroupConsumer
from headwater.client.group.opening import OffsetReset
from headwater.client.group.records import GroupBatch, GroupRecord
from headwater.client.partitioned_producer import PartitionedProducer
from headwater.client.records import Records
from headwater.client.settings import StreamSettings

_Reads = TypeVar("_Reads", Consumer, GroupConsumer)


class AsyncProducer:
    """Sends records from coroutines; made by :meth:`AsyncClient.producer`."""

    def __init__(self, producer: PartitionedProducer) -> None:
        self._producer = producer
        self._turn = asyncio.Lock()  # first come, first served; held while a thread sends

    async def send(self, records: Records) -> dict[int, AppendResult]:
        """Send records and wait until they are stored; return the offsets by partition.

        Several sends may wait at a time. Their order is that in which they were begun. A send that
        is cancelled before its turn sends nothing; later, its records may be stored.

        Raises:
            HeadwaterError: as the future of :meth:`PartitionedProducer.send`.
        """
        await self._turn.acquire()
        # A coroutine that is cancelled does not end the thread, so the turn ends with the thread.
        sending = asyncio.ensure_future(asyncio.to_thread(self._producer.send, records))
        sending.add_done_callback(lambda _: self._turn.release())
        sent = await asyncio.shield(sending)
        return await asyncio.shield(asyncio.wrap_future(sent))


class AsyncGroupConsumer:
    """A member of a consumer group, for coroutines; made by :meth:`AsyncClient.consumer`.

    One coroutine at a time reads, by iterating or by :meth:`poll`. A coroutine that is cancelled
    while it waits, as ``asyncio.wait_for`` does, loses nothing: the next call of the same kind
    returns what has arrived for it.
    """

    def __init__(self, consumer: GroupConsumer) -> None:
        self.consumer = consumer
        self._records: Iterator[GroupRecord] | None = None
        self._taking: asyncio.Future[Any] | None = None  # on a worker thread
        self._kind = ""
        self._left = False  # the coroutine that began the call was cancelled

    @property
    def has_undelivered(self) -> bool:
        """Whether a cancelled call has taken, or may take, records that nobody was given."""
        return self._left

    async def __aiter__(self) -> AsyncIterator[GroupRecord]:
        """Iterate over records, as :class:`GroupConsumer`."""
        while (found := await self._take("iteration", self._next)) is not None:
            yield found

    async def poll(self, timeout_s: float | None) -> GroupBatch | None:
        """Return the next rows, as :meth:`GroupConsumer.poll`."""
        found: GroupBatch | None = await self._take("poll", lambda: self.consumer.poll(timeout_s))
        return found

    async def commit(self, timeout_s: float = 30.0) -> None:
        """Commit what was given, as :meth:`GroupConsumer.commit`.

        Raises also:
            InvalidRequestError: a cancelled call has taken records that it did not return.
        """
        if self._left:
            raise InvalidRequestError(
                f"a cancelled {self._kind} has taken records that nobody was given, and a commit "
                "would leave them out: read once more, then commit"
            )
        await asyncio.to_thread(self.consumer.commit, timeout_s)

    async def seek(self, stream: str, partition: int, offset: int) -> None:
        """Go on at another offset, as :meth:`GroupConsumer.seek`."""
        await asyncio.to_thread(self.consumer.seek, stream, partition, offset)

    def _next(self) -> GroupRecord | None:
        """Return the next record; on a worker thread, one call at a time."""
        if self._records is None:
            self._records = iter(self.consumer)
        try:
            return next(self._records, None)
        except BaseException:
            self._records = None  # the iteration may go on with the other partitions
            raise

    async def _take(self, kind: str, call: Callable[[], Any]) -> Any:
        """Return the result of a call, or the result that a cancelled call has left."""
        if self._taking is not None and (kind != self._kind or not self._left):
            raise InvalidRequestError(
                f"a {self._kind} of this consumer is under way: await it first"
            )
        if self._taking is None:
            self._taking, self._kind = asyncio.ensure_future(asyncio.to_thread(call)), kind
        self._left = False
        try:
            found = await asyncio.shield(self._taking)
        except asyncio.CancelledError:
            self._left = True
            raise
        except BaseException:
            self._taking = None
            raise
        self._taking = None
        return found


class AsyncClient:
    """A broker or a cluster, for coroutines. The arguments are those of :class:`Client`."""

    def __init__(
        self,
        url: str | None = None,
        *,
        tls_ca_file: str | os.PathLike[str] | None = None,
        tls_cert_file: str | os.PathLike[str] | None = None,
        tls_key_file: str | os.PathLike[str] | None = None,
        token: Secret | str | None = None,
    ) -> None:
        self.client = Client(
            url,
            tls_ca_file=tls_ca_file,
            tls_cert_file=tls_cert_file,
            tls_key_file=tls_key_file,
            token=token,
        )

    async def close(self) -> None:
        """Close the connections; a read that goes on has to be closed by itself."""
        await asyncio.to_thread(self.client.close)

    async def __aenter__(self) -> Self:
        return self

    async def __aexit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        await self.close()

    async def create_stream(
        self, name: str, *, subject: str | None = None, **config: Unpack[StreamSettings]
    ) -> Stream:
        """Create a stream, as :meth:`Client.create_stream`."""
        return await asyncio.to_thread(self.client.create_stream, name, subject=subject, **config)

    async def alter_stream(
        self, name: str, *, dry_run: bool = False, **changes: Unpack[StreamSettings]
    ) -> AlteredStream:
        """Change settings of a stream, as :meth:`Client.alter_stream`."""
        return await asyncio.to_thread(self.client.alter_stream, name, dry_run=dry_run, **changes)

    async def purge_stream(
        self,
        name: str,
        partition: int | None = None,
        *,
        before: int | None = None,
        before_us: int | None = None,
        ends: Mapping[int, int] | None = None,
    ) -> list[Purged]:
        """Delete records of a stream on purpose, as :meth:`Client.purge_stream`."""
        return await asyncio.to_thread(
            self.client.purge_stream,
            name,
            partition,
            before=before,
            before_us=before_us,
            ends=ends,
        )

    async def pause_stream(
        self, name: str, partitions: Sequence[int] = (), *, resume_all: bool = False
    ) -> None:
        """Pause partitions of a stream, as :meth:`Client.pause_stream`."""
        await asyncio.to_thread(self.client.pause_stream, name, partitions, resume_all=resume_all)

    async def resume_stream(self, name: str, partitions: Sequence[int] = ()) -> None:
        """Resume partitions of a stream, as :meth:`Client.resume_stream`."""
        await asyncio.to_thread(self.client.resume_stream, name, partitions)

    async def set_stream_readonly(
        self, name: str, partitions: Sequence[int] = (), *, readonly: bool = True
    ) -> None:
        """Make partitions read-only or not, as :meth:`Client.set_stream_readonly`."""
        await asyncio.to_thread(
            self.client.set_stream_readonly, name, partitions, readonly=readonly
        )

    async def stream(self, name: str) -> Stream:
        """Return a stream; raises UnknownStreamError."""
        return await asyncio.to_thread(self.client.stream, name)

    async def streams(self) -> list[Stream]:
        """Return all streams by name."""
        return await asyncio.to_thread(self.client.streams)

    async def describe(self, name: str) -> StreamDescription:
        """Return a stream with the positions of its partitions; raises UnknownStreamError."""
        return await asyncio.to_thread(self.client.describe, name)

    @asynccontextmanager
    async def producer(
        self, stream: str, *, acks: Literal["all", "leader", "none"] = "all"
    ) -> AsyncIterator[AsyncProducer]:
        """Return a producer for all partitions, as :meth:`Client.partitioned_producer`."""
        made = await asyncio.to_thread(self.client.partitioned_producer, stream, acks=acks)
        try:
            yield AsyncProducer(made)
        finally:
            await asyncio.to_thread(made.close)

    @asynccontextmanager
    async def consumer(
        self,
        streams: str | Sequence[str],
        *,
        group: str,
        member_id: str | None = None,
        columns: Sequence[str] | None = None,
        auto_offset_reset: OffsetReset = "earliest",
        commit_ms: int | None = 5_000,
        session_ms: int = 10_000,
        processing_ms_max: int = 300_000,
        on_assigned: CallBack | None = None,
        on_revoked: CallBack | None = None,
        on_lost: CallBack | None = None,
    ) -> AsyncIterator[AsyncGroupConsumer]:
        """Read as a member of a consumer group, as :meth:`Client.consumer`.

        ``async with … as consumer: async for record in consumer``. The call-backs run in a worker
        thread, while the iteration waits.
        """
        made = await _opened(
            partial(
                self.client.consumer,
                streams,
                group=group,
                member_id=member_id,
                columns=columns,
                auto_offset_reset=auto_offset_reset,
                commit_ms=commit_ms,
                session_ms=session_ms,
                processing_ms_max=processing_ms_max,
                on_assigned=on_assigned,
                on_revoked=on_revoked,
                on_lost=on_lost,
            )
        )
        given, processed = AsyncGroupConsumer(made), False
        try:
            yield given
            processed = not given.has_undelivered
        finally:
            await asyncio.shield(asyncio.to_thread(made.close, processed=processed))

    @asynccontextmanager
    async def consume(
        self,
        stream: str,
        start: Literal["earliest", "latest"] | AtTime | Mapping[int, int] = "earliest",
        *,
        columns: Sequence[str] | None = None,
        follow: bool = False,
    ) -> AsyncIterator[AsyncIterator[Consumed]]:
        """Read all partitions, as :meth:`Client.consume`: ``async with … as rows: async for …``."""
        consumer = await _opened(
            partial(self.client.consume, stream, start, columns=columns, follow=follow)
        )
        try:
            yield _batches(consumer)
        finally:
            await asyncio.to_thread(consumer.close)


async def _opened(opening: Callable[[], _Reads]) -> _Reads:
    """Return a consumer that a thread makes; if nobody waits for it any more, it is closed.

    Else a member whose coroutine was cancelled would keep its partitions from the others.
    """
    making = asyncio.ensure_future(asyncio.to_thread(opening))
    try:
        return await asyncio.shield(making)
    except asyncio.CancelledError:
        making.add_done_callback(_close_unwanted)
        raise


def _close_unwanted(made: asyncio.Future[_Reads]) -> None:
    if not made.cancelled() and made.exception() is None:
        threading.Thread(target=made.result().close, name="headwater-unwanted").start()


async def _batches(consumer: Consumer) -> AsyncIterator[Consumed]:
    while (one := await asyncio.to_thread(next, consumer, None)) is not None:
        yield one
