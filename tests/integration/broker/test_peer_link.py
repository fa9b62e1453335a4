"""The link between brokers: accepted peers, hostile bytes, and the number of sockets."""

from __future__ import annotations

import contextlib
import queue
import random
import socket
import ssl
import threading
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import psutil
import pytest

from broker.adapters.peer.control import PeerControlTransport
from broker.adapters.peer.identity import PeerAddress
from broker.adapters.peer.link import PeerLink
from broker.adapters.peer.raft import PeerRaftTransport
from broker.adapters.peer.replicas import PeerReplicaTransport
from broker.adapters.tls.context import TlsFiles
from broker.adapters.tls.door import DoorCertificates
from broker.codec.peer.control_messages import encode as encode_control
from broker.codec.peer.frames import LaneKind, encode_frame_header
from broker.errors import InvalidConfigError
from broker.model.control_messages import ControlMessage, Heartbeat
from broker.model.epochs import BrokerEpoch
from broker.model.ids import BrokerId
from broker.model.member_uri import member_uri
from broker.model.raft import NodeId
from broker.model.raft_messages import Message, TimeoutNow
from broker.model.replica_messages import FetchAnswer, FetchRequest
from headwater.local import cluster_certificates
from headwater.local.cluster_certificates import files_of, make_certificates
from simkit.brokers.replica_rigs import (
    CLUSTER,
    TIMEOUT_S,
    A,
    B,
    C,
    PeerRig,
    address,
    answer,
    fetch,
    stored,
)
from simkit.replacing import replaced
from simkit.servers.certificates import revocations

pytestmark = pytest.mark.integration

ControlInbox = queue.Queue[tuple[BrokerId, ControlMessage]]


@pytest.fixture
def rig(tmp_path: Path) -> Iterator[PeerRig]:
    """Return three running brokers."""
    found = PeerRig(tmp_path / "certificates")
    yield found
    found.close()


def _beat(number: int) -> Heartbeat:
    return Heartbeat(broker_epoch=BrokerEpoch(1), sent_ms=number)


def _control(
    link: PeerLink,
) -> tuple[PeerControlTransport, ControlInbox]:
    inbox: ControlInbox = queue.Queue()
    transport = PeerControlTransport(link)
    transport.start(lambda sender, message: inbox.put((sender, message)))
    return transport, inbox


def _raft(link: PeerLink) -> tuple[PeerRaftTransport, queue.Queue[tuple[NodeId, Message]]]:
    inbox: queue.Queue[tuple[NodeId, Message]] = queue.Queue()
    transport = PeerRaftTransport(link)
    transport.start(lambda sender, message: inbox.put((sender, message)))
    return transport, inbox


def _context(rig: PeerRig, tls: TlsFiles | None) -> ssl.SSLContext:
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_CLIENT)
    context.check_hostname = False
    context.load_verify_locations(rig.tls(A).ca_file)
    if tls is not None:
        context.load_cert_chain(tls.cert_file, tls.key_file)
    return context


def _stranger(folder: Path, cluster: str, name: str) -> TlsFiles:
    files = make_certificates(folder, cluster=cluster, brokers=[name])[name]
    return TlsFiles(ca_file=files.ca_file, cert_file=files.cert_file, key_file=files.key_file)


def _hung_up_on(port: int, context: ssl.SSLContext | None, data: bytes) -> bool:
    """Send ``data`` and tell whether the other side ends the connection."""
    with socket.create_connection(("127.0.0.1", port), TIMEOUT_S) as plain:
        try:
            with plain if context is None else context.wrap_socket(plain) as talk:
                talk.sendall(data)
                while talk.recv(4096):
                    pass
        except TimeoutError:
            return False
        except OSError:
            return True
        return True


def _frame(lane: LaneKind, data: bytes) -> bytes:
    return encode_frame_header(lane, len(data), len(data)) + data


# ---------------------------------------------------------------------------- connections


