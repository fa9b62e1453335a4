"""What strangers do at the doors of a broker: attacks of one try, and stories of some seconds."""

from __future__ import annotations

import contextlib
import random
import re
import socket
import struct
import time
from collections import Counter
from collections.abc import Callable, Iterator, Sequence
from functools import cache
from pathlib import Path
from typing import Any, Final

import grpc
import pyarrow as pa
from pyarrow import flight

from broker.codec.flight.actions import ACTIONS
from broker.codec.flight.protocol import ReadRequest
from broker.codec.peer.frames import LaneKind, encode_frame_header
from broker.model.offsets import Offset
from clusterkit.hostile import LOOPBACK, Pickles, strangers_bytes, throw, tls_hello
from fuzzkit.doors.flight_bytes import action_message, flight_data, put_descriptor
from fuzzkit.doors.stage import ATTACKED, Doors
from fuzzkit.mutation import mutated
from fuzzkit.registry import decoders
from simkit.brokers.memory_broker import numbered
from simkit.servers.natsproc import RawNats

Attack = Callable[[Doors, random.Random], object]
_CALL_S: Final = 2.0
_REASON_MAX: Final = 120  # characters
_REFUSALS: Final = (
    OSError, flight.FlightError, pa.ArrowException, grpc.RpcError, AssertionError, ValueError,
    StopIteration,
)  # fmt: skip
# Actions whose success would take the witness's broker away, or fill the disk with streams.
_LEFT_OUT: Final = ("create_stream", "remove_broker", "change_controller")
_LIFTBRIDGE: Final = re.compile(r"liftbridge_(?!CreateStream)[A-Z]\w+Request")
_HTTP: Final = (
    b"GET /metrics HTTP/1.1\r\nHost: x\r\nAuthorization: Bearer hw_x\r\n\r\n",
    b"GET /readyz HTTP/1.1\r\nHost: x\r\nConnection: keep-alive\r\n\r\n",
    b"HEAD /healthz HTTP/1.0\r\n\r\n",
)
_RECORDS: Final = (  # of TLS: an alert, a handshake as long as may be, data that nobody can read
    b"\x15\x03\x03\x00\x02\x02\x28",
    b"\x16\x03\x01\x40\x00\x01\xff\xff\xff" + bytes(200),
    b"\x17\x03\x03\xff\xff" + bytes(200),
    b"\x80\x2e\x01\x00\x02" + bytes(44),  # of SSL 2
)
_LANES: Final = {
    "raft_messages": LaneKind.RAFT,
    "control_messages": LaneKind.CONTROL,
    "replica_messages": LaneKind.REPLICA,
    "forwarded_writes": LaneKind.WRITES,
}


@cache
def hello() -> bytes:
    """Return what an honest client of TLS says first."""
    return tls_hello()


def seeds_of(name: str) -> Sequence[bytes]:
    """Return the valid bytes of a decoder."""
    return decoders()[name].seeds


# ------------------------------------------------------------------------------------- attacks


def talk(doors: Doors, draw: random.Random) -> None:
    """Say to Flight what an honest client says, with changes."""
    whole = mutated(draw, doors.honest)
    at = draw.randrange(len(whole) + 1)
    throw(doors.flight, [whole[:at], whole[at:]], doors.context(draw))


def noise(doors: Doors, draw: random.Random) -> None:
    """Say to any door what belongs to another one, or to none."""
    said = strangers_bytes(draw, doors.honest, Pickles(_nowhere()))
    throw(draw.choice(list(doors.ports.values())), draw.choice(said), doors.context(draw))


@cache
def _nowhere() -> Path:
    return Path("/nonexistent/mark")  # a loaded pickle could not make it; the tests watch for that


def ticket(doors: Doors, draw: random.Random) -> None:
    """Read by a changed ticket."""
    with doors.flight_client() as client:
        options = doors.options(draw, _CALL_S)
        asked = flight.Ticket(mutated(draw, seeds_of("flight_ticket")))
        reader = client.do_get(asked, options)
        for _ in range(3):
            reader.read_chunk()


def action(doors: Doors, draw: random.Random) -> None:
    """Ask for an action with a changed body."""
    name = draw.choice([one for one in ACTIONS if one not in _LEFT_OUT])
    body = mutated(draw, seeds_of(f"action_{name}"))
    with doors.flight_client() as client:
        options = doors.options(draw, _CALL_S)
        list(client.do_action(flight.Action(name, body), options))


def put(doors: Doors, draw: random.Random) -> None:
    """Publish Arrow messages of which one is changed, below Flight or in Flight's own fields."""
    batch = numbered(0, 50)
    schema, rows = batch.schema.serialize().to_pybytes(), batch.serialize().to_pybytes()
    names = put_descriptor(ATTACKED, "0")
    messages = [flight_data(schema, descriptor=names), flight_data(rows), flight_data(rows)]
    victim = draw.randrange(3)
    if draw.random() < 0.8:
        source = (schema, rows, rows)[victim]
        changed = source[:8] + mutated(draw, [source[8:]])
        messages[victim] = flight_data(changed, descriptor=b"" if victim else names)
    else:
        messages[victim] = mutated(draw, [messages[victim]])
    with doors.channel(doors.flight) as channel:
        call: Any = channel.stream_stream("/arrow.flight.protocol.FlightService/DoPut")
        for _ in call(iter(messages), timeout=_CALL_S, metadata=doors.shown(draw)):
            pass


