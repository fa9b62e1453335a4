"""The client of Liftbridge's API for asyncio; the synchronous one is a front of it."""

from __future__ import annotations

import asyncio
import itertools
import uuid
from collections.abc import AsyncIterator, Awaitable, Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from types import TracebackType
from typing import Any, Final, Self

from broker.errors import (
    CommitTimeoutError,
    HeadwaterError,
    InvalidRequestError,
    NoAnswerError,
    UnavailableError,
    UnknownStreamError,
)
from broker.model.records import AckPolicy
from broker.model.secret import Secret
from broker.wire.liftbridge import api_pb2 as api
from headwater.liftbridge.directory import Directory
from headwater.liftbridge.following import FollowedPartition
from headwater.liftbridge.groups import AsyncLiftConsumer
from headwater.liftbridge.grpc_calls import CallRefused, ServerConnections, answers, ask, in_turn
from headwater.liftbridge.partitioners import Partitioner
from headwater.liftbridge.publishing import AckCall
from headwater.liftbridge.requests import (
    ack_of,
    create_request,
    message_of,
    metadata_of,
    partition_of,
    publish_request,
    subject_request,
)
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

_ATTEMPT_S: Final = 10.0  # of one call, before another server is asked
_PAUSE_S: Final = 0.05
_AGAIN: Final = {"UNAVAILABLE", "FAILED_PRECONDITION", "DEADLINE_EXCEEDED", "CANCELLED"}
CURSORS: Final = "__cursors"

_Call = Callable[[Any, float], Awaitable[Any]]  # of a server's stubs, with the seconds that it has


@contextmanager
def _told(doubt: list[CommitTimeoutError]) -> Iterator[None]:
    """Raise CommitTimeoutError for a later failure if an attempt may have stored the message."""
    try:
        yield
    except CommitTimeoutError:
        raise
    except HeadwaterError as error:
        if not doubt:
            raise
        raise CommitTimeoutError(
            f"the message may be stored: {doubt[0].message}; sent again, it failed: "
            f"{error.message}",
            cause=type(error).__name__,
        ) from error


