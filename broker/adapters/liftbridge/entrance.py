"""Who is let in at the port of Liftbridge's API: a place for each connection, from its first byte.

A TLS handshake that goes wrong gives its place back. One that does not end has a place for some
seconds, and no longer than others need it. So strangers without a certificate hold no place. Each
handshake takes some 300 KB, so there are few at one time. When all places are taken, a connection
without a call gives way to a new one: first one that never had a call of a known caller.
"""

from __future__ import annotations

import asyncio
import errno
import socket
from collections.abc import Callable
from contextlib import suppress
from typing import Final, Generic, TypeVar

from broker.adapters.liftbridge.config import LiftbridgeServiceConfig

_QUEUE_MAX: Final = 128  # connections that the kernel has made and nobody has accepted
_NO_ROOM: Final = (errno.EMFILE, errno.ENFILE, errno.ENOBUFS, errno.ENOMEM)
_FAREWELL_S: Final = 5.0  # for the end of TLS, which a peer need not answer
_NO_ROOM_S: Final = 1.0  # until the next try
_Guest = TypeVar("_Guest", bound=asyncio.Protocol)


class Entrance(Generic[_Guest]):
    """Accepts connections until it is closed. On the event loop.

    asyncio's own server would not tell of a handshake that went wrong, nor count those that go on.
    """

    def __init__(
        self,
        config: LiftbridgeServiceConfig,
        *,
        guest: Callable[[], _Guest],
        left: Callable[[_Guest], None],
        inside: Callable[[], int],
        make_room: Callable[[bool], bool],
        refused: Callable[[], None],
    ) -> None:
        """Let nobody in before :meth:`open`.

        ``guest`` makes a connection and gives it a place, ``left`` takes the place of one whose
        handshake went wrong, ``inside`` is how many places are taken, ``make_room`` closes an idle
        connection if there is one, if need be one that is known, and ``refused`` is called for each
        connection that finds no place.
        """
        self._config = config
        self._guest = guest
        self._left = left
        self._inside = inside
        self._make_room = make_room
        self._refused = refused
        self._loop = asyncio.get_running_loop()
        self._server: asyncio.Server | None = None
        self._accepting: list[asyncio.Task[None]] = []
        self._tasks: set[asyncio.Task[None]] = set()  # of connections that are being made
        self._entering: dict[asyncio.Task[None], None] = {}  # handshakes, the oldest first

    async def open(self) -> int:
        """Bind, begin to accept, and return the port.

        Raises:
            OSError: the address cannot be used.
            ValueError: nor can its name.
        """
        where = self._config.host, self._config.port
        self._server = await self._loop.create_server(self._guest, *where, start_serving=False)
        for one in self._server.sockets:
            listener = one.dup()
            listener.listen(_QUEUE_MAX)
            self._accepting.append(self._loop.create_task(self._accept(listener)))
        return int(self._server.sockets[0].getsockname()[1])

    async def close(self) -> None:
        """Accept nobody more, and end the handshakes."""
        await asyncio.sleep(0)  # each has begun: else nobody would close its socket
        tasks = [*self._accepting, *self._tasks]
        for one in tasks:
            one.cancel()
        await asyncio.gather(*tasks, return_exceptions=True)
        if self._server is not None:
            self._server.close()

    async def _accept(self, listener: socket.socket) -> None:
        with listener:
            while True:
                try:
                    arrived, _ = await self._loop.sock_accept(listener)
                except OSError as error:  # no descriptor is free, or the connection has ended
                    await asyncio.sleep(_NO_ROOM_S if error.errno in _NO_ROOM else 0)
                    continue
                self._admit(arrived)
                await asyncio.sleep(0)  # a flood leaves time for those who are inside

    def _admit(self, arrived: socket.socket) -> None:
        has_room = self._inside() < self._config.connections_max or self._make_room(False)
        if self._entering and (not has_room or len(self._entering) >= self._config.handshakes_max):
            oldest = next(iter(self._entering))
            del self._entering[oldest]
            self._loop.call_soon(oldest.cancel)  # behind its beginning
        elif not has_room and not self._make_room(True):
            arrived.close()
            self._refused()
            return
        task = self._loop.create_task(self._enter(arrived, self._guest()))
        self._tasks.add(task)
        task.add_done_callback(self._tasks.discard)
        if self._config.tls is not None:
            self._entering[task] = None
            task.add_done_callback(lambda one: self._entering.pop(one, None))

    async def _enter(self, arrived: socket.socket, guest: _Guest) -> None:
        tls, is_inside = self._config.tls, False
        with suppress(OSError, asyncio.CancelledError):  # the handshake went wrong, or gave way
            try:
                transport, _ = await self._loop.connect_accepted_socket(
                    lambda: guest,
                    arrived,
                    ssl=tls,
                    ssl_handshake_timeout=None if tls is None else self._config.handshake_s,
                    ssl_shutdown_timeout=None if tls is None else _FAREWELL_S,
                )
                is_inside = not transport.is_closing()
            finally:
                if not is_inside:
                    self._left(guest)
