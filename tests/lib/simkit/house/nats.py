"""A NATS server of a house, and each broker's connection to it: the product's ingest runs here.

``NatsIngest`` gets its messages through the product's parser, ``NatsStream``, and its answers leave
as protocol bytes. Its event loop is ``WorldLoop``, whose callbacks are events of the world, so no
time passes that the seed does not know of. Simulated are the server, which forgets messages that
nobody subscribes to, and what its connections lose when it restarts.
"""

from __future__ import annotations

import asyncio
import json
from asyncio import events
from collections.abc import Coroutine, Mapping, Sequence
from typing import TYPE_CHECKING, Any, Final

from broker.adapters.nats.liftbridge_messages import decode_publish, encode_ack
from broker.codec.nats.stream import NatsStream
from broker.errors import UnavailableError
from broker.ports.partition import PartitionWriter
from broker.runtime.ingest.nats_ingest import IngestLimits, NatsIngest
from broker.runtime.led import LedPartitions
from simkit.house.process import Machine
from simkit.network.world import Network, World

if TYPE_CHECKING:
    from simkit.house.node import Node

NATS: Final = "nats"
_AGAIN_MS: Final = 50
_LIMITS: Final = IngestLimits(pending_bytes_max=500, stall_ms_max=200)  # often reached


_Loop: Any = asyncio.AbstractEventLoop  # which type checkers take for one that has to be whole


class WorldLoop(_Loop):  # type: ignore[misc]
    """The part of an event loop that ingest uses; a callback is an event of one process."""

    def __init__(self, machine: Machine) -> None:
        self._machine = machine
        self._life = machine.life
        self._coroutines: list[Coroutine[Any, Any, Any]] = []

    def forget(self) -> None:
        """End what runs here, as the end of its process does."""
        self._life = -1
        for one in self._coroutines:
            one.close()

    def get_debug(self) -> bool:
        """See the base class."""
        return False

    def time(self) -> float:
        """Return the world's time, in seconds."""
        return self._machine.world.now_ms / 1000

    def create_future(self) -> asyncio.Future[Any]:
        """See the base class."""
        return asyncio.Future(loop=self)

    def create_task(
        self, coro: Coroutine[Any, Any, Any], *, name: str | None = None
    ) -> asyncio.Task[Any]:
        """See the base class."""
        self._coroutines.append(coro)
        return asyncio.Task(coro, loop=self, name=name)

    def call_soon(self, callback: Any, *args: Any, context: Any = None) -> asyncio.Handle:
        """See the base class."""
        handle = asyncio.Handle(callback, args, self, context)
        self._machine.later(0, self._run, handle)
        return handle

    def call_soon_threadsafe(
        self, callback: Any, *args: Any, context: Any = None
    ) -> asyncio.Handle:
        """See the base class: everything here is on one thread."""
        return self.call_soon(callback, *args, context=context)

    def call_at(
        self, when: float, callback: Any, *args: Any, context: Any = None
    ) -> asyncio.TimerHandle:
        """See the base class."""
        handle = asyncio.TimerHandle(when, callback, args, self, context)
        delay_ms = max(0, round(when * 1000) - self._machine.world.now_ms)
        self._machine.later(delay_ms, self._run, handle)
        return handle

    def call_later(
        self, delay: float, callback: Any, *args: Any, context: Any = None
    ) -> asyncio.TimerHandle:
        """See the base class."""
        return self.call_at(self.time() + delay, callback, *args, context=context)

    def _timer_handle_cancelled(self, handle: asyncio.TimerHandle) -> None:
        """See the base class."""

    def call_exception_handler(self, context: dict[str, Any]) -> None:
        """Raise the exception of a callback; tasks of a killed process are dropped."""
        if self._machine.life == self._life and "exception" in context:
            raise context["exception"]

    def _run(self, handle: asyncio.Handle) -> None:
        if handle.cancelled():
            return
        events._set_running_loop(self)
        try:
            handle._run()
        finally:
            events._set_running_loop(None)


class NatsServer:
    """Delivers a message to the subscribers of its subject at that moment."""

    def __init__(self, world: World, network: Network, brokers: Sequence[str]) -> None:
        self._world, self._network, self._brokers = world, network, brokers
        self._subscribed: dict[str, tuple[int, dict[int, bytes]]] = {}  # connection and its sids
        self._newest: dict[str, int] = {}  # a connection is in order, which the network may not be
        network.join(NATS, self._receive)

    def restart(self) -> None:
        """End every connection; messages under way are lost."""
        self._world.note("NATS restarted")
        self._subscribed.clear()
        for name in self._brokers:
            self._network.send(NATS, name, ("nats", "lost", 0, b""))

    def _receive(self, sender: str, message: tuple[Any, ...]) -> None:
        match message:
            case ("subscribe", int(connection), int(number), dict(subjects)):
                if number < self._newest.get(sender, 0):
                    return
                self._newest[sender] = number
                self._subscribed[sender] = (connection, subjects)
                self._network.send(NATS, sender, ("nats", "subscribed", connection, b""))
            case ("publish", bytes(subject), bytes(reply), bytes(headers), bytes(payload)):
                self._deliver(subject, reply, headers, payload)
            case ("answers", bytes(data)):
                self._answer(data)

    def _deliver(self, subject: bytes, reply: bytes, headers: bytes, payload: bytes) -> None:
        heard = 0
        for name in sorted(self._subscribed):
            connection, subjects = self._subscribed[name]
            for sid, wanted in sorted(subjects.items()):
                if wanted == subject:
                    heard += 1
                    data = _message(subject, sid, reply, headers, payload)
                    self._network.send(NATS, name, ("nats", "data", connection, data))
        if not heard:
            self._world.note("NATS message that nobody heard")
        if heard > 1:
            self._world.note("NATS message that two brokers heard")

    def _answer(self, data: bytes) -> None:
        """Take PUB lines apart; each goes to the publisher whose inbox it names."""
        at = 0
        while at < len(data):
            end = data.index(b"\r\n", at)
            _, subject, size = data[at:end].split(b" ")
            body = data[end + 2 : end + 2 + int(size)]
            at = end + 4 + int(size)
            _, client, number = subject.decode().split(".")
            self._network.send(NATS, client, ("puback", (int(number), json.loads(body))))