def liftbridge_call(doors: Doors, draw: random.Random) -> None:
    """Make a call of Liftbridge's API with a changed request."""
    name = draw.choice([one for one in decoders() if _LIFTBRIDGE.fullmatch(one)])
    call = name.removeprefix("liftbridge_").removesuffix("Request")
    with doors.channel(doors.liftbridge) as channel:
        made: Any = channel.unary_unary(f"/proto.API/{call}")
        made(mutated(draw, seeds_of(name)), timeout=_CALL_S, metadata=doors.shown(draw))


def liftbridge_talk(doors: Doors, draw: random.Random) -> None:
    """Say to Liftbridge's port what an honest client says, with changes."""
    throw(doors.liftbridge, [mutated(draw, seeds_of("liftbridge_http2"))], doors.context(draw))


def http(doors: Doors, draw: random.Random) -> None:
    """Send a changed request of HTTP."""
    shown = "".join(f"{name}: {value}\r\n" for name, value in doors.shown(draw)).encode()
    asked = b"GET /metrics HTTP/1.1\r\nHost: x\r\n" + shown + b"\r\n"
    said = asked if draw.random() < 0.3 else mutated(draw, (*_HTTP, asked))
    throw(doors.http, [said], doors.context(draw))


def handshake(doors: Doors, draw: random.Random) -> None:
    """Begin TLS at any door, and go wrong: in the first record, or after it."""
    first = hello() if draw.random() < 0.5 else mutated(draw, [hello(), *_RECORDS])
    said = [first] if draw.random() < 0.5 else [first, mutated(draw, [*_RECORDS, hello()])]
    throw(draw.choice(list(doors.ports.values())), said)


def peer(doors: Doors, draw: random.Random) -> None:
    """Send changed messages as another broker, in good frames, and frames that are changed."""
    room = draw.choice(list(_LANES))
    data = mutated(draw, seeds_of(room)) or b"x"
    frame = encode_frame_header(_LANES[room], len(data), len(data)) + data
    said = frame if draw.random() < 0.7 else mutated(draw, seeds_of("peer_frames"))
    throw(doors.peer, [said], doors.member if draw.random() < 0.8 else None)


def nats_messages(doors: Doors, draw: random.Random) -> None:
    """Publish changed envelopes and header blocks on the stream's subject."""
    with RawNats(doors.nats.port, timeout_s=_CALL_S) as raw:
        for _ in range(20):
            block = mutated(draw, seeds_of("nats_headers")) if draw.random() < 0.5 else b""
            payload = mutated(draw, seeds_of("nats_record"))
            reply = draw.choice(("", "_INBOX.nobody", ATTACKED, "x" * 300))
            raw.publish(ATTACKED, payload[:100_000], reply=reply, headers=block)
        raw.flush()


ATTACKS: Final[tuple[Attack, ...]] = (
    talk, noise, ticket, action, put, liftbridge_call, liftbridge_talk, http, peer, nats_messages,
    handshake,
)  # fmt: skip


def attack(doors: Doors, one: Attack, draw: random.Random) -> None:
    """Make one try; what a stranger gets for it does not matter."""
    with contextlib.suppress(*_REFUSALS):
        one(doors, draw)


# ------------------------------------------------------------------------------------- stories


def slow_readers(doors: Doors, seconds: float) -> str:
    """Begin reads that never end, and read nothing of them."""
    asked = ReadRequest(stream=ATTACKED, partition=0, start=Offset(0), follow=True).to_ticket()
    with contextlib.ExitStack() as stack:
        clients = [stack.enter_context(doors.flight_client()) for _ in range(10)]
        options = doors.options(None, 2 * seconds)
        held: list[Any] = []
        refused: Counter[str] = Counter()
        until_s = time.monotonic() + seconds
        for client in clients * 5:
            if time.monotonic() > until_s:
                break
            try:
                held.append(client.do_get(flight.Ticket(asked), options))
            except _REFUSALS as error:
                refused[_reason(error)] += 1
        time.sleep(seconds)
        for one in held:
            with contextlib.suppress(*_REFUSALS):
                one.cancel()
    return f"{len(held)} reads{_told(refused)}"


def slow_writers(doors: Doors, seconds: float) -> str:
    """Say what an honest client says, a byte at a time."""
    said = {doors.flight: doors.honest[0], doors.liftbridge: seeds_of("liftbridge_http2")[0],
            doors.http: _HTTP[0], doors.peer: hello()}  # fmt: skip
    if doors.guard is not None:
        said = dict.fromkeys(said, hello())
    with connected([port for port in said for _ in range(15)]) as links:
        until_s, at = time.monotonic() + seconds, 0
        while time.monotonic() < until_s:
            for link in links:
                with contextlib.suppress(OSError):
                    data = said[link.getpeername()[1]]
                    link.send(data[at % len(data) : at % len(data) + 1])
            at += 1
            time.sleep(0.05)
    return f"{len(links)} writers of {at} bytes"


