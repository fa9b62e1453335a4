"""Messages between replicas over NATS subjects, in Liftbridge's format.

A leader subscribes to ``CLUSTER.STREAM.PARTITION.replicate`` and ``.offset``, and answers on the
request's reply inbox. ``CLUSTER.notify.BROKER`` wakes an idle follower. Our own fields (sender,
receiver, request id, process, epochs) are in places that Liftbridge's readers skip.

A sender is identified by its name only, without proof. So the permissions of the NATS server must
allow these subjects to the brokers only. An answer is taken only if this broker has asked, and a
leader answers only on inboxes.

This transport has one thread with an event loop and its own connection. While the connection is
down, nothing is sent.
"""

from __future__ import annotations

import asyncio
import contextlib
import itertools
import re
import threading
from collections import Counter, OrderedDict, deque
from collections.abc import Callable, Collection, Sequence
from dataclasses import dataclass
from typing import Final, Literal, TypeVar

import structlog

from broker.adapters.nats.replica_messages import (
    Addressed,
    decode_epoch_answer,
    decode_epoch_request,
    decode_fetch,
    decode_notice,
    encode_epoch_answer,
    encode_notice,
    encode_request,
)
from broker.adapters.nats.transport import NatsTransport, own_inbox
from broker.codec.nats.envelope import EnvelopeKind
from broker.codec.nats.stream import MessageBatch
from broker.codec.peer import replica_answer
from broker.config import NatsConfig
from broker.errors import (
    CorruptDataError,
    InvalidStreamError,
    RecordTooLargeError,
    UnavailableError,
)
from broker.model.ids import BrokerId, PartitionId
from broker.model.replica_messages import (
    EpochEndAnswer,
    EpochEndRequest,
    FetchAnswer,
    FetchRequest,
    NewDataNotice,
    ReplicaMessage,
    size_of,
)
from broker.ports.cluster import ReplicaAddress
from broker.ports.partition import StoredBatch

_log = structlog.get_logger(__name__)

Deliver = Callable[[BrokerId, PartitionId, ReplicaMessage], None]

_WAITING_BYTES_MAX: Final = 64 * 1024 * 1024
_MESSAGE_OVERHEAD: Final = 512
_OPEN_REQUESTS_MAX: Final = 64 * 1024  # how many requests without an answer are remembered
_HALF_ANSWERS_MAX: Final = 8
_RETRY_S: Final = 0.5
_INBOX: Final = re.compile(rb"_INBOX\.[A-Za-z0-9_.-]{1,200}\Z")
_KIND_AT: Final = 7  # position of an envelope's type byte
_INBOX_SID, _NOTIFY_SID, _FIRST_SID = 1, 2, 3

_V = TypeVar("_V")
Asked = tuple[BrokerId, PartitionId, int]  # the other broker, the partition, the request id


@dataclass(frozen=True, slots=True)
class _Route:
    """The partition and the request type of a subscription."""

    kind: Literal["replicate", "offset"]
    partition: PartitionId
    subject: str


