"""Noise on the wire: the service answers other clients as before, and stores none of it."""

from __future__ import annotations

import contextlib
import random
import socket
from collections.abc import Iterator
from typing import Any

import grpc
import pyarrow as pa
import pytest
from pyarrow import flight

from broker.adapters.flight.config import FlightServiceConfig
from broker.adapters.flight.service import FlightService
from broker.codec.record_batch import decode_body
from broker.errors import HeadwaterError, InvalidRequestError, from_wire
from fuzzkit.doors.flight_bytes import field, flight_data, put_descriptor
from headwater.client import Client
from simkit.brokers.memory_broker import MemoryBroker, numbered

PREFACE = b"PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n"
WAIT_S = 60


@pytest.fixture
def broker() -> Iterator[MemoryBroker]:
    """Give an empty broker."""
    broker = MemoryBroker()
    yield broker
    broker.close()


@pytest.fixture
def service(broker: MemoryBroker) -> Iterator[FlightService]:
    """Give a running service with a stream."""
    service = FlightService(broker, broker.clock, FlightServiceConfig(port=0))
    service.start()
    with Client(f"127.0.0.1:{service.port}") as client:
        client.create_stream("s")
    yield service
    assert service.close()


@pytest.fixture
def foreign(service: FlightService) -> Iterator[flight.FlightClient]:
    """Give a client that knows nothing of ours."""
    with flight.connect(f"grpc://127.0.0.1:{service.port}") as foreign:
        yield foreign


def check_serves(service: FlightService) -> None:
    """A well-behaved client writes and reads."""
    with Client(f"127.0.0.1:{service.port}") as client:
        before = client.describe("s").records_count
        with client.producer("s") as producer:
            producer.send([b"x"]).result(WAIT_S)
        assert sum(f.batch.num_rows for f in client.fetch("s")) == before + 1


def raised(error: BaseException) -> HeadwaterError | None:
    """Return our error inside a Flight error."""
    return from_wire(bytes(getattr(error, "extra_info", b"")).decode())


@pytest.mark.parametrize("seed", range(20))
def test_random_bytes_on_the_port(service: FlightService, seed: int) -> None:
    """The bytes come with and without the preface of HTTP/2, whole and cut short."""
    chance = random.Random(seed)
    noise = chance.randbytes(chance.choice([0, 1, 9, 100, 20_000]))
    start = chance.choice([b"", PREFACE, b"GET / HTTP/1.1\r\n\r\n", b"\x16\x03\x01"])
    line = socket.create_connection(("127.0.0.1", service.port), timeout=WAIT_S)
    with line, contextlib.suppress(OSError):
        line.sendall(start + noise)
        if chance.random() < 0.5:
            line.shutdown(socket.SHUT_WR)
            while line.recv(4096):
                pass
    check_serves(service)


@pytest.mark.parametrize("seed", range(20))
def test_random_tickets_and_bodies(foreign: flight.FlightClient, seed: int) -> None:
    """Every one of them is answered with our InvalidRequestError."""
    chance = random.Random(seed)
    noise = chance.randbytes(chance.choice([0, 1, 30, 70_000]))
    with pytest.raises(flight.FlightError) as ticket:
        foreign.do_get(flight.Ticket(noise)).read_all()
    assert isinstance(raised(ticket.value), InvalidRequestError)
    with pytest.raises(flight.FlightError) as body:
        list(foreign.do_action(flight.Action("cut", noise)))
    assert isinstance(raised(body.value), InvalidRequestError)


@pytest.mark.parametrize(
    "descriptor",
    [
        flight.FlightDescriptor.for_command(b"\x00noise"),
        flight.FlightDescriptor.for_path(),
        flight.FlightDescriptor.for_path(b"s" * 100_000),
        flight.FlightDescriptor.for_path(b"s", b"99999999999999999999"),
        flight.FlightDescriptor.for_path(*([b"s"] * 1_000)),
    ],
)
def test_descriptors_that_name_nothing(
    foreign: flight.FlightClient, descriptor: flight.FlightDescriptor
) -> None:
    """Infos and writes are refused by our error."""
    with pytest.raises(flight.FlightError) as info:
        foreign.get_flight_info(descriptor)
    assert isinstance(raised(info.value), InvalidRequestError)
    writer, reader = foreign.do_put(descriptor, numbered(0, 1).schema)
    assert reader.read() is None
    with pytest.raises(flight.FlightError) as put:
        writer.close()
    assert isinstance(raised(put.value), InvalidRequestError)


