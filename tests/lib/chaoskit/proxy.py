"""Links between nodes on the loopback that can be cut one way, both ways, slowed or reset.

Whoever opens connections to another node does so through a proxy of its own, so every byte has a
direction (from, to). A cut holds bytes back as a network that drops packets does: nothing is
closed, nobody is told, and what was held back arrives after the cut is healed, as TCP would send
it again. ``reset`` breaks connections instead. Bytes are never lost, reordered or changed within
a connection: TCP does not do that either.

One event loop in one thread serves all links; every method may be called from any thread.
"""

from __future__ import annotations

import asyncio
import socket
import threading
from collections.abc import Callable, Coroutine, Iterable
from contextlib import suppress
from dataclasses import dataclass, field
from types import TracebackType
from typing import Any, Final, Self, TypeVar

_CHUNK_BYTES: Final = 64 * 1024
_CHUNKS_MAX: Final = 32  # under way in one direction of one connection; then the sender waits
_CALL_S: Final = 10.0

Pair = tuple[str, str]  # (from, to)
T = TypeVar("T")


@dataclass(slots=True)
class _Direction:
    """What holds for all bytes from one node to another."""

    open: asyncio.Event = field(default_factory=asyncio.Event)
    delay_ms: float = 0.0
    bytes_count: int = 0

    def __post_init__(self) -> None:
        self.open.set()


@dataclass(slots=True)
class _Link:
    """Connections that one node opens to another: a listener, and where it leads."""

    pair: Pair
    target_port: int
    server: asyncio.Server
    port: int
    connections: set[_Connection] = field(default_factory=set)


class _Connection:
    """One connection through a link; a pump in each direction."""

    def __init__(self, client: asyncio.StreamWriter, server: asyncio.StreamWriter) -> None:
        self._ends = (client, server)

    def abort(self) -> None:
        """Break both halves; bytes under way are lost."""
        for end in self._ends:
            end.transport.abort()


