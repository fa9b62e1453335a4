"""Links that can be cut, over real sockets on the loopback."""

from __future__ import annotations

import socket
import threading
import time
from collections.abc import Iterator
from contextlib import suppress

import pytest

from chaoskit.proxy import ProxyMesh, pairs_between

pytestmark = pytest.mark.integration

WAIT_S = 60.0
SHORT_S = 0.15  # the wait of checks that nothing arrives


class Echo:
    """A server that sends received bytes back, and remembers them."""

    def __init__(self) -> None:
        self.got = bytearray()
        self._listener = socket.create_server(("127.0.0.1", 0))
        self.port = int(self._listener.getsockname()[1])
        self._arrived = threading.Condition()
        threading.Thread(target=self._accept, daemon=True).start()

    def close(self) -> None:
        """Stop listening."""
        with suppress(OSError):
            self._listener.shutdown(socket.SHUT_RDWR)
        self._listener.close()

    def wait_for(self, size: int) -> bytes:
        """Block until so many bytes have arrived."""
        with self._arrived:
            assert self._arrived.wait_for(lambda: len(self.got) >= size, WAIT_S), bytes(self.got)
            return bytes(self.got)

    def _accept(self) -> None:
        with suppress(OSError):
            while True:
                link, _ = self._listener.accept()
                threading.Thread(target=self._serve, args=(link,), daemon=True).start()

    def _serve(self, link: socket.socket) -> None:
        with link, suppress(OSError):
            while data := link.recv(65536):
                with self._arrived:
                    self.got += data
                    self._arrived.notify_all()
                link.sendall(data)


@pytest.fixture
def echo() -> Iterator[Echo]:
    """Start the server that is node b."""
    server = Echo()
    yield server
    server.close()


@pytest.fixture
def mesh() -> Iterator[ProxyMesh]:
    """Start a mesh without links."""
    with ProxyMesh() as found:
        yield found


def _open(port: int) -> socket.socket:
    link = socket.create_connection(("127.0.0.1", port), WAIT_S)
    link.settimeout(WAIT_S)
    return link


def _receive(link: socket.socket, size: int) -> bytes:
    data = b""
    while len(data) < size:
        more = link.recv(65536)
        assert more, f"it ended after {data!r}"
        data += more
    return data


def _is_silent(link: socket.socket) -> bool:
    link.settimeout(SHORT_S)
    try:
        return not link.recv(1)
    except TimeoutError:
        return True
    finally:
        link.settimeout(WAIT_S)


def test_bytes_pass_both_ways_in_order(mesh: ProxyMesh, echo: Echo) -> None:
    """Without a fault a link is a wire, for much data as well."""
    data = bytes(range(256)) * 8192
    with _open(mesh.connect("a", "b", echo.port)) as link:
        threading.Thread(target=link.sendall, args=(data,), daemon=True).start()
        assert _receive(link, len(data)) == data
    assert mesh.bytes_passed("a", "b") == len(data) == mesh.bytes_passed("b", "a")


def test_a_cut_of_one_way_lets_the_other_way_pass(mesh: ProxyMesh, echo: Echo) -> None:
    """Cut from b to a: b gets everything, a hears nothing until it is healed."""
    with _open(mesh.connect("a", "b", echo.port)) as link:
        link.sendall(b"one")
        assert _receive(link, 3) == b"one"
        mesh.cut("b", "a")
        link.sendall(b"two")
        assert echo.wait_for(6) == b"onetwo"
        assert _is_silent(link)
        mesh.heal("b", "a")
        assert _receive(link, 3) == b"two"


def test_the_other_one_way_cut_keeps_requests_from_arriving(mesh: ProxyMesh, echo: Echo) -> None:
    """Cut from a to b: nothing arrives, nothing is closed, and it arrives after the heal."""
    with _open(mesh.connect("a", "b", echo.port)) as link:
        link.sendall(b"one")
        assert _receive(link, 3) == b"one"
        mesh.cut("a", "b")
        link.sendall(b"two")
        assert _is_silent(link)
        assert bytes(echo.got) == b"one"
        mesh.heal("a", "b")
        assert _receive(link, 3) == b"two"