class NatsReplicaTransport:
    """Implements ``ReplicaTransport`` over NATS. Any thread."""

    def __init__(
        self,
        config: NatsConfig,
        *,
        cluster: str,
        me: BrokerId,
        brokers: Collection[BrokerId],
        on_crash: Callable[[BaseException], None],
    ) -> None:
        """Prepare; :meth:`start` connects. ``on_crash`` is called for bugs only."""
        self.refused: Counter[str] = Counter()  # refused messages by reason, for metrics
        self.server_errors: dict[str, int] = {}  # that the NATS server told, by kind
        self.dropped_count = 0  # messages that were not sent: too many, or no connection
        self._config = config
        self._cluster = cluster
        self._me = me
        self._brokers = frozenset(brokers)
        self._on_crash = on_crash
        self._lock = threading.Lock()
        self._waiting: deque[tuple[int, BrokerId, ReplicaAddress, ReplicaMessage]] = deque()
        self._waiting_bytes = 0
        self._routes: dict[int, _Route] = {}
        self._sids = itertools.count(_FIRST_SID)
        self._inbox = own_inbox()
        self._numbers = itertools.count(1)
        self._asked: OrderedDict[Asked, None] = OrderedDict()
        self._replies: OrderedDict[Asked, bytes] = OrderedDict()  # reply inboxes of requests
        self._halves: OrderedDict[Asked, replica_answer.AnswerAssembler] = OrderedDict()
        self._loop: asyncio.AbstractEventLoop | None = None
        self._thread: threading.Thread | None = None
        self._closing = False

    # ------------------------------------------------------------------ the port, any thread

    def start(self, deliver: Deliver) -> None:
        """See ``ReplicaTransport.start``; does not wait for the server."""
        self._deliver = deliver
        ready = threading.Event()
        self._thread = threading.Thread(
            target=asyncio.run, args=(self._main(ready),), name="replica-nats", daemon=True
        )
        self._thread.start()
        ready.wait()

    def send(self, to: BrokerId, address: ReplicaAddress, message: ReplicaMessage) -> None:
        """See ``ReplicaTransport.send``."""
        size = _MESSAGE_OVERHEAD + size_of(message)
        with self._lock:
            full = self._waiting and self._waiting_bytes + size > _WAITING_BYTES_MAX
            if full or self._loop is None:
                self.dropped_count += 1
                return
            self._waiting.append((size, to, address, message))
            self._waiting_bytes += size
            if len(self._waiting) == 1:
                self._loop.call_soon_threadsafe(self._work.set)

    def serve(self, address: ReplicaAddress) -> None:
        """See ``ReplicaTransport.serve``."""
        partition = address.partition_id
        prefix = f"{self._cluster}.{address.stream}.{partition.number}"
        with self._lock:
            if any(route.partition == partition for route in self._routes.values()):
                return
            for route in (
                _Route("replicate", partition, f"{prefix}.replicate"),
                _Route("offset", partition, f"{prefix}.offset"),
            ):
                self._routes[next(self._sids)] = route
            self._tell_changed()

    def stop_serving(self, address: ReplicaAddress) -> None:
        """See ``ReplicaTransport.stop_serving``."""
        with self._lock:
            self._routes = {
                sid: route
                for sid, route in self._routes.items()
                if route.partition != address.partition_id
            }
            self._tell_changed()

    def close(self) -> None:
        """Close the connection; block until no more message is delivered."""
        with self._lock:
            self._closing = True
            if self._loop is not None:
                self._loop.call_soon_threadsafe(self._end.set)
        if self._thread is not None and self._thread is not threading.current_thread():
            self._thread.join()

    def _tell_changed(self) -> None:
        if self._loop is not None:
            self._loop.call_soon_threadsafe(self._changed.set)

    # ------------------------------------------------------------------ the loop's thread

    async def _main(self, ready: threading.Event) -> None:
        self._work, self._changed, self._end = asyncio.Event(), asyncio.Event(), asyncio.Event()
        with self._lock:
            self._loop = asyncio.get_running_loop()
            if self._closing:
                self._end.set()
        ready.set()
        tasks: list[asyncio.Task[None]] = []
        nats = None
        try:
            nats = await self._connected()
            if nats is not None:
                tasks = [
                    asyncio.create_task(self._send_all(nats)),
                    asyncio.create_task(self._subscribe_all(nats)),
                    asyncio.create_task(self._ended()),
                ]
                done, _ = await asyncio.wait(tasks, return_when=asyncio.FIRST_COMPLETED)
                for task in done:
                    task.result()
        except Exception as bug:
            self._on_crash(bug)
            raise
        finally:
            with self._lock:
                self._loop = None
            for task in tasks:
                task.cancel()
            if nats is not None:
                await nats.close()

    async def _ended(self) -> None:
        await self._end.wait()

    async def _connected(self) -> NatsTransport | None:
        """Return a started connection, or None if the transport closes."""
        while not self._end.is_set():
            nats = NatsTransport(
                self._config,
                client_name=f"headwater.{self._cluster}.{self._me}.replication",
                sink=self,
                on_crash=self._on_crash,
            )
            nats.counters.server_errors = self.server_errors
            try:
                await nats.start()
            except UnavailableError as error:
                _log.warning("replica_nats_unavailable", reason=error.message)
                with contextlib.suppress(TimeoutError):
                    async with asyncio.timeout(_RETRY_S):
                        await self._end.wait()
            else:
                return nats
        return None

    async def _subscribe_all(self, nats: NatsTransport) -> None:
        """Keep the subscriptions equal to the partitions of :meth:`serve`."""
        own = {_INBOX_SID: f"{self._inbox}.*", _NOTIFY_SID: f"{self._cluster}.notify.{self._me}"}
        current: set[int] = set()
        while True:
            self._changed.clear()
            with self._lock:
                wanted = {sid: route.subject for sid, route in self._routes.items()} | own
            gone = current - wanted.keys()
            if gone:
                await nats.unsubscribe(sorted(gone))
            fresh = {sid: subject for sid, subject in wanted.items() if sid not in current}
            current = set(wanted)
            if fresh:
                await self._subscribe(nats, fresh)
            await self._changed.wait()

    async def _subscribe(self, nats: NatsTransport, subjects: dict[int, str]) -> None:
        while subjects:
            try:
                await nats.subscribe(subjects, None)
            except UnavailableError:
                return  # the next connection subscribes
            except InvalidStreamError as error:
                _log.error("replica_subject_denied", subject=error.subject)
                self.refused["denied subject"] += 1
                subjects = {
                    sid: subject for sid, subject in subjects.items() if subject != error.subject
                }
            else:
                return

    # ------------------------------------------------------------------ sending

    async def _send_all(self, nats: NatsTransport) -> None:
        while True:
            await self._work.wait()
            self._work.clear()
            while True:
                with self._lock:
                    if not self._waiting:
                        break
                    size, to, address, message = self._waiting[0]
                await self._send(nats, to, address, message)
                with self._lock:
                    self._waiting.popleft()
                    self._waiting_bytes -= size

    async def _send(
        self, nats: NatsTransport, to: BrokerId, address: ReplicaAddress, message: ReplicaMessage
    ) -> None:
        partition = address.partition_id
        subject = f"{self._cluster}.{address.stream}.{partition.number}"
        match message:
            case FetchRequest() | EpochEndRequest():
                _remember(self._asked, (to, partition, message.request_id), None)
                last = "replicate" if isinstance(message, FetchRequest) else "offset"
                reply = f"{self._inbox}.{next(self._numbers)}"
                payload = encode_request(partition, message, to=to)
                await self._publish(nats, f"{subject}.{last} {reply}".encode(), payload)
            case NewDataNotice():
                payload = encode_notice(address.stream, partition, message, sender=self._me, to=to)
                await self._publish(nats, f"{self._cluster}.notify.{to}".encode(), payload)
            case FetchAnswer() | EpochEndAnswer():
                inbox = self._replies.pop((to, partition, message.request_id), None)
                if inbox is None or not nats.connected:
                    self.dropped_count += 1
                elif isinstance(message, EpochEndAnswer):
                    payload = encode_epoch_answer(partition, message, sender=self._me, to=to)
                    await self._publish(nats, inbox, payload)
                else:
                    await self._answer(nats, inbox, partition, message)

    async def _answer(
        self, nats: NatsTransport, inbox: bytes, partition: PartitionId, answer: FetchAnswer
    ) -> None:
        limit = nats.max_payload_bytes
        fitting = replica_answer.fitting(answer, limit)
        try:
            parts = replica_answer.encode(
                partition, fitting, sender=self._me, payload_bytes_max=limit
            )
        except RecordTooLargeError as error:
            self.dropped_count += 1
            self._refuse("too large for the server", error.message)
            return
        for part in parts:
            if not await self._publish(nats, inbox, part):
                return  # an answer that lacks a part is of no use

    async def _publish(self, nats: NatsTransport, target: bytes, payload: bytes) -> bool:
        await nats.drain()
        sent = nats.send(b"PUB %b %d\r\n%b\r\n" % (target, len(payload), payload), 1)
        self.dropped_count += not sent
        return sent

    # ------------------------------------------------------------------ receiving (MessageSink)

    def received(self, batches: list[MessageBatch]) -> asyncio.Future[None] | None:
        """Take the messages of one socket read."""
        for batch in batches:
            for row, payload in enumerate(batch.payloads):
                try:
                    self._hear(batch.sid, payload, batch.replies.get(row))
                except CorruptDataError as error:
                    self._refuse("malformed", error.message)
        return None

    def connection_lost(self, *, slow_consumer: bool) -> None:
        """Do nothing: replicas repeat the requests that were lost."""

    def _hear(self, sid: int, payload: bytes, reply: bytes | None) -> None:
        if sid == _INBOX_SID:
            self._hear_answer(payload)
            return
        if sid == _NOTIFY_SID:
            self._take(*decode_notice(payload))
            return
        with self._lock:
            route = self._routes.get(sid)
        if route is None:
            return  # this broker no longer leads the partition
        decode = decode_fetch if route.kind == "replicate" else decode_epoch_request
        sender, receiver, request = decode(payload, route.partition)
        assert isinstance(request, FetchRequest | EpochEndRequest)
        if reply is None or _INBOX.match(reply) is None:
            self._refuse("no inbox", f"a request of {sender} has no reply inbox")
        elif self._is_for_me(sender, receiver):
            _remember(self._replies, (sender, route.partition, request.request_id), reply)
            self._deliver(sender, route.partition, request)

    def _hear_answer(self, payload: bytes) -> None:
        if len(payload) > _KIND_AT and payload[_KIND_AT] == EnvelopeKind.EPOCH_OFFSET_RESPONSE:
            partition, (sender, receiver, told) = decode_epoch_answer(payload)
            assert isinstance(told, EpochEndAnswer)
            key = (sender, partition, told.request_id)
            if key not in self._asked:
                self._refuse("unasked", f"an answer of {sender} belongs to no request")
            elif self._is_for_me(sender, receiver):
                del self._asked[key]
                self._deliver(sender, partition, told)
            return
        part = replica_answer.decode(payload)
        key = (part.sender, part.partition_id, part.answer.request_id)
        if key not in self._asked:
            self._refuse("unasked", f"an answer of {part.sender} belongs to no request")
            return
        whole: Sequence[replica_answer.AnswerPart] = (part,)
        if part.parts_count > 1:
            half = self._halves.setdefault(key, replica_answer.AnswerAssembler())
            while len(self._halves) > _HALF_ANSWERS_MAX:
                self._halves.popitem(last=False)
            parts = half.add(part)
            if parts is None:
                return
            self._halves.pop(key, None)
            whole = parts
        del self._asked[key]
        answer = replica_answer.assembled(whole, StoredBatch)
        if self._is_for_me(part.sender, self._me):
            self._deliver(part.sender, part.partition_id, answer)

    def _take(self, partition: PartitionId, addressed: Addressed) -> None:
        sender, receiver, message = addressed
        if self._is_for_me(sender, receiver):
            self._deliver(sender, partition, message)

    def _is_for_me(self, sender: BrokerId, receiver: BrokerId) -> bool:
        """Tell whether a message is from another broker of this cluster and for this broker."""
        if sender not in self._brokers or sender == self._me:
            self._refuse("not a member", f"{sender} is not another broker of this cluster")
            return False
        return receiver == self._me

    def _refuse(self, kind: str, reason: str) -> None:
        self.refused[kind] += 1
        if self.refused[kind].bit_count() == 1:  # the 1st, 2nd, 4th, 8th ...
            _log.warning("replica_message_refused", kind=kind, reason=reason)


def _remember(known: OrderedDict[Asked, _V], key: Asked, value: _V) -> None:
    """Remember a request; beyond the limit forget the oldest one, which is then repeated."""
    known[key] = value
    known.move_to_end(key)
    while len(known) > _OPEN_REQUESTS_MAX:
        known.popitem(last=False)