def test_three_lanes_of_three_brokers_share_two_connections_a_pair(rig: PeerRig) -> None:
    """The lanes are Raft, control and replicas; the operating system counts the sockets."""
    control = {name: _control(link) for name, link in rig.links.items()}
    raft = {name: _raft(link) for name, link in rig.links.items()}
    for sender in (A, B, C):
        for receiver in (A, B, C):
            if sender == receiver:
                continue
            heard: NodeId | None = None
            while heard != NodeId(sender):  # others may have sent theirs twice
                raft[sender][0].send(NodeId(receiver), TimeoutNow(1))
                with contextlib.suppress(queue.Empty):
                    heard, _ = raft[receiver][1].get(timeout=0.5)
            control[sender][0].send(receiver, _beat(7))
            assert control[receiver][1].get(timeout=TIMEOUT_S) == (sender, _beat(7))
            for number in range(100):
                rig.transports[sender].send(
                    receiver, address(number), fetch(number, follower=sender)
                )
            for number in range(100):
                found = rig.inboxes[receiver].get(timeout=TIMEOUT_S)
                assert found[1] == address(number).partition_id
    ports = set(rig.ports.values())
    open_ones = [
        one
        for one in psutil.Process().net_connections("tcp4")
        if one.status == psutil.CONN_ESTABLISHED and one.raddr and one.raddr.port in ports
    ]
    assert len(open_ones) == 6  # three pairs, two each, counted at the connecting end
    for transport, _ in control.values():
        transport.close()


def test_a_broker_hears_itself_without_a_socket(rig: PeerRig) -> None:
    """The controller in office is a broker, too; its message is delivered by another thread."""
    transport, _ = _control(rig.links[A])
    transport.close()
    heard: queue.Queue[tuple[BrokerId, str]] = queue.Queue()
    transport = PeerControlTransport(rig.links[A])
    transport.start(lambda sender, _: heard.put((sender, threading.current_thread().name)))
    transport.send(A, _beat(1))
    sender, thread = heard.get(timeout=TIMEOUT_S)
    assert sender == A
    assert thread != threading.current_thread().name
    transport.close()
    transport.send(A, _beat(2))
    assert heard.empty()


def test_a_heartbeat_overtakes_batches_that_wait(rig: PeerRig) -> None:
    """With tens of megabytes queued before it, a control message arrives before most of them.

    The receiver takes nothing until all is sent: else the batches may come first, rightly.
    """
    batches, arrived_before = rig.inboxes[B], queue.Queue[int]()
    sent = threading.Event()
    transport = PeerControlTransport(rig.links[B])
    transport.start(lambda *_: arrived_before.put(batches.qsize()))

    def take(*batch: Any) -> None:
        assert sent.wait(TIMEOUT_S)
        batches.put(batch)

    rig.transports[B].start(take)
    sender, _ = _control(rig.links[A])
    while rig.links[A].connected() != {B, C}:
        time.sleep(0.01)
    big = answer(1, (stored(0, bytes(4_000_000)),))
    for number in range(15):
        rig.transports[A].send(B, address(number), big)
    sender.send(B, _beat(1))
    sent.set()
    assert arrived_before.get(timeout=TIMEOUT_S) < 15
    for _ in range(15):
        batches.get(timeout=TIMEOUT_S)
    transport.close()
    sender.close()


def _until_heard(
    sender: PeerControlTransport,
    to: BrokerId,
    inbox: ControlInbox,
    who: BrokerId,
) -> None:
    while True:
        sender.send(to, _beat(1))
        with contextlib.suppress(queue.Empty):
            if inbox.get(timeout=0.1)[0] == who:
                return


# ---------------------------------------------------------------------------- strangers


