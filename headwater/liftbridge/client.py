"""The synchronous client: the same calls, made on an event loop in a thread of its own."""

from __future__ import annotations

import asyncio
import threading
from collections import deque
from collections.abc import AsyncIterator, Callable, Coroutine, Iterator, Mapping, Sequence
from concurrent.futures import Future
from types import TracebackType
from typing import Any, Final, Self, TypeVar

from broker.errors import HeadwaterError, ShuttingDownError
from broker.model.records import AckPolicy
from broker.model.secret import Secret
from headwater.liftbridge.async_client import AsyncLiftbridge
from headwater.liftbridge.groups import AsyncLiftConsumer, Place
from headwater.liftbridge.partitioners import Partitioner
from headwater.liftbridge.values import (
    AutoOffset,
    Message,
    Metadata,
    PartitionDescription,
    PublishAck,
    Since,
    StreamOptions,
    Tls,
    Until,
)

_Result = TypeVar("_Result")
_AHEAD: Final = 1000  # messages of a subscription that were received and not yet taken
AckCallback = Callable[[PublishAck | None, HeadwaterError | None], None]


class Liftbridge:
    """A client of Liftbridge, or of Headwater's Liftbridge API. A context manager.

    It finds the leader of each partition, follows it when it changes, and goes on with another
    server when one is lost. Any thread may use it.
    """

    def __init__(
        self,
        addresses: str | Sequence[str],
        *,
        tls: Tls | None = None,
        token: Secret | str | None = None,
        timeout_s: float = 30.0,
        resend: bool = False,
    ) -> None:
        """See :class:`AsyncLiftbridge`."""
        self._loop = asyncio.new_event_loop()
        self._thread = threading.Thread(
            target=self._loop.run_forever, name="liftbridge-client", daemon=True
        )
        self._thread.start()
        self._closed = False
        try:
            self._async = self._run(_made(addresses, tls, token, timeout_s, resend=resend))
        except BaseException:
            self._end_loop()
            raise

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        self.close()

    def close(self) -> None:
        """End every call and connection. Blocks. Messages without an acknowledgement are lost."""
        if not self._closed:
            self._run(self._async.close())
            self._closed = True
            self._run(_cancel_others(), closing=True)
            self._end_loop()

    def _end_loop(self) -> None:
        self._loop.call_soon_threadsafe(self._loop.stop)
        self._thread.join()
        self._loop.close()

    def _start(
        self, work: Coroutine[Any, Any, _Result], *, closing: bool = False
    ) -> Future[_Result]:
        if self._closed and not closing:
            work.close()
            raise ShuttingDownError("this client is closed")
        return asyncio.run_coroutine_threadsafe(work, self._loop)

    def _run(self, work: Coroutine[Any, Any, _Result], *, closing: bool = False) -> _Result:
        future = self._start(work, closing=closing)
        try:
            return future.result()
        except BaseException:  # Ctrl-C too: the work ends with its caller
            future.cancel()
            raise

    # ------------------------------------------------------------------ streams

    def create_stream(
        self, name: str, subject: str | None = None, options: StreamOptions | None = None
    ) -> None:
        """See :meth:`AsyncLiftbridge.create_stream`."""
        self._run(self._async.create_stream(name, subject, options))

    def delete_stream(self, name: str) -> None:
        """See :meth:`AsyncLiftbridge.delete_stream`."""
        self._run(self._async.delete_stream(name))

    def pause_stream(
        self, name: str, partitions: Sequence[int] = (), *, resume_all: bool = False
    ) -> None:
        """See :meth:`AsyncLiftbridge.pause_stream`."""
        self._run(self._async.pause_stream(name, partitions, resume_all=resume_all))

    def set_readonly(
        self, name: str, partitions: Sequence[int] = (), *, readonly: bool = True
    ) -> None:
        """See :meth:`AsyncLiftbridge.set_readonly`."""
        self._run(self._async.set_readonly(name, partitions, readonly=readonly))

    def metadata(self, *streams: str) -> Metadata:
        """See :meth:`AsyncLiftbridge.metadata`."""
        return self._run(self._async.metadata(*streams))

    def partition(self, stream: str, partition: int = 0) -> PartitionDescription:
        """See :meth:`AsyncLiftbridge.partition`."""
        return self._run(self._async.partition(stream, partition))

    # ------------------------------------------------------------------ publishing

    def publish(
        self,
        stream: str,
        value: bytes,
        *,
        key: bytes | None = None,
        headers: Mapping[str, bytes] | None = None,
        partition: int | None = None,
        partitioner: Partitioner | None = None,
        policy: AckPolicy = AckPolicy.LEADER,
        expected_offset: int | None = None,
        correlation_id: str | None = None,
    ) -> PublishAck | None:
        """Publish a message and wait; see :meth:`AsyncLiftbridge.publish`."""
        return self.publish_async(
            stream,
            value,
            key=key,
            headers=headers,
            partition=partition,
            partitioner=partitioner,
            policy=policy,
            expected_offset=expected_offset,
            correlation_id=correlation_id,
        ).result()

    def publish_async(
        self,
        stream: str,
        value: bytes,
        *,
        key: bytes | None = None,
        headers: Mapping[str, bytes] | None = None,
        partition: int | None = None,
        partitioner: Partitioner | None = None,
        policy: AckPolicy = AckPolicy.LEADER,
        expected_offset: int | None = None,
        correlation_id: str | None = None,
        callback: AckCallback | None = None,
    ) -> Future[PublishAck | None]:
        """Publish a message and return at once; messages of one thread are stored in order.

        The result has the acknowledgement or the error. ``callback`` gets either one, on the
        client's thread: it must not block.
        """
        future = self._start(
            self._async.publish(
                stream,
                value,
                key=key,
                headers=headers,
                partition=partition,
                partitioner=partitioner,
                policy=policy,
                expected_offset=expected_offset,
                correlation_id=correlation_id,
            )
        )
        if callback is not None:
            future.add_done_callback(lambda done: _tell(done, callback))
        return future

    def publish_to_subject(
        self,
        subject: str,
        value: bytes,
        *,
        key: bytes | None = None,
        headers: Mapping[str, bytes] | None = None,
        policy: AckPolicy = AckPolicy.LEADER,
    ) -> PublishAck | None:
        """See :meth:`AsyncLiftbridge.publish_to_subject`."""
        return self._run(
            self._async.publish_to_subject(subject, value, key=key, headers=headers, policy=policy)
        )

    # ------------------------------------------------------------------ subscribing

    def subscribe(
        self,
        stream: str,
        partition: int = 0,
        *,
        start: Since | None = None,
        stop: Until | None = None,
        read_replica: bool = False,
        resume: bool = False,
        reverse: bool = False,
    ) -> Subscription:
        """Iterate over the messages of a partition; see :meth:`AsyncLiftbridge.subscribe`."""
        messages = self._async.subscribe(
            stream,
            partition,
            start=start,
            stop=stop,
            read_replica=read_replica,
            resume=resume,
            reverse=reverse,
        )
        return Subscription(self._run, messages)

    # ------------------------------------------------------------------ cursors and groups

    def set_cursor(self, cursor: str, stream: str, partition: int, offset: int) -> None:
        """See :meth:`AsyncLiftbridge.set_cursor`."""
        self._run(self._async.set_cursor(cursor, stream, partition, offset))

    def cursor(self, cursor: str, stream: str, partition: int) -> int | None:
        """See :meth:`AsyncLiftbridge.cursor`."""
        return self._run(self._async.cursor(cursor, stream, partition))

    def consumer(
        self,
        group: str,
        streams: Sequence[str],
        *,
        consumer_id: str | None = None,
        auto_offset: AutoOffset = "earliest",
        checkpoint_s: float | None = 5.0,
        poll_s: float | None = None,
    ) -> LiftConsumer:
        """Join a group; see :meth:`AsyncLiftbridge.consumer`."""
        return LiftConsumer(
            self._run,
            self._run(
                self._async.consumer(
                    group,
                    streams,
                    consumer_id=consumer_id,
                    auto_offset=auto_offset,
                    checkpoint_s=checkpoint_s,
                    poll_s=poll_s,
                )
            ),
        )


