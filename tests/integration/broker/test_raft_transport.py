"""Messages between two members over real TLS: in order, and none lost to a restart unnoticed."""

from __future__ import annotations

import queue
import socket
from pathlib import Path

import pytest

from broker.adapters.peer import sender
from broker.adapters.peer.raft import PeerAddress, RaftTls, TlsRaftTransport, member_uri
from broker.errors import InvalidConfigError
from broker.model.raft import NodeId
from broker.model.raft_messages import Message, TimeoutNow
from headwater.local.embedded import LOOPBACK, free_port
from simkit.raft.groups import issue_certificate
from simkit.servers.certificates import Authority

pytestmark = pytest.mark.integration

A, B = NodeId("a"), NodeId("b")


class Pair:
    """Member `a`, and member `b`, which is restarted."""

    def __init__(self, folder: Path) -> None:
        authority = Authority()
        self._tls = {
            name: issue_certificate(folder, name, authority, uri=member_uri("c", name))
            for name in (A, B)
        }
        self.received: queue.Queue[tuple[NodeId, Message]] = queue.Queue()
        self._ports = {name: free_port() for name in (A, B)}
        self.a = self._start(A, B)
        self.b = self._start(B, A)

    def _start(self, me: NodeId, other: NodeId) -> TlsRaftTransport:
        transport = TlsRaftTransport(
            cluster="c",
            me=me,
            listener=socket.create_server((LOOPBACK, self._ports[me])),
            peers={other: PeerAddress(LOOPBACK, self._ports[other])},
            tls=self._tls[me],
        )
        transport.start(lambda sender, message: self.received.put((sender, message)))
        return transport

    def restart_b(self) -> None:
        """Let `b` go and come back on its port."""
        self.b.close()
        self.b = self._start(B, A)

    def close(self) -> None:
        """End both."""
        self.a.close()
        self.b.close()


def test_messages_arrive_in_order_and_the_first_after_a_restart_is_not_lost(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The message that asks for a vote comes after a silence in which the peer may have restarted.

    It is sent once; no other message follows that could carry it along.
    """
    monkeypatch.setattr(sender, "_KEEP_S", 600.0)  # a busy machine may connect after a second
    pair = Pair(tmp_path)
    try:
        for number in range(100):
            pair.a.send(B, TimeoutNow(number))
        arrived = [pair.received.get(timeout=60) for _ in range(100)]
        assert arrived == [(A, TimeoutNow(number)) for number in range(100)]
        for life in range(3):
            pair.restart_b()
            pair.a.send(B, TimeoutNow(1000 + life))
            assert pair.received.get(timeout=60) == (A, TimeoutNow(1000 + life))
    finally:
        pair.close()


def test_certificates_that_cannot_be_used_are_a_configuration_error(tmp_path: Path) -> None:
    """A missing or senseless file is named at start, before anything listens for members."""
    (tmp_path / "bad.pem").write_bytes(b"nonsense")
    with socket.create_server(("127.0.0.1", 0)) as listener:
        for name in ("bad.pem", "missing.pem"):
            path = tmp_path / name
            with pytest.raises(InvalidConfigError, match="certificates"):
                TlsRaftTransport(
                    cluster="c",
                    me=A,
                    listener=listener,
                    peers={},
                    tls=RaftTls(ca_file=path, cert_file=path, key_file=path),
                )