def test_nobody_but_brokers_of_the_cluster_is_heard(rig: PeerRig, tmp_path: Path) -> None:
    """Plain text, no certificate, a foreign CA, an old TLS, another cluster: nothing is decoded."""
    transport, inbox = _control(rig.links[A])
    old = _context(rig, rig.tls(B))
    old.maximum_version = ssl.TLSVersion.TLSv1_2
    contexts = {
        "plain text": None,
        "no certificate": _context(rig, None),
        "foreign authority": _context(rig, _stranger(tmp_path / "foreign", CLUSTER, B)),
        "TLS 1.2": old,
        "a stranger": _context(rig, _stranger(rig.folder, CLUSTER, "x")),
        "itself": _context(rig, rig.tls(A)),
    }
    other = tmp_path / "other"
    other.mkdir()
    for name in ("ca.crt", "ca.key"):
        (other / name).write_bytes((rig.folder / name).read_bytes())
    # `headwater cluster certs` refuses this; another tool may let one authority serve two clusters.
    name = cluster_certificates._authority_name(CLUSTER)
    with replaced(cluster_certificates, "_authority_name", lambda _cluster: name):
        contexts["another cluster"] = _context(rig, _stranger(other, "prod", B))
    frame = _frame(LaneKind.CONTROL, encode_control(_beat(666)))
    for what, context in contexts.items():
        assert _hung_up_on(rig.ports[A], context, frame * 50), what
    refused = rig.links[A].refused
    deadline = time.monotonic() + TIMEOUT_S
    while refused["not a member"] < 2 or refused["tls"] < 4:  # counted after they are closed
        assert time.monotonic() < deadline, refused
        time.sleep(0.01)
    theirs, _ = _control(rig.links[B])
    _until_heard(theirs, A, inbox, B)
    while not inbox.empty():
        assert inbox.get() == (B, _beat(1))
    transport.close()
    theirs.close()


def test_a_broker_does_not_talk_to_an_impostor(rig: PeerRig, tmp_path: Path) -> None:
    """The server at a broker's address has to be that broker, not just any of the cluster."""
    listener = socket.create_server(("127.0.0.1", 0))
    address_of_b = PeerAddress("127.0.0.1", int(listener.getsockname()[1]))
    answering = PeerLink(
        cluster=CLUSTER,
        me=B,
        listener=listener,
        peers={A: PeerAddress("127.0.0.1", rig.ports[A])},
        tls=rig.tls(C),  # an honest certificate, of another broker
    )
    transport, inbox = _control(answering)
    caller = BrokerId("d")
    link = PeerLink(
        cluster=CLUSTER,
        me=caller,
        listener=socket.create_server(("127.0.0.1", 0)),
        peers={B: address_of_b},
        tls=_stranger(rig.folder, CLUSTER, caller),
    )
    theirs, _ = _control(link)
    sender = link.counters()[B]
    while sender.impostors < 2:
        theirs.send(B, _beat(1))
    assert inbox.empty()
    theirs.close()
    link.close()
    transport.close()
    answering.close()


def test_hostile_bytes_behind_a_good_certificate_are_counted_and_harmless(rig: PeerRig) -> None:
    """A member's bad frames end its connection, its bad messages are dropped; both are counted."""
    chance = random.Random(5)
    transport, inbox = _control(rig.links[A])
    raft, _ = _raft(rig.links[A])
    context = _context(rig, rig.tls(B))
    link = rig.links[A]
    for number in range(60):
        lane = chance.choice(list(LaneKind))
        junk = chance.randbytes(chance.randint(1, 3000))
        data = [
            junk,
            _frame(lane, junk),
            _frame(lane, b"\x80\x04\x95" + junk) * 3,
            encode_frame_header(lane, 200_000, 60_000) + junk,
            encode_frame_header(LaneKind.REPLICA, 200_000, 200_000_000) + junk,
        ][number % 5]
        with (
            contextlib.suppress(OSError),
            socket.create_connection(("127.0.0.1", rig.ports[A]), TIMEOUT_S) as plain,
            context.wrap_socket(plain) as secured,
        ):
            secured.sendall(data)
    while not (link.refused["malformed"] and link.lane(LaneKind.CONTROL).malformed_count):
        with (
            contextlib.suppress(OSError),
            socket.create_connection(("127.0.0.1", rig.ports[A]), TIMEOUT_S) as plain,
            context.wrap_socket(plain) as secured,
        ):
            secured.sendall(_frame(LaneKind.CONTROL, b"junk") + bytes(100))
            secured.recv(1)
    theirs, _ = _control(rig.links[B])
    _until_heard(theirs, A, inbox, B)
    for one in (transport, theirs):
        one.close()
    raft.close()


