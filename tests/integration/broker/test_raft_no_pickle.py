"""No pickle is reachable from a member's socket or files, and no bytes bring a member down.

Groups of three over mutual TLS, with our own Raft and with pysyncobj and its corrections.
"""

from __future__ import annotations

import contextlib
import random
import socket
import ssl
import struct
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any, NoReturn

import pysyncobj.journal
import pysyncobj.pickle
import pytest

from broker.codec.peer.raft_messages import decode, encode
from broker.core.metadata.commands import RegisterBroker
from broker.errors import EnvelopeError
from broker.model.ids import BrokerId
from broker.model.raft import NodeId
from broker.model.raft_messages import AppendReply, Chunk, Forward, Message, ReadIndexRequest, Vote
from simkit.raft.groups import CORES, RaftGroup
from simkit.raft.rig import append, entries, proposal, snapshot_of

pytestmark = pytest.mark.integration

REGISTER = RegisterBroker(broker=BrokerId("b1"))
THROWS = 40


@pytest.fixture(params=CORES)
def group(request: pytest.FixtureRequest, tmp_path: Path) -> Iterator[RaftGroup]:
    """Return a running group of three that makes snapshots all the time."""
    core = CORES[request.param]
    found = RaftGroup(tmp_path, size=3, journal_bytes_max=2000, keep_entries=5, core=core)
    yield found
    found.close()


def _register(group: RaftGroup, count: int) -> int:
    """Register this many times through all members in turn; return the newest epoch."""
    members = list(group.running.values())
    epoch = 0
    for number in range(count):
        reply = members[number % len(members)].propose(REGISTER, timeout_ms=30_000)
        epoch = int(reply["broker_epoch"])
    return epoch


# ---------------------------------------------------------------------------- pickle


class UnpickledError(BaseException):
    """A pickle was loaded; not an Exception, so that no handler swallows it."""


@pytest.fixture
def loads() -> Iterator[list[str]]:
    """Make every way to load a pickle raise, and note who tried."""
    tried: list[str] = []
    with pytest.MonkeyPatch.context() as patch:
        for module in (sys.modules["pickle"], sys.modules["_pickle"], pysyncobj.pickle):
            for name in ("load", "loads", "_load", "_loads", "Unpickler", "_Unpickler"):
                if hasattr(module, name):
                    patch.setattr(module, name, _refusal(f"{module.__name__}.{name}", tried))
        patch.setattr(pysyncobj.journal, "loads", _refusal("pysyncobj.journal.loads", tried))
        yield tried


def _refusal(name: str, tried: list[str]) -> Any:
    def refuse(*_: Any, **__: Any) -> NoReturn:
        tried.append(name)
        raise UnpickledError(name)

    return refuse


def test_the_trap_works(loads: list[str]) -> None:
    """The trap of the next test works: the library's ways to load a pickle raise."""
    for load in (pysyncobj.pickle.loads, pysyncobj.journal.loads, sys.modules["pickle"].loads):
        with pytest.raises(UnpickledError):
            load(b"N.")
    assert len(loads) == 3


def test_a_group_lives_without_loading_a_pickle(loads: list[str], group: RaftGroup) -> None:
    """Elections, commits, snapshots to disk and over the wire, restarts: nothing is unpickled."""
    assert _register(group, 60) == 60
    away = next(name for name in group.names if name != group.leader())
    group.stop(away)
    assert _register(group, 60) == 120
    back = group.start(away)
    back.barrier(timeout_ms=30_000)
    assert back.state.broker_epochs == {"b1": 120}, "it came over as a snapshot"
    group.stop(group.leader())
    assert _register(group, 10) == 130
    for name in set(group.names) - set(group.running):
        group.start(name)
    group.restart()
    for member in group.running.values():
        member.barrier(timeout_ms=30_000)
        assert member.state.broker_epochs == {"b1": 130}
    assert _register(group, 3) == 133
    assert loads == []


# ---------------------------------------------------------------------------- bytes


def _malformed(rng: random.Random) -> bytes:
    """Return bytes that are no message, most of them nearly one."""
    theirs = snapshot_of(9, 1)
    messages: list[Message] = [
        Vote(1, 5, 1, transfer=False),
        append(1, (0, 0), entries(1, 4, 1)),
        AppendReply(1, True, 5, 0, 0, 1),
        Chunk(1, theirs.id, 0, 1, theirs.data),
        Forward(1, proposal(1)),
        ReadIndexRequest(1, 7),
    ]
    while True:
        data = bytearray(encode(rng.choice(messages)))
        match rng.randrange(5):
            case 0:
                data = bytearray(rng.randbytes(rng.randrange(1, 300)))
            case 1:
                del data[rng.randrange(len(data)) :]
            case 2:
                data += rng.randbytes(rng.randrange(1, 50))
            case 3:
                data[rng.randrange(2)] ^= 1 << rng.randrange(8)
            case _:  # a length or a count somewhere becomes huge
                at = rng.randrange(len(data))
                data[at : at + 8] = b"\xff" * 8
        try:
            decode(bytes(data))
        except EnvelopeError:
            return bytes(data)


def _throw(port: int, data: bytes, context: ssl.SSLContext | None) -> None:
    """Send bytes and wait until the member hangs up."""
    with (
        contextlib.suppress(OSError),
        socket.create_connection(("127.0.0.1", port), 10) as plain,
        context.wrap_socket(plain) if context else contextlib.nullcontext(plain) as connection,
    ):
        connection.sendall(data)
        with contextlib.suppress(OSError):
            connection.shutdown(socket.SHUT_WR)
        while connection.recv(1000):
            pass


def _as_member(group: RaftGroup, name: NodeId) -> ssl.SSLContext:
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_CLIENT)
    context.check_hostname = False
    tls = group.tls(name)
    context.load_verify_locations(tls.ca_file)
    context.load_cert_chain(tls.cert_file, tls.key_file)
    return context


def test_no_bytes_bring_a_member_down(group: RaftGroup) -> None:
    """Noise, half handshakes, and damaged messages with a member's certificate.

    A well-formed message of a member with a certificate is trusted; that is the fault model.
    """
    rng = random.Random(5)
    assert _register(group, 3) == 3
    for _ in range(THROWS):
        target, other, *_ = rng.sample(group.names, 3)
        port = group.port(target)
        _throw(port, rng.randbytes(rng.randrange(1, 2000)), None)
        _throw(port, b"\x16\x03\x01\x02\x00\x01\x00" + rng.randbytes(600), None)
        body = _malformed(rng)
        frames = [
            struct.pack("<I", len(body)) + body,
            struct.pack("<I", rng.choice((0, 1 << 20, 1 << 31, (1 << 32) - 1))) + body,
        ]
        _throw(port, rng.choice(frames), _as_member(group, other))
    assert _register(group, 6) == 9
    assert sum(one.refused["malformed"] for one in group.transports.values()) > THROWS // 4
    assert group.crashes == []
