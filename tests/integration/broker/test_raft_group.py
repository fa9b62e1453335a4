"""Three members over real TLS on the loopback: failover, catching up, and refused peers.

Every test runs with our own Raft and with pysyncobj and its corrections.
"""

from __future__ import annotations

import contextlib
import socket
import ssl
import time
from collections.abc import Iterator
from pathlib import Path

import pytest

from broker.codec.peer.frames import LaneKind, encode_frame_header
from broker.codec.peer.raft_messages import encode as encode_message
from broker.core.metadata.commands import RegisterBroker, encode
from broker.errors import CommitTimeoutError, OverloadedError, UnavailableError
from broker.model.ids import BrokerId
from broker.model.raft import Entry, EntryKind, NodeId
from broker.model.raft_messages import Append
from simkit.raft.groups import CORES, RaftGroup, issue_certificate
from simkit.servers.certificates import Authority

pytestmark = pytest.mark.integration

REGISTER = RegisterBroker(broker=BrokerId("b1"))
FORGED = encode_message(
    Append(99, 0, 0, 1, 1, 0, 0, (Entry(1, 99, EntryKind.COMMAND, 1, 1, encode(REGISTER)),))
)


@pytest.fixture(params=CORES)
def group(request: pytest.FixtureRequest, tmp_path: Path) -> Iterator[RaftGroup]:
    """Return a running group of three, with journals so small that snapshots are common."""
    found = RaftGroup(tmp_path, size=3, journal_bytes_max=2000, core=CORES[request.param])
    yield found
    found.close()


def _register(group: RaftGroup, count: int) -> list[int]:
    members = list(group.running.values())
    return [
        int(members[number % len(members)].propose(REGISTER, timeout_ms=60_000)["broker_epoch"])
        for number in range(count)
    ]


def test_the_group_survives_its_leader(group: RaftGroup) -> None:
    """Whichever member leads and stops, the other two go on, and it catches up when it is back."""
    assert _register(group, 5) == [1, 2, 3, 4, 5]
    for start in (6, 16):
        leader = group.leader()
        group.stop(leader)
        assert _register(group, 10) == list(range(start, start + 10))
        back = group.start(leader)
        back.barrier(timeout_ms=30_000)
        assert back.state.broker_epochs == {"b1": start + 9}


def test_a_member_that_was_away_for_long_gets_a_snapshot(group: RaftGroup) -> None:
    """Its missing entries are compacted everywhere, so it gets a snapshot in chunks."""
    away = next(name for name in group.names if name != group.leader())
    group.stop(away)
    _register(group, 1200)
    back = group.start(away)
    assert back.barrier(timeout_ms=30_000) >= 1200
    assert back.state.broker_epochs == {"b1": 1200}


def test_a_minority_answers_nothing(group: RaftGroup) -> None:
    """Alone, a member neither takes commands nor confirms reads; with a second one it does."""
    _register(group, 1)
    last, *others = group.names
    for name in others:
        group.stop(name)
    alone = group.running[last]
    with pytest.raises((CommitTimeoutError, OverloadedError)):
        alone.propose(REGISTER, timeout_ms=500)
    with pytest.raises(UnavailableError):
        alone.barrier(timeout_ms=500)
    group.start(others[0])
    alone.barrier(timeout_ms=30_000)
    assert alone.propose(REGISTER, timeout_ms=30_000)["broker_epoch"] in {2, 3}


@pytest.mark.parametrize("order", [("own", "pysyncobj"), ("pysyncobj", "own")])
def test_a_stopped_group_may_change_its_implementation(
    order: tuple[str, str], tmp_path: Path
) -> None:
    """The files are the same: log, sessions, snapshot and votes go over, and back."""
    group = RaftGroup(tmp_path, size=3, journal_bytes_max=2000, keep_entries=5)
    try:
        done = 0
        for name in (*order, order[0]):
            group.core = CORES[name]
            group.restart()
            assert _register(group, 30) == list(range(done + 1, done + 31))
            done += 30
        for member in group.running.values():
            member.barrier(timeout_ms=30_000)
            assert member.state.broker_epochs == {"b1": done}
    finally:
        group.close()


def _refused(group: RaftGroup, name: NodeId, context: ssl.SSLContext | None) -> bool:
    """Send a forged append; tell whether the member hung up on us."""
    with socket.create_connection(("127.0.0.1", group.port(name)), 10) as plain:
        frame = encode_frame_header(LaneKind.RAFT, len(FORGED), len(FORGED)) + FORGED
        try:
            if context is None:
                plain.sendall(frame)
                while plain.recv(100):
                    pass
                return True
            with context.wrap_socket(plain) as secured:
                secured.sendall(frame)
                return secured.recv(1) == b""
        except OSError:
            return True


def _context(folder: Path, authority: Authority, trusted: bytes, uri: str) -> ssl.SSLContext:
    tls = issue_certificate(folder, NodeId("stranger"), authority, uri=uri)
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_CLIENT)
    context.check_hostname = False
    context.load_verify_locations(cadata=trusted.decode())
    context.load_cert_chain(tls.cert_file, tls.key_file)
    return context


def test_nobody_but_members_is_heard(group: RaftGroup, tmp_path: Path) -> None:
    """Plain text, a foreign CA, an old TLS, a foreign name: each is hung up on, nothing decoded."""
    _register(group, 3)
    target = group.names[0]
    good, ca = group.authority, group.authority.cert
    member = f"headwater://test/broker/{group.names[1]}"
    anonymous = ssl.SSLContext(ssl.PROTOCOL_TLS_CLIENT)
    anonymous.check_hostname = False
    anonymous.verify_mode = ssl.CERT_NONE
    old = _context(tmp_path, good, ca, member)
    old.maximum_version = ssl.TLSVersion.TLSv1_2
    contexts = {
        "plain text": None,
        "no certificate": anonymous,
        "foreign authority": _context(tmp_path, Authority("else"), ca, member),
        "TLS 1.2": old,
        "a stranger": _context(tmp_path, good, ca, "headwater://test/broker/x"),
        "another cluster": _context(tmp_path, good, ca, "headwater://prod/broker/n1"),
        "itself": _context(tmp_path, good, ca, f"headwater://test/broker/{target}"),
    }
    for what, context in contexts.items():
        assert _refused(group, target, context), what
    assert _register(group, 1) == [4]
    assert all(one.state.broker_epochs[BrokerId("b1")] <= 4 for one in group.running.values())


def test_a_member_that_talks_nonsense_is_hung_up_on(group: RaftGroup, tmp_path: Path) -> None:
    """With a good certificate, too, lengths are bounded and bytes are checked."""
    _register(group, 1)
    context = _context(
        tmp_path,
        group.authority,
        group.authority.cert,
        f"headwater://test/broker/{group.names[1]}",
    )
    target = group.names[0]
    group.stop(group.names[1])  # it would connect again at once and replace the forged connections
    for frame in (b"\xff\xff\xff\x7f", b"\0\0\0\0", b"\x04\0\0\0\x04\0\0\0\x01\x80\x04N"):
        with (
            socket.create_connection(("127.0.0.1", group.port(target)), 60) as plain,
            context.wrap_socket(plain) as secured,
        ):
            secured.sendall(frame)
            with contextlib.suppress(ConnectionError):
                assert secured.recv(1) == b""
    deadline_s = time.monotonic() + 60
    while group.transports[target].refused["malformed"] < 3:  # counted after it is closed
        assert time.monotonic() < deadline_s, group.transports[target].refused
        time.sleep(0.01)
    group.start(group.names[1])
    assert _register(group, 1) == [2]