class ProxyMesh:
    """All links of a cluster. A context manager; ``close`` ends the thread."""

    def __init__(self) -> None:
        self._loop = asyncio.new_event_loop()
        self._links: dict[Pair, _Link] = {}
        self._directions: dict[Pair, _Direction] = {}
        self._tasks: set[asyncio.Task[None]] = set()
        self._thread = threading.Thread(target=self._serve, name="proxy-mesh", daemon=True)
        self._thread.start()

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        self.close()

    # ------------------------------------------------------------------ links

    def connect(self, sender: str, receiver: str, target_port: int) -> int:
        """Return the port at which ``sender`` reaches ``receiver``, who listens at the target."""
        return self._run(self._connect((sender, receiver), target_port))

    def retarget(self, receiver: str, target_port: int) -> None:
        """Note that a node listens elsewhere from now on; open connections stay."""

        def change() -> None:
            for (_, to), link in self._links.items():
                if to == receiver:
                    link.target_port = target_port

        self._call(change)

    def close(self) -> None:
        """Break everything and stop listening; a second close is fine. Blocks."""
        if self._thread.is_alive():
            self._run(self._end())
            self._loop.call_soon_threadsafe(self._loop.stop)
            self._thread.join(_CALL_S)

    # ------------------------------------------------------------------ faults

    def cut(self, sender: str, receiver: str) -> None:
        """Let nothing pass from one to the other; the other way is as it was."""
        self._call(self._direction((sender, receiver)).open.clear)

    def heal(self, sender: str, receiver: str) -> None:
        """Undo a cut and a delay of this direction."""

        def change() -> None:
            direction = self._direction((sender, receiver))
            direction.delay_ms = 0.0
            direction.open.set()

        self._call(change)

    def cut_between(self, nodes: Iterable[str], others: Iterable[str]) -> None:
        """Cut both directions between two groups."""
        for pair in pairs_between(nodes, others):
            self.cut(*pair)

    def delay(self, sender: str, receiver: str, delay_ms: float) -> None:
        """Let every byte of this direction arrive so much later."""

        def change() -> None:
            self._direction((sender, receiver)).delay_ms = delay_ms

        self._call(change)

    def reset(self, sender: str, receiver: str) -> None:
        """Break every connection that ``sender`` has opened to ``receiver``."""

        def change() -> None:
            link = self._links.get((sender, receiver))
            for connection in list(link.connections) if link else ():
                connection.abort()

        self._call(change)

    def heal_all(self) -> None:
        """Undo every cut and delay."""

        def change() -> None:
            for direction in self._directions.values():
                direction.delay_ms = 0.0
                direction.open.set()

        self._call(change)

    # ------------------------------------------------------------------ what is

    def cuts(self) -> list[Pair]:
        """Return the directions that are cut now, in order."""
        return self._call(
            lambda: sorted(pair for pair, one in self._directions.items() if not one.open.is_set())
        )

    def bytes_passed(self, sender: str, receiver: str) -> int:
        """Return how many bytes went this way so far."""
        return self._call(lambda: self._direction((sender, receiver)).bytes_count)

    def connections_count(self, sender: str, receiver: str) -> int:
        """Return how many connections the one has open to the other."""

        def count() -> int:
            link = self._links.get((sender, receiver))
            return len(link.connections) if link else 0

        return self._call(count)

    # ------------------------------------------------------------------ the loop

    def _serve(self) -> None:
        asyncio.set_event_loop(self._loop)
        self._loop.run_forever()
        self._loop.close()

    def _run(self, work: Coroutine[Any, Any, T]) -> T:
        return asyncio.run_coroutine_threadsafe(work, self._loop).result(_CALL_S)

    def _call(self, change: Callable[[], T]) -> T:
        async def call() -> T:
            return change()

        return self._run(call())

    def _direction(self, pair: Pair) -> _Direction:
        return self._directions.setdefault(pair, _Direction())

    async def _connect(self, pair: Pair, target_port: int) -> int:
        assert pair not in self._links, f"{pair} is connected already"

        async def accept(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
            task = asyncio.current_task()
            assert task is not None
            self._tasks.add(task)
            try:
                with suppress(asyncio.CancelledError):  # the mesh is closing
                    await self._carry(self._links[pair], reader, writer)
            finally:
                self._tasks.discard(task)
                writer.transport.abort()

        server = await asyncio.start_server(accept, "127.0.0.1", 0)
        port = int(server.sockets[0].getsockname()[1])
        self._links[pair] = _Link(pair, target_port, server, port)
        return port

    async def _carry(
        self, link: _Link, reader: asyncio.StreamReader, writer: asyncio.StreamWriter
    ) -> None:
        """Carry one connection until either end closes it."""
        forth, back = self._direction(link.pair), self._direction(link.pair[::-1])
        await forth.open.wait()  # a SYN is dropped like everything else
        try:
            far_reader, far_writer = await asyncio.open_connection("127.0.0.1", link.target_port)
        except OSError:
            return  # nobody listens: the client sees its connection end
        connection = _Connection(writer, far_writer)
        link.connections.add(connection)
        for end in (writer, far_writer):
            _without_delay(end)
        try:
            async with asyncio.TaskGroup() as pumps:  # each ends at an end of stream, or both do
                pumps.create_task(_pump(reader, far_writer, forth))
                pumps.create_task(_pump(far_reader, writer, back))
        except* OSError:
            pass  # one end was reset: the other one is as well, below
        finally:
            link.connections.discard(connection)
            connection.abort()

    async def _end(self) -> None:
        for link in self._links.values():
            link.server.close()
        for task in list(self._tasks):
            task.cancel()
        await asyncio.gather(*self._tasks, return_exceptions=True)


async def _pump(
    reader: asyncio.StreamReader, writer: asyncio.StreamWriter, direction: _Direction
) -> None:
    """Carry bytes one way; read bytes wait here while the direction is cut or slow."""
    waiting: asyncio.Queue[tuple[float, bytes]] = asyncio.Queue(_CHUNKS_MAX)
    loop = asyncio.get_running_loop()

    async def read() -> None:
        while True:
            data = await reader.read(_CHUNK_BYTES)
            await waiting.put((loop.time() + direction.delay_ms / 1000, data))
            if not data:
                return

    async def write() -> None:
        while True:
            due_s, data = await waiting.get()
            await asyncio.sleep(due_s - loop.time())
            await direction.open.wait()
            if not data:
                with suppress(OSError):
                    writer.write_eof()
                return
            writer.write(data)
            await writer.drain()
            direction.bytes_count += len(data)

    async with asyncio.TaskGroup() as both:  # a reset of either end ends both at once
        both.create_task(read())
        both.create_task(write())


def _without_delay(writer: asyncio.StreamWriter) -> None:
    end = writer.get_extra_info("socket")
    if end is not None:
        end.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)


def pairs_between(nodes: Iterable[str], others: Iterable[str]) -> list[Pair]:
    """Return the directions between two groups, both ways."""
    right = list(others)
    return [pair for one in nodes for two in right for pair in ((one, two), (two, one))]