class AsyncLiftbridge:
    """A client of Liftbridge, or of Headwater's Liftbridge API. An async context manager.

    It finds the leader of each partition, follows it when it changes, and goes on with another
    server when one is lost. One event loop owns it.
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
        """``addresses`` are host:port, of some servers of the cluster; with commas or a list.

        ``timeout_s`` is how long a call may look for a server that answers. With ``resend`` a
        message whose acknowledgement was lost with its server is sent again, so that it may be
        stored twice. Without ``resend`` such a message fails with CommitTimeoutError: it may be
        stored or not. The ``token`` proves who calls, at a Headwater with access control; without
        TLS it is sent over the loopback only.

        Raises:
            InvalidConfigError: a file of certificates cannot be read.
            ValueError: no address.
        """
        told = addresses.split(",") if isinstance(addresses, str) else list(addresses)
        self._directory = Directory([one.strip() for one in told if one.strip()])
        self._servers = ServerConnections(tls, Secret.of(token))
        self._timeout_s = timeout_s
        self._resend = resend
        self._ack_calls: dict[str, AckCall] = {}
        self._ids = (f"{uuid.uuid4().hex[:12]}-{number}" for number in itertools.count())

    async def __aenter__(self) -> Self:
        return self

    async def __aexit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        await self.close()

    async def close(self) -> None:
        """End every call and connection."""
        for call in self._ack_calls.values():
            await call.close()
        self._ack_calls.clear()
        await self._servers.close()

    # ------------------------------------------------------------------ streams

    async def create_stream(
        self, name: str, subject: str | None = None, options: StreamOptions | None = None
    ) -> None:
        """Create a stream on a NATS subject, by default on its name.

        Raises:
            StreamExistsError: there is a stream of this name.
            InvalidRequestError: the name, the subject or an option is refused.
        """
        request = create_request(name, subject or name, options or StreamOptions())
        await self.anywhere(lambda stub, s: ask(stub.CreateStream, request, s))

    async def delete_stream(self, name: str) -> None:
        """Delete a stream. Raises UnknownStreamError if there is none."""
        request = api.DeleteStreamRequest(name=name)
        await self.anywhere(lambda stub, s: ask(stub.DeleteStream, request, s))

    async def pause_stream(
        self, name: str, partitions: Sequence[int] = (), *, resume_all: bool = False
    ) -> None:
        """Pause partitions, by default all. With ``resume_all`` the next publish resumes all."""
        request = api.PauseStreamRequest(name=name, partitions=partitions, resumeAll=resume_all)
        await self.anywhere(lambda stub, s: ask(stub.PauseStream, request, s))

    async def set_readonly(
        self, name: str, partitions: Sequence[int] = (), *, readonly: bool = True
    ) -> None:
        """Let partitions, by default all, take no messages, or take them again."""
        request = api.SetStreamReadonlyRequest(name=name, partitions=partitions, readonly=readonly)
        await self.anywhere(lambda stub, s: ask(stub.SetStreamReadonly, request, s))

    async def metadata(self, *streams: str) -> Metadata:
        """Return the brokers, and the named streams or all; unknown ones are left out."""
        request = api.FetchMetadataRequest(streams=streams)
        told = await self.anywhere(lambda stub, s: ask(stub.FetchMetadata, request, s))
        found = metadata_of(told)
        self._directory.learn(found)
        return found

    async def partition(self, stream: str, partition: int = 0) -> PartitionDescription:
        """Return a partition as its leader knows it."""
        request = api.FetchPartitionMetadataRequest(stream=stream, partition=partition)
        told = await self._at_leader(
            stream, partition, lambda stub, s: ask(stub.FetchPartitionMetadata, request, s)
        )
        return partition_of(told.metadata)

    # ------------------------------------------------------------------ publishing

    async def publish(
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
        """Publish a message and wait for its acknowledgement; None for the policy NONE.

        The partition is the one that is named, or that the partitioner chooses, or 0. Messages of
        one task are stored in order; start several tasks to have many messages under way.

        Raises:
            UnknownPartitionError: there is no such stream or partition.
            InvalidRequestError: the message is too large, or the partition is read-only.
            ConditionFailedError: the stream is at another offset than expected.
            CommitTimeoutError: the message may be stored or not.
            EncryptionKeyError: the stream is encrypted, and its leader cannot use the key.
            UnavailableError: no server took the message; it is not stored.
        """
        if partition is None:
            partition = 0
            if partitioner is not None:
                count = len((await self._stream(stream)).partitions)
                partition = partitioner(stream, key, value, count)
        request = publish_request(
            stream,
            partition,
            value,
            key=key,
            headers=headers,
            policy=policy,
            expected_offset=expected_offset,
            correlation_id=correlation_id or next(self._ids),
        )
        doubt: list[CommitTimeoutError] = []
        with _told(doubt):
            return await self._publish(request, doubt, silent=policy is AckPolicy.NONE)

    async def _publish(
        self, request: api.PublishRequest, doubt: list[CommitTimeoutError], *, silent: bool
    ) -> PublishAck | None:
        """Publish a message; ``doubt`` gets the ends of attempts that may have stored it."""
        deadline = self._now() + self._timeout_s
        tried = 0
        while True:
            address = self._directory.taker(request.stream, request.partition, tried)
            call = self._ack_calls.get(address)
            if call is None or not call.usable:
                call = self._ack_calls[address] = AckCall(self._servers.at(address))
            try:
                sent = await call.send(request, silent=silent)
                if sent is None:
                    return None
                async with asyncio.timeout(max(0.0, deadline - self._now())):
                    return await sent
            except TimeoutError:
                call.forget(request.correlationId)
                raise CommitTimeoutError(
                    f"no acknowledgement within {self._timeout_s} s: it is not known whether the "
                    "message is stored"
                ) from None
            except CommitTimeoutError as error:
                if not self._resend or self._now() >= deadline:
                    raise
                doubt.append(error)
            except UnavailableError as error:
                if not error.retriable or self._now() >= deadline:
                    raise
            tried += 1
            await asyncio.sleep(_PAUSE_S)
            await self._refresh(request.stream)

    async def publish_to_subject(
        self,
        subject: str,
        value: bytes,
        *,
        key: bytes | None = None,
        headers: Mapping[str, bytes] | None = None,
        policy: AckPolicy = AckPolicy.LEADER,
    ) -> PublishAck | None:
        """Publish to a NATS subject: every stream on it stores the message; the first one answers.

        Raises:
            CommitTimeoutError: no stream answered in time.
        """
        request = subject_request(subject, value, key, headers, policy)
        told = await self.anywhere(lambda stub, s: ask(stub.PublishToSubject, request, s))
        return ack_of(told.ack) if told.HasField("ack") else None

    # ------------------------------------------------------------------ subscribing

    async def subscribe(
        self,
        stream: str,
        partition: int = 0,
        *,
        start: Since | None = None,
        stop: Until | None = None,
        read_replica: bool = False,
        resume: bool = False,
        reverse: bool = False,
    ) -> AsyncIterator[Message]:
        """Yield the messages of a partition, by default those that come from now on.

        It ends at its stop, and at the end of a partition that is read-only. A lost server or a
        change of the leader is not an end: the subscription goes on behind the last message, as
        long as it takes less than ``timeout_s``.

        Raises:
            UnknownStreamError: there is no such stream, or it was deleted.
            NotLeaderError: the partition is paused, or has no leader.
            UnavailableError: no server answers.
        """
        following = FollowedPartition(
            stream,
            partition,
            start or Since.new(),
            stop or Until.never(),
            read_replica=read_replica,
            resume=resume,
            reverse=reverse,
            patience_s=self._timeout_s,
        )
        async for message in self.follow(following, None):
            yield message

    async def follow(
        self, following: FollowedPartition, consumer: Callable[[], api.Consumer] | None
    ) -> AsyncIterator[Message]:
        """Make the calls of a subscription; ``consumer`` tells the group's epoch for each."""
        if following.needs_newest:
            told = await self.partition(following.stream, following.partition)
            following.newest(told.newest_offset)
        while not following.finished():
            try:
                address = self._directory.reader(
                    following.stream, following.partition, replica=following.read_replica
                )
                if address is None:
                    raise CallRefused("UNAVAILABLE", "the partition has no leader")
                request = following.request(consumer() if consumer is not None else None)
                async for told in answers(self._servers.at(address).Subscribe(request)):
                    if not following.accepted:
                        following.handshaken()  # the first message is empty
                        continue
                    message = message_of(told)
                    if following.wants(message):
                        yield message
                raise CallRefused("OK", "")
            except CallRefused as end:
                if following.ended(end.code, end.text, self._now()) == "done":
                    return
            await asyncio.sleep(_PAUSE_S)
            await self._refresh(following.stream)

    # ------------------------------------------------------------------ cursors and groups

    async def set_cursor(self, cursor: str, stream: str, partition: int, offset: int) -> None:
        """Set a named position in a partition."""
        request = api.SetCursorRequest(
            cursorId=cursor, stream=stream, partition=partition, offset=offset
        )
        await self._at_cursors(
            cursor, stream, partition, lambda stub, s: ask(stub.SetCursor, request, s)
        )

    async def cursor(self, cursor: str, stream: str, partition: int) -> int | None:
        """Return a named position in a partition; None if it was never set."""
        request = api.FetchCursorRequest(cursorId=cursor, stream=stream, partition=partition)
        told = await self._at_cursors(
            cursor, stream, partition, lambda stub, s: ask(stub.FetchCursor, request, s)
        )
        return None if told.offset < 0 else int(told.offset)

    async def consumer(
        self,
        group: str,
        streams: Sequence[str],
        *,
        consumer_id: str | None = None,
        auto_offset: AutoOffset = "earliest",
        checkpoint_s: float | None = 5.0,
        poll_s: float | None = None,
    ) -> AsyncLiftConsumer:
        """Join a group; iterate over the result to get the messages of the partitions it has.

        A message counts as processed when the next one is asked for; the positions of processed
        messages are set as cursors every ``checkpoint_s`` (None: by ``checkpoint()`` only), when a
        partition goes to another member, and at the end. ``auto_offset`` is where a partition
        begins that has no cursor yet.

        Raises:
            NotLeaderError: a member of this id is there already, or a stream is not.
        """
        if not streams:
            raise InvalidRequestError("a consumer reads at least one stream")
        made = AsyncLiftConsumer(
            self,
            group,
            list(streams),
            consumer_id or uuid.uuid4().hex,
            auto_offset=auto_offset,
            checkpoint_s=checkpoint_s,
            poll_s=poll_s,
            id_is_new=consumer_id is None,
        )
        await made.join()
        return made

    # ------------------------------------------------------------------ finding servers

    def _now(self) -> float:
        return asyncio.get_running_loop().time()

    async def at_broker(self, broker: str, call: _Call) -> Any:
        """Make a call at one broker.

        Raises:
            CallRefused: it was refused, or the broker is not known.
        """
        address = self._directory.address(broker)
        if address is None:
            await self._refresh()
            address = self._directory.address(broker)
        if address is None:
            raise CallRefused("UNAVAILABLE", f"no broker {broker} is known")
        return await call(self._servers.at(address), _ATTEMPT_S)

    async def anywhere(self, call: _Call) -> Any:
        """Make a call that any server answers."""
        deadline = self._now() + self._timeout_s
        for address in in_turn(self._directory.all(), self._directory.healthy):
            left = deadline - self._now()
            try:
                found = await call(self._servers.at(address), max(0.001, left))
            except CallRefused as refused:
                late = refused.code == "DEADLINE_EXCEEDED"  # the call had all the time that is left
                if refused.code != "UNAVAILABLE" and not late:
                    raise refused.error() from refused
                if late or left <= 0:
                    servers = ", ".join(self._directory.all())
                    raise NoAnswerError(
                        f"no answer from {servers} for {self._timeout_s:g} s: {refused.text}"
                    ) from refused
                self._directory.failed(address)
                await asyncio.sleep(_PAUSE_S)
                continue
            self._directory.answered(address)
            return found
        raise AssertionError("addresses are tried in turn for ever")

    async def _at_leader(self, stream: str, partition: int, call: _Call) -> Any:
        deadline = self._now() + self._timeout_s
        while True:
            left = deadline - self._now()
            address = self._directory.reader(stream, partition, replica=False)
            if address is not None:
                try:
                    return await call(self._servers.at(address), max(0.001, min(left, _ATTEMPT_S)))
                except CallRefused as refused:
                    if refused.code not in _AGAIN or left <= 0:
                        raise refused.error() from refused
                await asyncio.sleep(_PAUSE_S)
            elif left <= 0:
                raise UnavailableError(f"{stream}/{partition} has no leader")
            await self._refresh(stream)
            if not self._directory.knows(stream):
                raise UnknownStreamError(f"there is no stream {stream!r}", stream=stream)

    async def _at_cursors(self, cursor: str, stream: str, partition: int, call: _Call) -> Any:
        if not self._directory.knows(CURSORS):
            await self._refresh(CURSORS)
        if not self._directory.knows(CURSORS):
            raise InvalidRequestError("the server has no cursors: cursors.stream.partitions is 0")
        place = self._directory.cursor_place(CURSORS, f"{cursor},{stream},{partition}")
        return await self._at_leader(CURSORS, place, call)

    async def _stream(self, stream: str) -> Any:
        if not self._directory.knows(stream):
            await self._refresh(stream)
        found = self._directory.stream(stream)
        if found is None:
            raise UnknownStreamError(f"there is no stream {stream!r}", stream=stream)
        return found

    async def _refresh(self, *streams: str) -> None:
        self._directory.forget(streams)
        await self.metadata(*streams)
