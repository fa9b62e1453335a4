"""Bytes that nobody should send, thrown at whatever a process listens on.

What is thrown: noise, lengths that nobody can mean, TLS that begins well, HTTP and HTTP/2 that go
wrong, honest traffic cut short or damaged, pickles that leave a mark where they are loaded. What a
port answers is not looked at here; whether the process lives on and serves is the caller's to ask.
"""

from __future__ import annotations

import contextlib
import io
import os
import pickle
import pickletools
import random
import socket
import ssl
import struct
import threading
from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Final

import psutil

LOOPBACK: Final = "127.0.0.1"
PREFACE: Final = b"PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n"
_PATIENCE_S: Final = 1.0  # for what a port answers, if it answers at all
_AT_ONCE: Final = 6

# ---------------------------------------------------------------------------- where


def listening(pid: int) -> set[int]:
    """Return every port that a process or a child of it listens on; anything but TCP fails."""
    process = psutil.Process(pid)
    ports: set[int] = set()
    for one in (process, *process.children(recursive=True)):
        for link in one.net_connections("all"):
            if link.family == socket.AF_UNIX:
                assert not link.laddr, f"a socket in the file system: {link}"
            elif link.status == psutil.CONN_LISTEN:
                ports.add(link.laddr.port)
            else:
                assert link.type == socket.SOCK_STREAM, f"neither TCP nor a file: {link}"
    return ports


# ---------------------------------------------------------------------------- pickles


class _Marks:
    """Pickles to a call that makes a folder."""

    def __init__(self, mark: Path) -> None:
        self._mark = str(mark)

    def __reduce__(self) -> tuple[Any, ...]:
        return (os.mkdir, (self._mark,))


@dataclass(frozen=True, slots=True)
class Pickles:
    """Pickles of every protocol; a process that loads one of them makes ``mark``."""

    mark: Path

    @property
    def payloads(self) -> list[bytes]:
        """The pickles, bare and behind their length in the usual ways."""
        bare = [
            pickle.dumps(_Marks(self.mark), number) for number in range(pickle.HIGHEST_PROTOCOL + 1)
        ]
        assert all("mkdir" in _dis(one) for one in bare)
        return [
            framed
            for one in bare
            for framed in (
                one,
                struct.pack("<I", len(one)) + one,
                struct.pack(">I", len(one)) + one,
            )
        ]


def load(payload: bytes) -> None:
    """Do what nobody should, to show what would happen."""
    pickle.loads(payload)


def _dis(payload: bytes) -> str:
    out = io.StringIO()
    pickletools.dis(payload, out)
    return out.getvalue()


# ---------------------------------------------------------------------------- what


def damaged(chance: random.Random, data: bytes) -> bytes:
    """Return honest bytes cut short, with bits flipped, a huge number in them, or more behind."""
    found = bytearray(data)
    match chance.randrange(4):
        case 0:
            del found[chance.randrange(len(found)) :]
        case 1:
            for _ in range(chance.randint(1, 8)):
                found[chance.randrange(len(found))] ^= 1 << chance.randrange(8)
        case 2:
            at = chance.randrange(len(found))
            found[at : at + chance.choice((2, 4, 8))] = b"\xff" * 8
        case _:
            found += chance.randbytes(chance.randint(1, 200))
    return bytes(found)


def _frame(kind: int, flags: int, stream: int, payload: bytes, length: int | None = None) -> bytes:
    size = len(payload) if length is None else length
    return struct.pack(">I", size)[1:] + struct.pack(">BBI", kind, flags, stream) + payload


def _http2(chance: random.Random) -> Iterator[bytes]:
    """Yield beginnings of gRPC that go wrong behind the preface."""
    settings = _frame(4, 0, 0, b"")
    noise = chance.randbytes(3000)
    for rest in (
        noise,
        settings + noise,
        settings + _frame(1, 4, 1, noise[:500]),  # headers that are none
        settings + _frame(1, 0, 1, b"") + _frame(9, 0, 1, noise[:100]) * 200,  # without end
        settings + _frame(0, 0, 1, b"\0\xff\xff\xff\xff" + noise),  # a message of 4 GiB
        settings + _frame(0, 0, 1, noise, length=0xFFFFFF),
        settings + _frame(4, 0, 0, struct.pack(">HI", 4, 0xFFFFFFFF)),
        settings + _frame(6, 0, 0, bytes(8)) * 2000,
        settings + _frame(8, 0, 0, struct.pack(">I", 0x7FFFFFFF)) * 3,
    ):
        yield PREFACE + rest


def _http(chance: random.Random) -> Iterator[bytes]:
    noise = chance.randbytes(2000)
    yield b"GET " + b"/" * 100_000
    yield b"GET /metrics HTTP/1.1\r\n" + b"X: y\r\n" * 5000 + b"\r\n"
    yield b"POST /metrics HTTP/1.1\r\nContent-Length: 99999999999999999999\r\n\r\n" + noise
    yield b"POST / HTTP/1.1\r\nTransfer-Encoding: chunked\r\n\r\nffffffffffffffff\r\n" + noise
    yield b"GET /healthz HTTP/9.9\r\nHost: " + noise + b"\r\n\r\n"
    yield noise + b"\r\n\r\n"


