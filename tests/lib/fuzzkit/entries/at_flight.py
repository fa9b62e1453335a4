"""Decoders of what clients of Flight send: tickets, paths, bodies of actions, Arrow rows."""

from __future__ import annotations

import json
from collections.abc import Callable, Iterator
from contextlib import suppress
from typing import Any, Final

import pyarrow as pa

from broker.adapters.flight.served_put import check_subjects, put_path, validate
from broker.codec.flight import protocol
from broker.codec.flight.actions import ACTIONS, decode_body
from broker.codec.record_batch import Preparer
from broker.errors import HeadwaterError
from broker.model.ids import ProducerId
from broker.model.stream import StreamConfig
from fuzzkit.decoder import Decoder
from fuzzkit.entries.in_logs import UUID
from simkit.brokers.memory_broker import records

_POSITION: Final = {
    "stream_uuid": UUID, "partition": 0, "epoch": 1, "number": 1, "offset": 7, "leader_epoch": 1,
    "back": False, "release": True,
}  # fmt: skip
_RESET: Final = {"stream_uuid": UUID, "partition": 0, "offset": 7}
_GRANT: Final = {"principal": "ann", "kind": "stream", "pattern": "a*", "actions": ["consume"]}
# A field of an action gets the first of these values that its check accepts.
_VALUES: Final[tuple[Any, ...]] = (
    "s", UUID, "stream", "consume", True, 1, 1000, ["s"], [0], [_POSITION], [_RESET], [_GRANT],
    [["a" * 32, 7]], {"puback": True}, {"publish_bytes_per_s": 5},
)  # fmt: skip


def _value(check: Callable[[object], object], default: object) -> object:
    for value in _VALUES:
        with suppress(HeadwaterError):
            check(value)
            return value
    return default


def _body_of(action: str) -> bytes:
    spec = ACTIONS[action]
    values = {name: _value(check, spec.defaults.get(name)) for name, check in spec.fields.items()}
    return json.dumps(values).encode()


def _action(name: str) -> Decoder:
    """Return the entry of an action: its body."""
    return Decoder(
        name=f"action_{name}",
        covers=("broker.codec.flight.actions.decode_body",),
        decode=lambda data: decode_body(name, data),
        make_seeds=lambda: [_body_of(name)],
        raw_seeds=False,  # a new kind of field may need a value that is not in the table yet
    )


def _tickets() -> list[bytes]:
    return [
        protocol.ReadRequest(stream="s", partition=0).to_ticket(),
        protocol.ReadRequest(
            stream="s", partition=3, start=7, follow=True, columns=("offset", "value"),
            stream_uuid=UUID, leader_epoch=4,  # type: ignore[arg-type]  # plain numbers
        ).to_ticket(),
        protocol.ReadRequest(stream="s", partition=0, start=protocol.AtTime(5)).to_ticket(),
    ]  # fmt: skip


def _path(data: bytes) -> object:
    parts = data.split(b"/")
    for read in (protocol.StreamPath.from_path, put_path):
        read(parts)
    return protocol.StreamPath.from_path(parts, put=True)


def _put_rows(codec: str | None = None) -> bytes:
    rows = records([b"first", b"second", None], key=[b"k", None, b"k"], subject=["s", None, "s"])
    sink = pa.BufferOutputStream()
    with pa.ipc.new_stream(
        sink, rows.schema, options=pa.ipc.IpcWriteOptions(compression=codec)
    ) as stream:
        stream.write_batch(rows)
    return bytes(sink.getvalue().to_pybytes())


def _put(data: bytes) -> object:
    """Take a producer's Arrow stream as a do_put does; Flight itself has read it by then."""
    try:
        with pa.ipc.open_stream(data) as stream:
            rows = list(stream)
            schema = stream.schema
    except (pa.ArrowException, OSError, EOFError, MemoryError):
        return None
    preparer = Preparer(schema)
    for batch in rows:
        validate(batch)
        check_subjects(batch, StreamConfig(subject="s"))
        preparer.prepare(batch, now_us=7)
    return rows


def decoders() -> Iterator[Decoder]:
    """Yield them all."""
    yield from map(_action, ACTIONS)
    yield Decoder(
        name="flight_rows",
        covers=(
            "broker.adapters.flight.served_put.validate",
            "broker.adapters.flight.served_put.check_subjects",
            "broker.codec.record_batch.Preparer.prepare",
        ),
        decode=_put,
        make_seeds=lambda: [_put_rows(), _put_rows("lz4"), _put_rows("zstd")],
    )
    yield Decoder(
        name="flight_ticket",
        covers=(
            "broker.codec.flight.protocol.ReadRequest.from_ticket",
            "broker.codec.flight.protocol.parse_object",
        ),
        decode=protocol.ReadRequest.from_ticket,
        make_seeds=_tickets,
    )
    yield Decoder(
        name="flight_path",
        covers=(
            "broker.codec.flight.protocol.StreamPath.from_path",
            "broker.adapters.flight.served_put.put_path",
        ),
        decode=_path,
        make_seeds=lambda: [b"s/0", b"s/3"],
    )
    yield Decoder(
        name="flight_put_mark",
        covers=("broker.codec.flight.protocol.decode_put_mark",),
        decode=protocol.decode_put_mark,
        make_seeds=lambda: [protocol.encode_put_mark(ProducerId(7), 3)],
    )
