"""Liftbridge's API as a service: an event loop in a thread, its connections, and its threads."""

from __future__ import annotations

import asyncio
import threading
from collections import deque
from collections.abc import Callable
from concurrent.futures import Future, ThreadPoolExecutor
from contextlib import suppress
from operator import itemgetter
from typing import Final

import structlog

from broker.adapters.access.gate import Gate
from broker.adapters.liftbridge import health
from broker.adapters.liftbridge.config import LiftbridgeServiceConfig
from broker.adapters.liftbridge.connection import SERVICE, ClientConnection
from broker.adapters.liftbridge.entrance import Entrance
from broker.adapters.liftbridge.group_calls import GroupCalls
from broker.adapters.liftbridge.group_readers import GroupReaders
from broker.adapters.liftbridge.guard import Guard
from broker.adapters.liftbridge.stream_calls import StreamCalls, Unary
from broker.adapters.liftbridge.subscribing import Subscriber, subscribe
from broker.adapters.liftbridge.targets import BrokerTargets
from broker.adapters.liftbridge.unfinished import UnfinishedBytes
from broker.core.access.quotas import Bucket
from broker.errors import InvalidConfigError
from broker.ports.access import AccessApi, AuditSink
from broker.ports.api import BrokerApi
from broker.ports.subjects import SubjectPublisher
from broker.ports.system import Clock
from broker.wire.liftbridge import api_pb2 as api

_log = structlog.get_logger(__name__)

_START_S: Final = 30.0
_LAST_ANSWERS_S: Final = 1.0  # for answers that are being sent when the service closes
_WAITING_MAX: Final = 1024  # calls that wait for a thread
_LATE_LOOK_S: Final = 2.5  # between two looks for messages that do not go on
_FULL_TOLD_S: Final = 60.0  # between two lines of the log about a port without a free place