def half_open(doors: Doors, seconds: float) -> str:
    """Begin honestly, then fall silent; some end by a reset, the others never."""
    with connected(list(doors.ports.values()) * 50) as links:
        for number, link in enumerate(links):
            with contextlib.suppress(OSError):
                link.send(doors.honest[0][:200])
                if number % 2:
                    link.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, struct.pack("ii", 1, 0))
                    link.close()
        time.sleep(seconds)
    return f"{len(links)} connections"


def half_handshakes(doors: Doors, seconds: float) -> str:
    """Say hello by TLS at every door, hear the answer, and never go on."""
    with connected([doors.flight] * 2000 + list(doors.ports.values()) * 400) as links:
        for link in links:
            with contextlib.suppress(OSError):
                link.send(hello())
        time.sleep(seconds)
        open_count = sum(map(_is_open, links))
    return f"{len(links)} handshakes, {open_count} still open after {seconds:.0f} s"


def floods(doors: Doors, seconds: float) -> str:
    """Connect and hang up as fast as possible, at every door; some say hello by TLS."""
    until_s, count = time.monotonic() + seconds, 0
    while time.monotonic() < until_s:
        with connected(list(doors.ports.values()) * 25) as links:
            count += len(links)
            for link in links[::3]:
                with contextlib.suppress(OSError):
                    link.send(hello())
    return f"{count} connections"


def idle(doors: Doors, seconds: float, *, count: int = 10_000) -> str:
    """Hold as many connections as there may be, and say nothing in any of them."""
    few = [doors.liftbridge, doors.http, doors.peer] * 100  # these doors keep few connections
    with connected([doors.flight] * (count - len(few)) + few) as links:
        time.sleep(seconds)
        open_count = sum(map(_is_open, links))
    return f"{len(links)} connections, {open_count} still open after {seconds:.0f} s"


def _is_open(link: socket.socket) -> bool:
    link.setblocking(False)
    try:
        while link.recv(64 * 1024):
            pass
    except BlockingIOError:
        return True
    except OSError:
        return False
    return False


def calls_at_once(doors: Doors, seconds: float, *, count: int = 2_000) -> str:
    """Make thousands of calls at once in one connection, again and again, and wait for all."""
    name = "high_watermarks"
    body, until_s = seeds_of(f"action_{name}")[0], time.monotonic() + seconds
    answered, refused = 0, Counter[str]()
    with doors.channel(doors.flight) as channel:
        while time.monotonic() < until_s:
            answered += actions_at_once(
                channel, name, body, count=count, timeout_s=4 * seconds, shown=doors.shown(None),
                refused=refused,
            )  # fmt: skip
    return f"{answered} calls answered{_told(refused)}"


def actions_at_once(
    channel: grpc.Channel,
    name: str,
    body: bytes,
    *,
    count: int,
    timeout_s: float,
    shown: Sequence[tuple[str, str]] = (),
    refused: Counter[str] | None = None,
) -> int:
    """Ask for an action of Flight many times at once; return how many were answered.

    ``refused`` counts the reasons of the others.
    """
    call: Any = channel.unary_stream("/arrow.flight.protocol.FlightService/DoAction")
    asked, answered = action_message(name, body), 0
    for one in [call(asked, timeout=timeout_s, metadata=shown) for _ in range(count)]:
        try:
            answered += bool(list(one))
        except grpc.RpcError as error:
            if refused is not None:
                refused[_reason(error)] += 1
    return answered


def _reason(error: BaseException) -> str:
    """Return what an error says, and its class or status code, without the rest of the text."""
    if isinstance(error, grpc.Call):
        return f"{error.code().name}: {error.details()}"[:_REASON_MAX]
    return f"{type(error).__name__}: {error}"[:_REASON_MAX]


def _told(refused: Counter[str]) -> str:
    """Return the end of a story's line: how many were refused, and the commonest reasons."""
    reasons = "; ".join(f"{count} times {reason}" for reason, count in refused.most_common(3))
    return f", {refused.total()} refused" + (f" ({reasons})" if reasons else "")


STORIES: Final = (
    slow_readers, slow_writers, half_open, half_handshakes, floods, idle, calls_at_once,
)  # fmt: skip


@contextlib.contextmanager
def connected(ports: Sequence[int]) -> Iterator[list[socket.socket]]:
    """Hold a connection to each port, as far as the broker lets strangers in."""
    links: list[socket.socket] = []
    try:
        for port in ports:
            link = socket.socket()
            link.settimeout(2.0)
            try:
                link.connect((LOOPBACK, port))
            except OSError:
                link.close()
                continue
            links.append(link)
        yield links
    finally:
        for link in links:
            link.close()