def test_a_wrong_schema_ends_the_stream_at_once(foreign: flight.FlightClient) -> None:
    """The producer gets the error before it has sent a batch."""
    schema = pa.schema([("value", pa.string())])
    writer, reader = foreign.do_put(flight.FlightDescriptor.for_path(b"s", b"0"), schema)
    assert reader.read() is None
    with pytest.raises(flight.FlightServerError, match="value"):
        writer.close()


def test_calls_that_are_not_offered(foreign: flight.FlightClient) -> None:
    """A do_exchange is refused without a traceback of ours."""
    writer, reader = foreign.do_exchange(flight.FlightDescriptor.for_path(b"s"))
    writer.done_writing()
    with pytest.raises(flight.FlightServerError, match="not offered") as refused:
        reader.read_all()
    assert "Traceback" not in str(refused.value)


def damaged(chance: random.Random, data: bytes) -> bytes:
    """Return the bytes with a few of them changed, cut or repeated."""
    out = bytearray(data)
    for _ in range(chance.randint(1, 6)):
        place = chance.randrange(len(out))
        match chance.randrange(4):
            case 0:
                out[place] = chance.randrange(256)
            case 1:
                out[place : place + 4] = chance.randbytes(4)
            case 2:
                del out[place : place + chance.randint(1, 16)]
            case _:
                out[place:place] = out[: chance.randint(1, 16)]
        out = out or bytearray(1)
    return bytes(out)


@pytest.mark.parametrize("seed", range(60))
def test_damaged_arrow_messages(service: FlightService, broker: MemoryBroker, seed: int) -> None:
    """Schemas and batches with changed bytes are stored whole, or refused; nothing crashes."""
    chance = random.Random(seed)
    batch = numbered(0, 50)
    descriptor = put_descriptor("s", "0")
    schema, rows = batch.schema.serialize().to_pybytes(), batch.serialize().to_pybytes()
    messages = [flight_data(schema, descriptor=descriptor), flight_data(rows), flight_data(rows)]
    victim = chance.randrange(3)
    if chance.random() < 0.8:  # below protobuf, in the Arrow message
        source = (schema, rows, rows)[victim]
        messages[victim] = flight_data(
            source[:8] + damaged(chance, source[8:]), descriptor=b"" if victim else descriptor
        )
    else:
        messages[victim] = damaged(chance, messages[victim])
    with grpc.insecure_channel(f"127.0.0.1:{service.port}") as channel:
        put: Any = channel.stream_stream("/arrow.flight.protocol.FlightService/DoPut")
        with contextlib.suppress(grpc.RpcError):
            for _ in put(iter(messages), timeout=WAIT_S):
                pass
    handle = broker.partitions.handle("s", 0)
    for stored in handle.read(handle.log_start, handle.high_watermark, bytes_max=1 << 30):
        decode_body(stored.header, stored.body).validate(full=True)
    check_serves(service)


def test_rows_before_their_schema_are_refused(service: FlightService) -> None:
    """It was a crash in the broker's log; `make fuzz` found it after 190,000 attacks."""
    rows = numbered(0, 5).serialize().to_pybytes()
    messages = [field(1, put_descriptor("s", "0")), flight_data(rows)]
    with grpc.insecure_channel(f"127.0.0.1:{service.port}") as channel:
        put: Any = channel.stream_stream("/arrow.flight.protocol.FlightService/DoPut")
        with pytest.raises(grpc.RpcError, match="the data of this do_put is not Arrow"):
            list(put(iter(messages), timeout=WAIT_S))
    check_serves(service)