_Run = Callable[[Coroutine[Any, Any, Any]], Any]


class Subscription(Iterator[Message]):
    """The messages of a partition, one after the other. A context manager; one thread uses it."""

    def __init__(self, run: _Run, messages: AsyncIterator[Message]) -> None:
        self._run = run
        self._pump = _Pump(messages)
        self._ready: deque[Message] = deque()

    def __next__(self) -> Message:
        """Return the next message. Blocks."""
        if not self._ready:
            self._ready.extend(self._run(self._pump.take()))
        if not self._ready:
            raise StopIteration
        return self._ready.popleft()

    def close(self) -> None:
        """End the subscription; what was received and not taken is dropped."""
        self._ready.clear()
        self._run(self._pump.close())

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        self.close()


class _Pump:
    """Reads ahead, so that a thread crosses to the event loop once for many messages."""

    def __init__(self, messages: AsyncIterator[Message]) -> None:
        self._messages = messages
        self._queue: asyncio.Queue[Message | BaseException | None] = asyncio.Queue(_AHEAD)
        self._task: asyncio.Task[None] | None = None
        self._end: BaseException | None = None
        self._ended = False

    async def take(self) -> list[Message]:
        """Return what is there, at least one message; nothing: the end."""
        if self._task is None:
            self._task = asyncio.ensure_future(self._read())
        found: list[Message] = []
        while not self._ended and (not found or not self._queue.empty()):
            one = await self._queue.get()
            if isinstance(one, Message):
                found.append(one)
            else:
                self._ended, self._end = True, one
        if not found and self._end is not None:
            raise self._end
        return found

    async def _read(self) -> None:
        try:
            async for message in self._messages:
                await self._queue.put(message)
        except HeadwaterError as error:
            await self._queue.put(error)
        else:
            await self._queue.put(None)

    async def close(self) -> None:
        """End the reading."""
        self._ended = True
        if self._task is not None:
            self._task.cancel()
            await asyncio.gather(self._task, return_exceptions=True)
        closing = getattr(self._messages, "aclose", None)
        if closing is not None:
            await closing()