def test_a_cut_counts_for_connections_of_either_side(mesh: ProxyMesh, echo: Echo) -> None:
    """What a opened to b and what b opened to a carry the same two directions."""
    other = Echo()
    with (
        _open(mesh.connect("a", "b", echo.port)) as forth,
        _open(mesh.connect("b", "a", other.port)) as back,
    ):
        mesh.cut("a", "b")
        back.sendall(b"from b")  # node a gets it, but its answer cannot pass
        assert other.wait_for(6) == b"from b"
        forth.sendall(b"from a")
        assert _is_silent(back)
        assert not echo.got
        mesh.heal_all()
        assert _receive(back, 6) == b"from b"
        assert _receive(forth, 6) == b"from a"
    other.close()


def test_a_full_cut_holds_new_connections_back_as_well(mesh: ProxyMesh, echo: Echo) -> None:
    """A connection that is opened during a cut reaches the server when the cut is healed."""
    port = mesh.connect("a", "b", echo.port)
    mesh.cut_between(["a"], ["b", "c"])
    assert mesh.cuts() == [("a", "b"), ("a", "c"), ("b", "a"), ("c", "a")]
    with _open(port) as link:
        link.sendall(b"early")
        assert _is_silent(link)
        mesh.heal_all()
        assert mesh.cuts() == []
        assert _receive(link, 5) == b"early"


def test_a_delay_holds_every_byte_back_and_keeps_the_order(mesh: ProxyMesh, echo: Echo) -> None:
    """A slow direction delivers no sooner than it should, and nothing is swapped."""
    with _open(mesh.connect("a", "b", echo.port)) as link:
        mesh.delay("a", "b", 200)
        began_s = time.monotonic()
        for number in range(50):
            link.sendall(b"%02d" % number)
        assert _receive(link, 100) == b"".join(b"%02d" % number for number in range(50))
        assert time.monotonic() - began_s >= 0.2


def test_a_reset_breaks_what_is_open_and_nothing_else(mesh: ProxyMesh, echo: Echo) -> None:
    """The client's connection ends; the next one works."""
    port = mesh.connect("a", "b", echo.port)
    with _open(port) as link:
        link.sendall(b"one")
        assert _receive(link, 3) == b"one"
        assert mesh.connections_count("a", "b") == 1
        mesh.reset("a", "b")
        with suppress(ConnectionError):
            assert link.recv(1) == b""
    with _open(port) as link:
        link.sendall(b"two")
        assert _receive(link, 3) == b"two"


def test_a_server_that_comes_back_elsewhere_is_reached(mesh: ProxyMesh, echo: Echo) -> None:
    """Nobody listens: the connection ends. Retargeted: the same port leads to the new server."""
    with socket.create_server(("127.0.0.1", 0)) as gone:
        port = mesh.connect("a", "b", int(gone.getsockname()[1]))
    with _open(port) as link, suppress(ConnectionError):
        assert link.recv(1) == b""
    mesh.retarget("b", echo.port)
    with _open(port) as link:
        link.sendall(b"two")
        assert _receive(link, 3) == b"two"


def test_a_half_close_travels(mesh: ProxyMesh, echo: Echo) -> None:
    """A client that has said all still gets the whole answer."""
    with _open(mesh.connect("a", "b", echo.port)) as link:
        link.sendall(b"all")
        link.shutdown(socket.SHUT_WR)
        assert _receive(link, 3) == b"all"
        assert link.recv(1) == b""


def test_closing_ends_every_connection_and_is_done_once() -> None:
    """A closed mesh leaves nobody waiting, also with a cut in force."""
    server = Echo()
    mesh = ProxyMesh()
    link = _open(mesh.connect("a", "b", server.port))
    link.sendall(b"one")
    assert _receive(link, 3) == b"one"
    mesh.cut("b", "a")
    mesh.close()
    mesh.close()
    with suppress(ConnectionError):
        assert link.recv(1) == b""
    link.close()
    server.close()


def test_pairs_between_groups() -> None:
    """Both directions of every pair."""
    assert pairs_between(["a"], ["b", "c"]) == [("a", "b"), ("b", "a"), ("a", "c"), ("c", "a")]