class LiftbridgeService:
    """Starts and closes the service. Any thread."""

    def __init__(
        self,
        api_: BrokerApi,
        clock: Clock,
        config: LiftbridgeServiceConfig,
        *,
        not_ready: Callable[[], str | None] = lambda: None,
        subjects: SubjectPublisher | None = None,
        access: AccessApi | None = None,
        audit: AuditSink | None = None,
    ) -> None:
        """``not_ready`` is why the broker should get no work now, for health checks.

        ``subjects`` publishes on NATS; without it PublishToSubject is refused. Without ``access``
        nobody is asked who they are.
        """
        self._gate = Gate("liftbridge", access, audit)
        self._api = api_
        self._clock = clock
        self._config = config
        self._not_ready = not_ready
        self._subjects = subjects
        self._readers = GroupReaders(api_.groups)
        self._port = 0
        self._failure: BaseException | None = None
        self._started = threading.Event()
        self._loop: asyncio.AbstractEventLoop | None = None
        self._closing: asyncio.Event | None = None
        self._connections: dict[ClientConnection, None] = {}  # the oldest first
        self._unfinished = UnfinishedBytes(shared_bytes_max=config.unfinished_bytes_max)
        self._lost = asyncio.Event()  # no connection is left, and no more are taken
        self._may_give_way = Bucket(config.gives_way_per_s, clock.monotonic_ms())
        self._gave_way_count = 0
        self._refused_count = 0
        self._full_told_s: float | None = None
        self._workers: LoopWorkers | None = None
        self._thread = threading.Thread(target=self._run, name="liftbridge", daemon=True)

    def start(self) -> None:
        """Bind and serve; returns when the port is bound.

        Raises:
            InvalidConfigError: the address cannot be used.
        """
        self._thread.start()
        self._started.wait(_START_S)
        if self._failure is not None:
            raise InvalidConfigError(
                f"Liftbridge's API cannot be served on {self._config.host}:{self._config.port}: "
                f"{self._failure}"
            ) from self._failure
        _log.info("liftbridge_started", host=self._config.host, port=self._port)

    @property
    def port(self) -> int:
        """The port that the service listens on."""
        return self._port

    @property
    def advertised(self) -> str:
        """The host:port in the metadata for clients."""
        return self._config.advertised or f"{self._config.host}:{self._port}"

    def close(self, *, timeout_ms: int = 5_000) -> bool:
        """End all calls and stop; return whether this took less than ``timeout_ms``."""
        loop, closing = self._loop, self._closing
        if loop is None or closing is None:
            return True
        try:
            loop.call_soon_threadsafe(closing.set)
        except RuntimeError:
            return True  # the loop has ended
        self._thread.join(timeout_ms / 1000)
        return not self._thread.is_alive()

    # ------------------------------------------------------------------ the service's thread

    def _run(self) -> None:
        try:
            asyncio.run(self._serve())
        except (OSError, ValueError) as error:  # of ssl, too; UnicodeError of an impossible host
            self._failure = error
        finally:
            self._started.set()

    async def _serve(self) -> None:
        self._loop = asyncio.get_running_loop()
        self._closing = asyncio.Event()
        workers = self._workers = LoopWorkers(self._loop, self._config)
        entrance = Entrance(
            self._config,
            guest=self._connection,
            left=self._forget,
            inside=lambda: len(self._connections),
            make_room=self._make_room,
            refused=self._refused,
        )
        self._port = await entrance.open()
        self._started.set()
        self._end_late(self._loop)
        try:
            await self._closing.wait()
        finally:
            await entrance.close()
            for connection in list(self._connections):
                connection.close()
            await self._all_lost()
            workers.close()

    def _end_late(self, loop: asyncio.AbstractEventLoop) -> None:
        loop.call_later(_LATE_LOOK_S, self._end_late, loop)
        now_s = loop.time()
        for connection in self._connections:
            connection.end_late(now_s)

    def _forget(self, connection: ClientConnection) -> None:
        self._connections.pop(connection, None)
        if not self._connections and self._closing is not None and self._closing.is_set():
            self._lost.set()

    async def _all_lost(self) -> None:
        """Wait up to a second until the last answers are sent; then abort open connections."""
        if self._connections:
            with suppress(TimeoutError):
                await asyncio.wait_for(self._lost.wait(), _LAST_ANSWERS_S)
        for connection in list(self._connections):
            connection.abort()
        await asyncio.sleep(0)  # the loop tells each connection that it is lost

    def _make_room(self, known: bool) -> bool:
        """Close the connection that is missed least, a known one only if ``known``; if there is.

        Not for each connection of a flood: that would take the time of those who are inside.
        """
        if self._may_give_way.wait_ms(1, self._clock.monotonic_ms()):
            return False
        idle = [(missed, one) for one in self._connections if (missed := one.missed) is not None]
        if not idle:
            return False
        missed, least = min(idle, key=itemgetter(0))
        if missed.known and not known:
            return False
        self._may_give_way.take(1)
        self._gave_way_count += 1
        self._tell_full()
        least.give_way()
        return True

    def _refused(self) -> None:
        self._refused_count += 1
        self._tell_full()

    def _tell_full(self) -> None:
        """Log once a minute that no place is free: a stranger shall not fill the log."""
        assert self._loop is not None, "not started"
        now_s = self._loop.time()
        if self._full_told_s is None or now_s - self._full_told_s >= _FULL_TOLD_S:
            self._full_told_s = now_s
            _log.warning(
                "liftbridge_connections_full",
                limit=self._config.connections_max,
                gave_way=self._gave_way_count,
                refused=self._refused_count,
            )

    def _connection(self) -> ClientConnection:
        assert self._workers is not None, "not started"
        calls = StreamCalls(self._api, advertised=lambda: self.advertised)
        connection = ClientConnection(
            self._config,
            self._clock,
            self._workers,
            unary=self._unary(calls),
            metadata=calls.fetch_metadata,
            subscribe=self._subscribe,
            targets=BrokerTargets(self._api),
            subjects=self._subjects,
            forget=self._forget,
            guard=Guard(self._gate),
            unfinished=self._unfinished,
        )
        self._connections[connection] = None
        return connection

    def _unary(self, calls: StreamCalls) -> dict[str, Unary]:
        groups = GroupCalls(self._api)
        return {
            f"{SERVICE}CreateStream": calls.create,
            f"{SERVICE}DeleteStream": calls.delete,
            f"{SERVICE}PauseStream": calls.pause,
            f"{SERVICE}SetStreamReadonly": calls.set_readonly,
            f"{SERVICE}FetchPartitionMetadata": calls.fetch_partition_metadata,
            f"{SERVICE}SetCursor": groups.set_cursor,
            f"{SERVICE}FetchCursor": groups.fetch_cursor,
            f"{SERVICE}JoinConsumerGroup": groups.join,
            f"{SERVICE}LeaveConsumerGroup": groups.leave,
            f"{SERVICE}FetchConsumerGroupAssignments": groups.assignments,
            f"{SERVICE}ReportConsumerGroupCoordinator": groups.report,
            health.CHECK: lambda payload: health.check(payload, self._not_ready()),
        }

    def _subscribe(self, request: api.SubscribeRequest, sink: Subscriber) -> str | None:
        return subscribe(self._api, request, sink, self._readers)