def tls_hello() -> bytes:
    """Return what an honest TLS client says first."""
    context = ssl.create_default_context()
    incoming, outgoing = ssl.MemoryBIO(), ssl.MemoryBIO()
    talk = context.wrap_bio(incoming, outgoing, server_hostname="localhost")
    with contextlib.suppress(ssl.SSLWantReadError):
        talk.do_handshake()
    return outgoing.read()


def strangers_bytes(
    chance: random.Random, honest: Sequence[bytes], pickles: Pickles
) -> list[list[bytes]]:
    """Return what to throw at a port: each is sent in parts, with a look at answers in between."""
    huge = [b"\xff" * 4, b"\xff" * 8, b"\x7f" + b"\xff" * 7, struct.pack("<Q", 1 << 40)]
    hello = tls_hello()
    throws: list[list[bytes]] = [[b""]]
    throws += [[chance.randbytes(chance.choice((1, 7, 90, 3000, 200_000)))] for _ in range(15)]
    throws += [[one + chance.randbytes(500)] for one in huge]
    throws += [[hello, chance.randbytes(2000)], [hello[:-7]], [hello + chance.randbytes(300)]]
    throws += [[hello, b"\x17\x03\x03\xff\xff" + chance.randbytes(600)]]
    throws += [[one] for one in (*_http(chance), *_http2(chance), *pickles.payloads)]
    throws += [[PREFACE, one] for one in pickles.payloads[:3]]
    throws += [[damaged(chance, chance.choice(honest))] for _ in range(40 if honest else 0)]
    return throws


# ---------------------------------------------------------------------------- how


def throw(port: int, parts: Sequence[bytes], context: ssl.SSLContext | None = None) -> bytes:
    """Send the parts to a port and hang up; return what came back, at most 64 KiB of it."""
    heard = b""
    with (
        contextlib.suppress(OSError),
        socket.create_connection((LOOPBACK, port), 10) as plain,
        context.wrap_socket(plain) if context else contextlib.nullcontext(plain) as link,
    ):
        for number, part in enumerate(parts):
            if number:
                link.settimeout(_PATIENCE_S)
                heard += link.recv(1 << 16)
            link.settimeout(10)
            link.sendall(part)
        link.settimeout(_PATIENCE_S)
        with contextlib.suppress(OSError):
            link.shutdown(socket.SHUT_WR)
        while len(heard) < 1 << 16 and (more := link.recv(1 << 16)):
            heard += more
    return heard


def throw_all(
    port: int, throws: Sequence[Sequence[bytes]], context: ssl.SSLContext | None = None
) -> None:
    """Send each of them over a connection of its own, a few at once."""
    with ThreadPoolExecutor(_AT_ONCE) as pool:
        list(pool.map(lambda parts: throw(port, parts, context), throws))


# ---------------------------------------------------------------------------- honest traffic


@dataclass(slots=True)
class Recorder:
    """A proxy in front of a port that keeps what clients send, one entry a connection."""

    target: int
    sent: list[bytearray] = field(default_factory=list)
    _listener: socket.socket = field(init=False)
    _threads: list[threading.Thread] = field(init=False, default_factory=list)
    _links: list[socket.socket] = field(init=False, default_factory=list)

    def __post_init__(self) -> None:
        self._listener = socket.create_server((LOOPBACK, 0))
        self._run(self._accept)

    @property
    def port(self) -> int:
        """Where clients connect."""
        return int(self._listener.getsockname()[1])

    def close(self) -> None:
        """Accept no more connections; accepted ones end with their clients."""
        with contextlib.suppress(OSError):
            self._listener.shutdown(socket.SHUT_RDWR)
        self._listener.close()
        for thread in self._threads:
            thread.join(10)
        for one in self._links:
            one.close()

    def _run(self, target: Callable[..., None], *args: object) -> None:
        thread = threading.Thread(target=target, args=args, name="recorder", daemon=True)
        self._threads.append(thread)
        thread.start()

    def _accept(self) -> None:
        while True:
            try:
                client, _ = self._listener.accept()
            except OSError:
                return
            server = socket.create_connection((LOOPBACK, self.target))
            self._links += (client, server)
            kept = bytearray()
            self.sent.append(kept)
            self._run(_pump, client, server, kept)
            self._run(_pump, server, client, bytearray())


def _pump(source: socket.socket, sink: socket.socket, kept: bytearray) -> None:
    with contextlib.suppress(OSError):
        while data := source.recv(1 << 16):
            kept += data
            sink.sendall(data)
    for one in (source, sink):
        with contextlib.suppress(OSError):
            one.shutdown(socket.SHUT_RDWR)
