"""A broker's calls of publishers over Arrow Flight; each is the product's `ServedPut`.

Simulated are gRPC and the two threads of a call. A call's frames come once and in order, or not at
all; then the call stands still until its client gives it up. The reader takes one frame at a time,
and waits where `broker/adapters/flight/writes.py` waits; the answering thread takes one piece of
news at a time. Bounds are small, so that calls often wait.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Iterator
from typing import TYPE_CHECKING, Any, Final

import pyarrow as pa

from broker.adapters.flight.config import FlightServiceConfig
from broker.adapters.flight.served_put import News, Outcome, ServedPut, put_path
from broker.adapters.reading.rows import check_incarnation
from broker.errors import (
    CommitTimeoutError,
    ForeignHistoryError,
    HeadwaterError,
    HistoryClaimedError,
    ShuttingDownError,
)
from broker.model.records import AckPolicy, AppendResult
from broker.runtime.partition.driver import PartitionDriver

if TYPE_CHECKING:
    from simkit.house.node import Node

_VALUES: Final = pa.schema([pa.field("value", pa.binary())])
_CONFIG: Final = FlightServiceConfig(
    put_inflight_batches_max=2, put_alone_after=2, commit_timeout_ms=1_500
)


class Pipe:
    """One direction of a call: numbers what leaves, and puts in order what comes."""

    def __init__(self) -> None:
        self._sent = self._heard = 0
        self._early: dict[int, Any] = {}

    def number(self) -> int:
        """Return the number of the next frame that leaves."""
        self._sent += 1
        return self._sent - 1

    def arrived(self, number: int, frame: Any) -> Iterator[Any]:
        """Take a frame; yield those whose turn has come."""
        if number >= self._heard:
            self._early[number] = frame
        while self._heard in self._early:
            self._heard += 1
            yield self._early.pop(self._heard - 1)


# ---------------------------------------------------------------------- the broker's side


class FlightCalls:
    """The publishing calls of one process."""

    def __init__(self, node: Node) -> None:
        self._node = node
        self._calls: dict[tuple[str, int], PutCall] = {}
        self._closing = False

    def arrived(self, client: str, call: int, number: int, frame: Any) -> None:
        """Take a frame of a client."""
        found = self._calls.get((client, call))
        if found is None:
            found = self._calls[client, call] = PutCall(self._node, client, call, self.check_open)
        found.arrived(number, frame)

    def check_open(self) -> None:
        """Refuse a call if the service closes."""
        if self._closing:
            raise ShuttingDownError("the broker is closing")

    def close(self) -> bool:
        """Refuse new calls, ask open calls to finish; tell whether all have ended."""
        if not self._closing:
            self._closing = True
            for call in self._calls.values():
                call.close()
        return all(call.is_over for call in self._calls.values())


class PutCall:
    """One do_put at a broker: the steps of the threads of `PutStream`, as events of the world."""

    def __init__(self, node: Node, client: str, call: int, check_open: Any) -> None:
        self._node, self._client, self._call = node, client, call
        self._machine = node.machine
        self._world = node.machine.world
        self._check_open = check_open
        self._in, self._out = Pipe(), Pipe()
        self._unread: deque[tuple[int, Any]] = deque()  # when it came, and what
        self._asked_ms = self._world.now_ms
        self._reads = False  # the reader's next step is planned
        self._waits = False  # the reader waits for a batch that came alone
        self._batch: tuple[pa.RecordBatch, bytes | None, int] | None = None  # waits for room
        self._holds = False  # the session keeps a batch until the queue has drained
        self._news: deque[News] = deque()
        self._session: ServedPut | None = None
        self._driver: PartitionDriver | None = None
        self._policy = AckPolicy.ALL
        self._gone = False  # the client has disconnected
        self._over = False

    def arrived(self, number: int, frame: Any) -> None:
        """Take a frame from the network."""
        for one in self._in.arrived(number, frame):
            self._unread.append((self._world.now_ms, one))
        self._read_soon()

    @property
    def is_over(self) -> bool:
        """Whether nothing is left to do; a call without an open frame has not begun."""
        return self._over or self._gone or self._session is None

    def close(self) -> None:
        """See ``PutStream.close``."""
        if self._session is not None and not self.is_over:
            self._world.note("Flight call asked to finish")
            self._session.close()

    # ------------------------------------------------------------------ the reader's thread

    def _read_soon(self) -> None:
        if not self._reads and not self._over:
            self._reads = True
            self._machine.later(self._world.rng.randint(0, 2), self._read)

    def _read(self) -> None:
        self._reads = False
        if self._over or self._waits or not self._goes_on():
            return
        if self._unread:
            self._take_frame(*self._unread.popleft())
            self._asked_ms = self._world.now_ms
            self._read_soon()

    def _goes_on(self) -> bool:
        """Take the step that the reader waits for, if possible; tell whether it may read on."""
        session = self._session
        if self._holds and session is not None:
            if session.inflight_batches != 1:
                return False
            self._holds = False
            session.take_held()
        if self._batch is not None:
            self._take()
        return not self._holds and self._batch is None

    def _take_frame(self, came_ms: int, frame: Any) -> None:
        match frame:
            case ("open", list(path)):
                self._open(path)
            case ("batch", bytes(value), metadata) if self._session is not None:
                batch = pa.RecordBatch.from_pydict({"value": pa.array([value], pa.binary())})
                size = batch.get_total_buffer_size()
                waited_us = max(0, came_ms - self._asked_ms) * 1000
                self._batch = batch, metadata, size
                if self._session.comes_alone(size, waited_us):
                    self._take_alone(self._session, batch, metadata, size)
                else:
                    self._take()
            case ("finish",) if self._session is not None:
                self._session.finish()
            case ("gone",):
                self._gone = True
                if self._session is not None:
                    self._session.finish()

    def _open(self, path: list[bytes]) -> None:
        """See ``service.py``, ``do_put``."""
        broker = self._node.broker
        assert broker is not None, "a broker that runs"
        try:
            self._check_open()
            named, partition = put_path(path)
            stream = broker.streams.get(named.stream)
            check_incarnation(stream, named.stream_uuid)
            self._driver = driver = broker.partitions.handle(named.stream, partition)
        except HeadwaterError as error:
            self._end(error)
            return
        self._policy = named.acks
        self._session = ServedPut(
            driver,
            _VALUES,
            write=self._write,
            tell=self._tell,
            clock=self._machine,
            config=_CONFIG,
            policy=named.acks,
        )
        self._session.begin()

    def _take(self) -> None:
        """See ``PutStream._take``; a batch without room is tried again after the next answer."""
        assert self._session is not None, "the call is open"
        assert self._batch is not None, "a batch came"
        batch, metadata, size = self._batch
        if not self._session.has_room(size):
            self._world.note("Flight call waits for room")
            return
        self._batch = None
        if not self._session.take(batch, metadata, size):
            self._world.note("Flight call waits for a full queue")
            self._holds = True
        inflight = self._session.inflight_batches
        assert inflight <= _CONFIG.put_inflight_batches_max, f"{inflight} batches are under way"

    def _take_alone(
        self, session: ServedPut, batch: pa.RecordBatch, metadata: bytes | None, size: int
    ) -> None:
        """See ``PutStream._take_alone``."""
        self._world.note("Flight batch came alone")
        self._batch, self._waits = None, True
        outcomes: list[Outcome] = []

        def told(outcome: Outcome) -> None:
            self._hear(outcome)
            outcomes.append(outcome)
            if len(outcomes) == 1:
                self._machine.later(self._world.rng.randint(0, 2), answer, outcome)

        def answer(outcome: Outcome) -> None:
            self._waits = False
            session.answer(outcome)
            self._read_soon()

        timeout_ms = _CONFIG.commit_timeout_ms
        late = CommitTimeoutError("it was not durable in time", timeout_ms=timeout_ms)
        self._machine.later(timeout_ms, lambda: None if outcomes else told(late))
        session.take_alone(batch, metadata, size, told)

    # ------------------------------------------------------------------ the acknowledger

    def _tell(self, news: News) -> None:
        if isinstance(news[2], AppendResult | HeadwaterError):
            self._hear(news[2])
        self._news.append(news)
        self._machine.later(self._world.rng.randint(0, 2), self._answer)

    def _answer(self) -> None:
        session = self._session
        assert session is not None, "it has told news"
        if not self._over:
            session.heard(self._news.popleft())
            if session.is_over:
                self._end(None)
        self._read_soon()

    def _hear(self, outcome: Outcome) -> None:
        """Take the partition's outcome: an ack is a promise from here on."""
        if isinstance(outcome, AppendResult):
            assert self._driver is not None, "the call is open"
            now_ms = self._machine.monotonic_ms()
            end = outcome.base_offset + outcome.records_count
            self._node.oracle.acked(self._driver, self._policy, end, now_ms)
        # No copy of the history exists here, so a replaced leader answers NotLeaderError.
        assert not isinstance(outcome, ForeignHistoryError | HistoryClaimedError), outcome

    def _write(self, frame: bytes) -> None:
        if not self._gone:
            self._send(("frame", frame, self._machine.process))

    def _end(self, error: HeadwaterError | None) -> None:
        self._over = True
        self._send(("end", error))

    def _send(self, frame: Any) -> None:
        self._node.send(self._client, ("flight", (self._call, self._out.number(), frame)))
