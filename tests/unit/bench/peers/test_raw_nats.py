"""The raw NATS writer, over a socket pair."""

from __future__ import annotations

import socket
import threading

import pytest

from bench.peers import raw_nats


class Peer:
    """The server's end: greets, answers PING, keeps everything it reads."""

    def __init__(self) -> None:
        self.listener = socket.create_server(("127.0.0.1", 0))
        self.received = b""
        self.thread = threading.Thread(target=self._serve, daemon=True)
        self.thread.start()

    @property
    def url(self) -> str:
        """Return its address."""
        return f"nats://127.0.0.1:{self.listener.getsockname()[1]}"

    def _serve(self) -> None:
        connection, _ = self.listener.accept()
        with connection, self.listener:
            connection.sendall(b'INFO {"server_id":"x"}\r\n')
            while data := connection.recv(65536):
                self.received += data
                connection.sendall(b"PONG\r\n" * data.count(b"PING\r\n"))


@pytest.mark.parametrize("count", [1, 7, 5000, 12_345])
def test_the_writer_sends_exactly_what_was_asked(count: int) -> None:
    """Whole chunks and the rest add up to the number of messages, each of them complete."""
    peer = Peer()
    one = raw_nats.frame("foo", b"x" * 100)
    with raw_nats.RawNats(peer.url) as connection:
        raw_nats.PlainWriter(connection, one, count).run()
    peer.thread.join(10)
    sent = peer.received.partition(b"PING\r\n")[2]
    assert sent == one * count + b"PING\r\n"


def test_a_frame_names_subject_reply_and_size() -> None:
    """Frames are those of the NATS protocol."""
    assert raw_nats.frame("a.b", b"xyz") == b"PUB a.b 3\r\nxyz\r\n"
    assert raw_nats.frame("a.b", b"", "inbox") == b"PUB a.b inbox 0\r\n\r\n"


def test_messages_of_a_push_consumer_are_counted_to_the_last() -> None:
    """Messages count by their own subject, also when one is cut between two reads."""
    one = b"MSG s 2 $JS.ACK.s.c.1.1.1.1.0 3\r\nabc\r\n"
    listener = socket.create_server(("127.0.0.1", 0))

    def serve() -> None:
        connection, _ = listener.accept()
        with connection, listener:
            connection.sendall(b'INFO {"server_id":"x"}\r\n')
            while b"PING\r\n" not in connection.recv(65536):
                pass
            connection.sendall(b"PONG\r\n")
            while b"CONSUMER.CREATE.s" not in connection.recv(65536):
                pass
            stream = b"MSG _bench.created 3 2\r\n{}\r\n" + one * 10
            for start in range(0, len(stream), 7):
                connection.sendall(stream[start : start + 7])

    threading.Thread(target=serve, daemon=True).start()
    url = f"nats://127.0.0.1:{listener.getsockname()[1]}"
    with raw_nats.RawNats(url) as connection:
        raw_nats.consume(connection, "s", 10)


def test_a_consumer_does_not_wait_on_a_closed_connection() -> None:
    """Too few messages are an error, never an endless loop."""
    listener = socket.create_server(("127.0.0.1", 0))

    def serve() -> None:
        connection, _ = listener.accept()
        with connection, listener:
            connection.sendall(b'INFO {"server_id":"x"}\r\n')
            while b"PING\r\n" not in connection.recv(65536):
                pass
            connection.sendall(b"PONG\r\n")
            while b"CONSUMER.CREATE.s" not in connection.recv(65536):
                pass

    threading.Thread(target=serve, daemon=True).start()
    url = f"nats://127.0.0.1:{listener.getsockname()[1]}"
    with raw_nats.RawNats(url) as connection, pytest.raises(ConnectionError):
        raw_nats.consume(connection, "s", 10)