def test_hundreds_of_half_open_connections_keep_nobody_out(rig: PeerRig) -> None:
    """Strangers who say nothing hold few places; a broker that restarts still gets in."""
    _, inbox = _control(rig.links[A])
    silent: list[socket.socket] = []
    try:
        while len(silent) < 300:
            silent.append(socket.create_connection(("127.0.0.1", rig.ports[A]), TIMEOUT_S))
        rig.stop(B)
        rig.start(B)
        theirs, _ = _control(rig.links[B])
        _until_heard(theirs, A, inbox, B)
        assert rig.links[A].refused["too many"] > 100
        threads = [one for one in threading.enumerate() if one.name.startswith("peer-from-")]
        assert len(threads) < 200
        theirs.close()
    finally:
        for one in silent:
            one.close()


def test_a_connection_for_which_there_is_no_thread_closes_the_door_to_nobody(
    rig: PeerRig, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The system has a limit of threads; brokers that come later are served."""
    start, failed = threading.Thread.start, threading.Event()

    def fail_once(thread: threading.Thread) -> None:
        if thread.name.startswith("peer-from-") and not failed.is_set():
            failed.set()
            raise RuntimeError("can't start new thread")
        start(thread)

    _, inbox = _control(rig.links[A])
    rig.stop(B)
    rig.stop(C)
    monkeypatch.setattr(threading.Thread, "start", fail_once)
    assert _hung_up_on(rig.ports[A], None, b"")
    assert rig.links[A].refused["no thread"] == 1
    rig.start(B)
    theirs, _ = _control(rig.links[B])
    _until_heard(theirs, A, inbox, B)
    theirs.close()


def test_certificates_that_cannot_be_used_are_a_configuration_error(tmp_path: Path) -> None:
    """A missing file is named at start, before anything listens for brokers."""
    files = files_of(tmp_path, "a")
    tls = TlsFiles(ca_file=files.ca_file, cert_file=files.cert_file, key_file=files.key_file)
    with (
        socket.create_server(("127.0.0.1", 0)) as listener,
        pytest.raises(InvalidConfigError, match=r"a\.crt"),
    ):
        PeerLink(cluster="c", me=A, listener=listener, peers={}, tls=tls)


def test_a_new_certificate_is_shown_to_the_next_connection(rig: PeerRig, tmp_path: Path) -> None:
    """Its files are taken while the link runs; the connections that are open go on."""
    files, link = rig.tls(B), rig.links[B]
    door = DoorCertificates("peers", files, link.contexts, member=member_uri(CLUSTER, B))
    for path in (files.cert_file, files.key_file):
        path.unlink()
    make_certificates(tmp_path / "certificates", cluster=CLUSTER, brokers=[B])
    door.look(0, at_once=True)
    with (
        socket.create_connection(("127.0.0.1", rig.ports[B]), timeout=TIMEOUT_S) as raw,
        _context(rig, rig.tls(A)).wrap_socket(raw) as secured,
    ):
        shown = secured.getpeercert(binary_form=True)
    assert shown == ssl.PEM_cert_to_DER_cert(files.cert_file.read_text())


def test_a_revoked_broker_is_cut_off_and_stays_out(rig: PeerRig) -> None:
    """Its open connection ends when the new list is taken, and its next ones are refused."""
    cert, key = (rig.folder / "ca.crt").read_bytes(), (rig.folder / "ca.key").read_bytes()
    (rig.folder / "revoked.crl").write_bytes(revocations(cert, key))
    rig.stop(A)
    rig.start(A)
    link, tls = rig.links[A], rig.tls(A)
    member = member_uri(CLUSTER, A)
    door = DoorCertificates("peers", tls, link.contexts, member=member, on_revoked=link.end_revoked)
    transport, inbox = _control(link)
    theirs, _ = _control(rig.links[B])
    _until_heard(theirs, A, inbox, B)
    assert B in link.callers()
    revoked = rig.tls(B).cert_file.read_bytes()
    (rig.folder / "revoked.crl").write_bytes(revocations(cert, key, [revoked]))
    refused = link.refused["tls"]
    door.look(time.time_ns() // 1000, at_once=True)
    deadline = time.monotonic() + TIMEOUT_S
    while B in link.callers() or B in link.connected() or link.refused["tls"] == refused:
        assert time.monotonic() < deadline
        time.sleep(0.01)
    assert link.refused["revoked"] >= 1
    others, _ = _control(rig.links[C])
    _until_heard(others, A, inbox, C)
    for one in (transport, theirs, others):
        one.close()


def test_a_lane_that_was_closed_leaves_the_others_open(rig: PeerRig) -> None:
    """Lanes are closed one by one at shutdown; the link goes last."""
    transport, inbox = _control(rig.links[A])
    theirs, _ = _control(rig.links[B])
    rig.transports[A].close()
    assert isinstance(rig.transports[A], PeerReplicaTransport)
    rig.transports[B].send(A, address(), fetch(1))
    _until_heard(theirs, A, inbox, B)
    assert rig.inboxes[A].empty()
    transport.close()
    theirs.close()


def test_messages_of_many_threads_all_arrive_each_threads_in_order(rig: PeerRig) -> None:
    """Small ones are written by the sending thread, large ones by another; no thread waits."""
    transport, inbox = _control(rig.links[A])
    theirs, _ = _control(rig.links[B])
    _until_heard(theirs, A, inbox, B)
    threads_count, count = 6, 400

    def send_all(number: int) -> None:
        for at in range(count):
            message = fetch(at) if at % 50 else answer(at, (stored(0, bytes(20_000)),))
            rig.transports[B].send(A, address(number), message)

    threads = [threading.Thread(target=send_all, args=(n,)) for n in range(threads_count)]
    for thread in threads:
        thread.start()
    seen: dict[int, list[int]] = {number: [] for number in range(threads_count)}
    for _ in range(threads_count * count):
        _, partition, message = rig.inboxes[A].get(timeout=TIMEOUT_S)
        assert isinstance(message, FetchRequest | FetchAnswer)
        seen[partition.number].append(message.request_id)
    for thread in threads:
        thread.join()
    assert seen == {number: list(range(count)) for number in range(threads_count)}
    transport.close()
    theirs.close()


# The planted bug is the unhandled exception.
@pytest.mark.filterwarnings("ignore::pytest.PytestUnhandledThreadExceptionWarning")
def test_a_bug_in_whoever_is_delivered_to_reaches_the_owner(tmp_path: Path) -> None:
    """A broker whose delivering thread has ended would receive no messages, so it must end."""
    crashes: queue.Queue[BaseException] = queue.Queue()
    files = make_certificates(tmp_path, cluster=CLUSTER, brokers=[A])[A]
    link = PeerLink(
        cluster=CLUSTER,
        me=A,
        listener=socket.create_server(("127.0.0.1", 0)),
        peers={},
        tls=TlsFiles(ca_file=files.ca_file, cert_file=files.cert_file, key_file=files.key_file),
        on_crash=crashes.put,
    )
    transport = PeerControlTransport(link)

    def deliver(sender: BrokerId, message: ControlMessage) -> None:
        raise OSError(f"{sender} {message}")

    transport.start(deliver)
    transport.send(A, _beat(1))
    assert isinstance(crashes.get(timeout=TIMEOUT_S), OSError)
    with pytest.raises(OSError, match="b"):
        link.lane(LaneKind.CONTROL).take(B, memoryview(encode_control(_beat(1))))
    assert isinstance(crashes.get(timeout=TIMEOUT_S), OSError)
    transport.close()
    link.close()