class LiftConsumer(Iterator[Message]):
    """A member of a group; see :class:`AsyncLiftConsumer`. One thread uses it."""

    def __init__(self, run: _Run, consumer: AsyncLiftConsumer) -> None:
        self._run = run
        self._consumer = consumer

    @property
    def consumer_id(self) -> str:
        """The member's name in the group."""
        return self._consumer.consumer_id

    @property
    def assigned(self) -> list[Place]:
        """The partitions that this member has now, as (stream, number)."""
        return self._consumer.assigned

    def __next__(self) -> Message:
        """Return the next message; the one before counts as processed. Blocks."""
        try:
            message: Message = self._run(self._consumer.__anext__())
        except StopAsyncIteration:
            raise StopIteration from None
        return message

    def processed(self) -> None:
        """Count the message that was handed out last as processed."""
        self._run(_call(self._consumer.processed))

    def checkpoint(self) -> Mapping[Place, int]:
        """See :meth:`AsyncLiftConsumer.checkpoint`."""
        found: Mapping[Place, int] = self._run(self._consumer.checkpoint())
        return found

    def close(self) -> None:
        """See :meth:`AsyncLiftConsumer.close`."""
        self._run(self._consumer.close())

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        self.close()


async def _made(
    addresses: str | Sequence[str],
    tls: Tls | None,
    token: Secret | str | None,
    timeout_s: float,
    *,
    resend: bool,
) -> AsyncLiftbridge:
    return AsyncLiftbridge(addresses, tls=tls, token=token, timeout_s=timeout_s, resend=resend)


async def _call(work: Callable[[], None]) -> None:
    work()


async def _cancel_others() -> None:
    others = asyncio.all_tasks() - {asyncio.current_task()}
    for one in others:
        one.cancel()
    await asyncio.gather(*others, return_exceptions=True)


def _tell(done: Future[PublishAck | None], callback: AckCallback) -> None:
    if done.cancelled():
        callback(None, ShuttingDownError("the client was closed"))
        return
    error = done.exception()
    if error is None:
        callback(done.result(), None)
    elif isinstance(error, HeadwaterError):
        callback(None, error)
