"""Rows S12, L6, L7 and pickle of docs/raft.md, over real sockets: pysyncobj as shipped, and ours.

Ours are groups of three over mutual TLS, with our own Raft and with pysyncobj and its corrections.
"""

from __future__ import annotations

import contextlib
import errno
import socket
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from pysyncobj.tcp_server import TcpServer

from broker.core.metadata.commands import RegisterBroker
from broker.model.ids import BrokerId
from headwater.local.embedded import free_port
from simkit.raft import pysyncobj_shipped as shipped
from simkit.raft.groups import CORES, RaftGroup
from simkit.raft.pysyncobj_shipped import ShippedOverTcp, frame

pytestmark = pytest.mark.integration

# The attack leaves connections open.
leaky = pytest.mark.filterwarnings(
    "ignore:Exception ignored in:pytest.PytestUnraisableExceptionWarning"
)

REGISTER = RegisterBroker(broker=BrokerId("b1"))


@pytest.fixture(params=CORES)
def group(request: pytest.FixtureRequest, tmp_path: Path) -> Iterator[RaftGroup]:
    """Return a running group of three."""
    found = RaftGroup(tmp_path, size=3, core=CORES[request.param])
    yield found
    found.close()


@pytest.fixture
def library() -> Iterator[ShippedOverTcp]:
    """Return a member as shipped, listening on the loopback."""
    port = free_port()
    found = ShippedOverTcp(port, bindAddress=f"127.0.0.1:{port}")
    yield found
    found.destroy()


def _port(library: ShippedOverTcp) -> int:
    return int(library.selfNode.port)


def _throw(port: int, data: bytes) -> None:
    """Send bytes to a port of ours and wait until it hangs up."""
    with socket.create_connection(("127.0.0.1", port), 10) as plain, contextlib.suppress(OSError):
        plain.sendall(data)
        while plain.recv(1000):
            pass


def _epoch(group: RaftGroup) -> int:
    member = next(iter(group.running.values()))
    return int(member.propose(REGISTER, timeout_ms=30_000)["broker_epoch"])


def test_s12_a_stranger_is_not_obeyed(library: ShippedOverTcp, group: RaftGroup) -> None:
    """As shipped, a peer that says 'readonly' may lead; ours refuse one without a certificate."""
    forged = shipped.append(99, (1, 0), shipped.rows(2, 2, 99), commit=2)
    attack = frame("readonly") + frame(forged)
    with socket.create_connection(("127.0.0.1", _port(library)), 10) as plain:
        plain.sendall(attack)
        library.tick_until(lambda: library.values == [2])

    assert _epoch(group) == 1
    for name in group.names:
        _throw(group.port(name), attack)
    assert _epoch(group) == 2


class _OpensAFile:
    """An object whose unpickling opens a file."""

    def __init__(self, path: Path) -> None:
        self._path = path

    def __reduce__(self) -> tuple[Any, ...]:
        return open, (str(self._path), "w")


@leaky
def test_the_first_bytes_of_a_connection_run_no_code(
    library: ShippedOverTcp, group: RaftGroup, tmp_path: Path
) -> None:
    """As shipped, the bytes are unpickled before the sender is authenticated."""
    marker = tmp_path / "marker"
    attack = frame(_OpensAFile(marker))
    with socket.create_connection(("127.0.0.1", _port(library)), 10) as plain:
        plain.sendall(attack)
        library.tick_until(marker.exists)
    marker.unlink()

    assert _epoch(group) == 1
    for name in group.names:
        _throw(group.port(name), attack)
    assert _epoch(group) == 2
    assert not marker.exists()


def test_l6_a_port_that_is_taken_is_said_at_once(
    group: RaftGroup, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    """As shipped, a member tries for ever without a message; ours gets an open listener."""
    tries = 0

    class StopError(BaseException):
        pass

    def bind(self: Any) -> None:
        nonlocal tries
        tries += 1
        if tries > 100:
            raise StopError
        try:
            original(self)
        finally:
            self._TcpServer__socket.close()  # the library leaves the socket open

    original = TcpServer.bind
    monkeypatch.setattr(TcpServer, "bind", bind)
    with socket.create_server(("127.0.0.1", 0)) as taken:
        port = int(taken.getsockname()[1])
        with pytest.raises(StopError):
            ShippedOverTcp(port, bindAddress=f"127.0.0.1:{port}", bindRetryTime=1e-9)
    assert tries == 101
    assert caplog.records == [], "a hundred failures were not logged"

    last = group.names[-1]
    group.stop(last)
    with (
        socket.create_server(("127.0.0.1", group.port(last))),
        pytest.raises(OSError, match="in use"),
    ):
        group.start(last)
    group.start(last).barrier(timeout_ms=30_000)


class _Exhausted(socket.socket):
    """A listener of a process that has no descriptors left for a while."""

    failures = 0

    def accept(self) -> Any:
        """Fail as the system call does, then work."""
        if self.failures:
            self.failures -= 1
            raise OSError(errno.EMFILE, "Too many open files")
        return super().accept()


def test_l7_a_listener_survives_what_accept_fails_with(
    library: ShippedOverTcp, group: RaftGroup
) -> None:
    """As shipped, one failed accept closes the port for the rest of the member's life."""
    real = library.server._TcpServer__socket
    broken = _Exhausted(fileno=real.detach())
    broken.failures = 1
    library.server._TcpServer__socket = broken
    with socket.create_connection(("127.0.0.1", _port(library)), 10):
        library.tick_until(lambda: broken.failures == 0)
    for _ in range(20):
        library.doTick(0.01)
    with pytest.raises(ConnectionRefusedError):
        socket.create_connection(("127.0.0.1", _port(library)), 10)

    first, second, last = group.names
    for name in (second, last):
        group.stop(name)
    listener = _Exhausted(fileno=socket.create_server(("127.0.0.1", group.port(second))).detach())
    listener.failures = 3
    group.start(second, listener).barrier(timeout_ms=30_000)
    assert listener.failures == 0
    assert group.running[first].propose(REGISTER, timeout_ms=30_000)["broker_epoch"] == 1