class _Pool:
    """Threads, and how much they have to do. The event loop counts."""

    def __init__(self, threads_max: int, running_max: int, name: str) -> None:
        self.threads = ThreadPoolExecutor(threads_max, thread_name_prefix=name)
        self.running = 0  # or waiting for a thread
        self.running_max = running_max


class LoopWorkers:
    """Implements ``Workers``: threads for calls, and others for subscriptions, which stay long."""

    def __init__(self, loop: asyncio.AbstractEventLoop, config: LiftbridgeServiceConfig) -> None:
        self._loop = loop
        self._due: deque[Callable[[], None]] = deque()  # for the event loop, of any thread
        self._last: deque[Callable[[], None]] = deque()  # for the event loop, behind these
        self._is_woken = False  # the event loop will run what is due
        self._calls = _Pool(config.commands_max, _WAITING_MAX, "liftbridge-call")
        self._subscriptions = _Pool(
            config.subscriptions_max, config.subscriptions_max, "liftbridge-subscription"
        )

    def run(self, work: Callable[[], object], done: Callable[[object], None]) -> bool:
        """See ``Workers.run``."""
        return self._start(self._calls, work, done)

    def subscribe(self, work: Callable[[], object], done: Callable[[object], None]) -> bool:
        """See ``Workers.subscribe``."""
        return self._start(self._subscriptions, work, done)

    def _start(
        self, pool: _Pool, work: Callable[[], object], done: Callable[[object], None]
    ) -> bool:
        if pool.running >= pool.running_max:
            return False
        pool.running += 1

        def finished(future: Future[object]) -> None:
            pool.running -= 1
            if not future.cancelled():
                done(future.exception() or future.result())

        future = pool.threads.submit(work)
        future.add_done_callback(lambda one: self.call_soon(lambda: finished(one)))
        return True

    def call_soon(self, work: Callable[[], None]) -> None:
        """See ``Workers.call_soon``. After the end nothing is run.

        A sleeping event loop is woken once for all that is due: each wake-up is a write to a
        socket, in which a thread gives the interpreter's lock away.
        """
        self._due.append(work)
        if not self._is_woken:  # two threads at once wake it twice: that does no harm
            self._is_woken = True
            with suppress(RuntimeError):  # the loop has ended: no call waits for the answer
                self._loop.call_soon_threadsafe(self._run_due)

    def call_last(self, work: Callable[[], None]) -> None:
        """See ``Workers.call_last``."""
        if not self._last:
            self._loop.call_soon(self._run_last)
        self._last.append(work)

    def _run_due(self) -> None:
        self._is_woken = False  # what is added from here on wakes the loop again
        try:
            for _ in range(len(self._due)):
                self._due.popleft()()
        finally:
            if self._due:  # one failed: the event loop tells of it, and the others run next
                self._loop.call_soon(self._run_due)
        self._run_last()

    def _run_last(self) -> None:
        try:
            while self._last:
                self._last.popleft()()
        finally:
            if self._last:
                self._loop.call_soon(self._run_last)

    def close(self) -> None:
        """Take no more work; what runs ends by itself."""
        for pool in (self._calls, self._subscriptions):
            pool.threads.shutdown(wait=False, cancel_futures=True)