def _message(subject: bytes, sid: int, reply: bytes, headers: bytes, payload: bytes) -> bytes:
    answer = reply + b" " if reply else b""
    if not headers:
        return b"MSG %b %d %b%d\r\n%b\r\n" % (subject, sid, answer, len(payload), payload)
    sizes = b"%d %d" % (len(headers), len(headers) + len(payload))
    return b"HMSG %b %d %b%b\r\n%b%b\r\n" % (subject, sid, answer, sizes, headers, payload)


class NatsConnection:
    """One process's connection: implements ``NatsLink``, and lets the product's ingest run."""

    def __init__(self, node: Node, network: Network) -> None:
        self._node, self._network = node, network
        self._world = node.machine.world
        self._loop = WorldLoop(node.machine)
        self._parser = NatsStream()
        self._said = node.machine.life * 1_000_000  # how often, over all processes
        self._number = node.machine.life * 1_000_000  # of the connection; no other has it
        self._subjects: dict[int, bytes] = {}
        self._waiting: list[asyncio.Future[None]] = []  # until the server has confirmed
        self._unread: list[tuple[int, bytes]] = []  # received while the socket is not read
        self._paused = False
        self._wanted: list[LedPartitions] = []  # partitions to be served, in order
        self._serves = False
        self.ingest = NatsIngest(
            clock=node.machine,
            decode_publish=decode_publish,
            encode_ack=encode_ack,
            limits=_LIMITS,
        )
        self.ingest.attach(self)
        self._loop.create_task(self.ingest.start())

    def forget(self) -> None:
        """End with its process."""
        self._subjects.clear()
        self._say()
        self._loop.forget()

    # ------------------------------------------------------------------ the listener

    def led_changed(self, led: LedPartitions) -> None:
        """Subscribe to the led partitions; see ``broker/process/daemon.py``."""
        self._wanted.append(led)
        if not self._serves:
            self._serves = True
            self._loop.create_task(self._serve_all())

    async def _serve_all(self) -> None:
        while self._wanted:
            led = self._wanted.pop(0)
            here = [self._node.log_holder(one) for one in led.partition_ids()]
            logs: dict[int, PartitionWriter] = {
                one.partition_id.number: one.writes for one in here if one is not None
            }
            try:
                await self.ingest.serve(led.stream, logs)
            except UnavailableError:
                self._world.note("subscription delayed")
        self._serves = False

    # ------------------------------------------------------------------ NatsLink

    async def start(self, *, must_connect: bool = True) -> None:
        """See ``NatsLink``."""

    async def close(self) -> None:
        """See ``NatsLink``."""

    async def flush(self) -> bool:
        """See ``NatsLink``."""
        return True

    async def subscribe(self, subjects: Mapping[int, str], queue_group: str | None) -> None:
        """See ``NatsLink.subscribe``."""
        for sid, subject in subjects.items():
            self._subjects[sid] = subject.encode()
            self._parser.add_hot(sid)
        confirmed = self._loop.create_future()
        self._waiting.append(confirmed)
        self._say()
        await confirmed

    async def unsubscribe(self, sids: Sequence[int]) -> None:
        """See ``NatsLink.unsubscribe``."""
        for sid in sids:
            self._subjects.pop(sid, None)
            self._parser.remove_hot(sid)
        self._say()

    def send(self, data: bytes, messages_count: int) -> bool:
        """See ``NatsLink.send``."""
        self._world.note("answered over NATS")
        self._network.send(self._node.name, NATS, ("answers", data))
        return True

    def _say(self) -> None:
        self._said += 1
        message = ("subscribe", self._number, self._said, dict(self._subjects))
        self._network.send(self._node.name, NATS, message)

    # ------------------------------------------------------------------ from the server

    def arrived(self, what: str, connection: int, data: bytes) -> None:
        """Take bytes of the server for this connection, or its loss."""
        if what == "lost":
            self._loop.call_soon(self._lost)
        elif connection == self._number:
            self._loop.call_soon(self._confirmed if what == "subscribed" else self._data, data)

    def _lost(self) -> None:
        self._number += 1
        self._parser.reset()
        self._unread.clear()
        self.ingest.connection_lost(slow_consumer=False)
        waiting, self._waiting = self._waiting, []
        for one in waiting:
            one.set_exception(UnavailableError("simulated: the connection was lost"))
        self._loop.call_later(_AGAIN_MS / 1000, self._say)

    def _confirmed(self, _: bytes) -> None:
        waiting, self._waiting = self._waiting, []
        for one in waiting:
            one.set_result(None)

    def _data(self, data: bytes) -> None:
        if self._paused:
            self._unread.append((self._number, data))
            return
        parsed = self._parser.feed(data)
        assert parsed.error is None, parsed.error
        wait = self.ingest.received(parsed.batches) if parsed.batches else None
        if wait is not None:
            self._world.note("NATS socket not read for a while")
            self._paused = True
            wait.add_done_callback(self._read_on)

    def _read_on(self, _: Any) -> None:
        self._paused = False
        unread, self._unread = self._unread, []
        for number, data in unread:
            if number == self._number:
                self._data(data)
